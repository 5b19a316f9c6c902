"""The audit log: JSON lines that can only be added to, each sealed with what came before it.

    {"sequence": 2, "time": "2025-03-01T09:30:00Z", "kind": "request", "summary": "…", "evidence": {…},
     "previous": "<hash of line 1>", "hash": "<hash of this line>"}

    hash = sha256(previous + canonical JSON of sequence, time, kind, summary and evidence)

canonical: as Python's json module writes it with sorted keys and no spaces, in ASCII; what precedes the first line is
64 zeros. In the file only characters that cannot be printed are written out, so that people can read it. Whoever
changes, removes, adds or moves a line has to seal every later line anew, and then the hash of the last line, the
*head*, is another. So keep heads elsewhere: a log that was cut off at its end, or written anew as a whole, looks sound
to anybody who does not know one.

A line is written in one piece and flushed to disk. Of a write that was cut short there is a line without its end, which
the next writer takes off and mentions.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.text import escaped

GENESIS = "0" * 64
FIELDS = ("sequence", "time", "kind", "summary", "evidence", "previous", "hash")
SEALED = FIELDS[:-2]
TEXTS = ("time", "kind", "summary", "previous", "hash")
REPAIRED = "repaired"
Clock = Callable[[], datetime]


@dataclass(frozen=True)
class Entry:
    """One line."""

    sequence: int
    time: str
    kind: str
    summary: str
    """What happened, as a sentence."""
    evidence: dict[str, Any]
    previous: str
    hash: str

    def text(self) -> str:
        """The line, without its end."""
        return escaped(json.dumps({name: getattr(self, name) for name in FIELDS}, ensure_ascii=False, allow_nan=False))


@dataclass(frozen=True)
class Verification:
    """What reading a log from its first to its last line found."""

    intact: bool
    entries: int
    """Sound lines from the start."""
    head: str
    """Hash of the last of them."""
    line: int | None = None
    """The first broken line,"""
    problem: str = ""
    """and what is wrong with it."""
    expected_at: int | None = None
    """Line of the expected hash."""

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return asdict(self)


def seal(previous: str, content: Mapping[str, Any]) -> str:
    """The hash of a line with this content."""
    sealed = {name: content[name] for name in SEALED}
    text = json.dumps(sealed, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256((previous + text).encode()).hexdigest()


def read_log(path: str | os.PathLike[str]) -> list[Entry]:
    """Every entry of a log that is sound; raises and names the first broken line where it is not."""
    entries, broken = _read(_content(Path(path)))
    if broken is not None:
        raise LogError(f"the log {os.fspath(path)} cannot be trusted: {broken[1]}")
    return entries


def verify_log(path: str | os.PathLike[str], expect: str | None = None) -> Verification:
    """Check every line of a log, and that it holds a hash that was noted before."""
    entries, broken = _read(_content(Path(path)))
    head = entries[-1].hash if entries else GENESIS
    if broken is not None:
        return Verification(False, len(entries), head, *broken)
    if expect is None:
        return Verification(True, len(entries), head)
    at = next((entry.sequence for entry in entries if entry.hash == expect.strip().lower()), None)
    if at is None:
        problem = (
            f"no line has the expected hash {escaped(expect.strip())[:64]}: the end of the log was cut off, or the log"
            " was written anew"
        )
        return Verification(False, len(entries), head, None, problem)
    return Verification(True, len(entries), head, expected_at=at)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LogError(f"there is no log {path}") from error
    except IsADirectoryError as error:
        raise LogError(f"{path} is a folder, not a log") from error


def _read(content: bytes) -> tuple[list[Entry], tuple[int, str] | None]:
    """The sound entries from the start, and the first broken line with what is wrong with it."""
    *lines, rest = content.split(b"\n")
    if rest:
        lines.append(rest)
    if not lines:
        return [], (1, "line 1 is missing: the log is empty")
    entries: list[Entry] = []
    previous = GENESIS
    for number, text in enumerate(lines, start=1):
        try:
            if number == len(lines) and rest:
                raise _Broken("has no end: a write was cut short, or the line was cut")
            entry = _entry(text)
            _check_place(entry, number, previous, lines)
        except _Broken as problem:
            return entries, (number, f"line {number} {problem}")
        entries.append(entry)
        previous = entry.hash
    return entries, None


class _Broken(Exception):
    """What is wrong with a line."""


def _entry(text: bytes) -> Entry:
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
        entry = Entry(**found)
        sound = set(found) == set(FIELDS) and isinstance(entry.evidence, dict) and type(entry.sequence) is int
        sound = sound and all(isinstance(getattr(entry, name), str) for name in TEXTS)
        sound = sound and entry.previous.isascii() and entry.hash.isascii()
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise _Broken("is not an entry of an audit log: it was changed or damaged")
    return entry


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which every key stands once: of two, a reader might see the one that is not sealed."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """A number; 1e999 is none that could have been written."""
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _check_place(entry: Entry, number: int, previous: str, lines: list[bytes]) -> None:
    """Raise unless the entry belongs on this line and is what was written there."""
    if entry.sequence != number:
        missing = number if entry.sequence > number else None
        later = missing and next((at for at, text in enumerate(lines, 1) if _number(text) == missing), None)
        if later:
            raise _Broken(
                f"holds entry {entry.sequence}, and entry {number} comes in line {later}: they were reordered"
            )
        if missing:
            gap = f"entry {number}" if entry.sequence == number + 1 else f"entries {number} to {entry.sequence - 1}"
            raise _Broken(f"holds entry {entry.sequence}: {gap} {'is' if 'entry' in gap else 'are'} missing")
        raise _Broken(f"holds entry {entry.sequence} again: lines were added or reordered")
    if entry.hash != seal(entry.previous, asdict(entry)):
        raise _Broken(f"(entry {number}, {escaped(str(entry.kind))}) was changed after it was written")
    if entry.previous != previous:
        where = f"line {number - 1}" if number > 1 else "the start of a log"
        raise _Broken(f"does not follow from {where}: one of the two was replaced")
    if entry.text().encode() != lines[number - 1]:
        raise _Broken(f"(entry {number}, {escaped(str(entry.kind))}) was written differently: its text was changed")


def _ends(entries: list[Entry]) -> set[str]:
    """The hashes after which somebody may go on writing: of the last entry, and of the one before a repair."""
    ends = {entries[-1].hash if entries else GENESIS}
    for entry in reversed(entries):
        if entry.kind != REPAIRED:
            break
        ends.add(entry.previous)
    return ends


def _number(text: bytes) -> int | None:
    try:
        return _entry(text).sequence
    except _Broken:
        return None


def utc_now() -> datetime:
    """The time of the machine."""
    return datetime.now(UTC)


class AuditLog:
    """A log open for writing, now and then: the file is locked only while something is written or `held`."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock = utc_now) -> None:
        self.path = Path(path)
        self._clock = clock
        self._file: int | None = None
        self._depth = 0

    def exists(self) -> bool:
        """Whether there is a file that is not empty."""
        return self.path.exists() and (self.path.is_dir() or self.path.stat().st_size > 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other writers out for a while."""
        if self._depth == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            except IsADirectoryError as error:
                raise LogError(f"{self.path} is a folder; name a file for the log") from error
            try:
                _lock(self._file, self.path)
            except BaseException:
                os.close(self._file)
                raise
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._file is not None:
                os.close(self._file)
                self._file = None

    def entries(self) -> list[Entry]:
        """All entries; raises where the log is not sound. A line that was cut short at the end is taken off first."""
        with self.held():
            self._repair()
            return read_log(self.path)

    def append(self, kind: str, summary: str, evidence: Mapping[str, Any], after: str | None) -> Entry:
        """Add an entry; `after` is the hash that the last one must have, None for the first entry of a new log."""
        with self.held():
            entries = self.check(after)
            head, count = entries[-1].hash if entries else GENESIS, len(entries)
            return self._write(count + 1, kind, summary, evidence, head)

    def check(self, after: str | None) -> list[Entry]:
        """All entries; raises unless the log is sound and ends with this hash, or is empty where there is none."""
        with self.held():
            entries = self.entries() if os.path.getsize(self.path) else []
            if (after or GENESIS) in _ends(entries):
                return entries
            head = entries[-1].hash if entries else GENESIS
            raise LogError(
                f"the log {self.path} is not where it was left: its last entry is number {len(entries)} with the hash"
                f" {head[:12]}…, expected was {(after or GENESIS)[:12]}…. Somebody else has written to it, its end was"
                " cut off, or it is another log. Nothing was done; load the state again"
            )

    def _write(self, sequence: int, kind: str, summary: str, evidence: Mapping[str, Any], previous: str) -> Entry:
        time = self._clock().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        # What is sealed is what a reader will parse: tuples become lists, names of fields text.
        content = json.loads(
            json.dumps(
                {"sequence": sequence, "time": time, "kind": kind, "summary": summary, "evidence": dict(evidence)},
                allow_nan=False,
            )
        )
        entry = Entry(**content, previous=previous, hash=seal(previous, content))
        self._append(entry.text().encode() + b"\n")
        return entry

    def _append(self, content: bytes) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        try:
            while content:
                content = content[os.write(self._file, content) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _repair(self) -> None:
        """Take off a last line without its end, and say so, where everything before it is sound."""
        assert self._file is not None
        content = self.path.read_bytes()
        whole, _, torn = content.rpartition(b"\n")
        if not torn:
            return
        entries, broken = _read(whole + b"\n") if whole else ([], None)
        if broken is not None or not entries:
            return  # not ours to mend: reading it names the line
        os.ftruncate(self._file, len(content) - len(torn))
        last = entries[-1]
        self._write(
            last.sequence + 1,
            REPAIRED,
            f"An entry that was never finished ({len(torn)} bytes) was taken off the end of the log.",
            {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()},
            last.hash,
        )


def _lock(file: int, path: Path) -> None:
    """Keep a second writer out, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LogError(f"another process is writing to the log {path}; wait for it and try again") from error
    except OSError:  # a file system without locks
        return
