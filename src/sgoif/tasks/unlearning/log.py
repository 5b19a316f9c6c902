"""The audit log, open for writing, and its verification; `entries` has the form of a line, docs/unlearning.md what it
shows. A log that was cut off at its end looks sound to anybody who does not know its *head*, the hash of the last line.

A line is written in one piece and flushed to disk. Of a write that was cut short there is a line without its end, which
the next writer takes off and mentions. A clock that was set back is mentioned too, so times that go back without a word
show that somebody else wrote them.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from sgoif.core.locks import lock
from sgoif.core.serialization import flush_folder
from sgoif.errors import SettingError
from sgoif.tasks.unlearning.entries import GENESIS, Entry, prove, read_entries, seal
from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.keys import LEAST_KEY
from sgoif.tasks.unlearning.text import escaped

__all__ = ["GENESIS", "AuditLog", "Entry", "Verification", "as_log", "read_log", "seal", "utc_now", "verify_log"]

REPAIRED, CLOCK = "repaired", "clock"
CLOCK_MAY_DIFFER = timedelta(minutes=5)
"""Two machines that write one log may differ by this much; a clock that is further behind gets an entry."""
Clock = Callable[[], datetime]
Proof = Literal["checked", "unchecked", "none"]


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
    proof: Proof = "none"
    """Whether the sound lines carry proofs, and whether these were checked with the key."""
    proven_from: int | None = None
    """The first line with a proof."""
    state_at: int | None = None
    """Line of the hash that the state ends with."""


def read_log(path: str | os.PathLike[str], key: bytes | None = None) -> list[Entry]:
    """Every entry of a log that is sound; raises and names the first broken line where it is not."""
    entries, broken = read_entries(_content(Path(path)), key)
    if broken is not None:
        raise _untrusted_log(path, broken[1])
    return entries


def verify_log(
    path: str | os.PathLike[str], expect: str | None = None, *, key: bytes | None = None, state_hash: str | None = None
) -> Verification:
    """Check every line of a log, and that it holds a hash that was noted before and the one that a state ends with.

    Without the key this shows only that the chain is unbroken. With it, a log without proofs is not intact.
    """
    entries, broken = read_entries(_content(Path(path)), key)
    broken = broken or _find_time_reversal(entries)
    if broken is not None:
        entries = entries[: broken[0] - 1]
    proven_from = next((entry.sequence for entry in entries if entry.mac is not None), None)
    proof: Proof = "none" if proven_from is None else "unchecked" if key is None else "checked"
    head = entries[-1].hash if entries else GENESIS
    found = Verification(False, len(entries), head, proof=proof, proven_from=proven_from)
    if broken is not None:
        return replace(found, line=broken[0], problem=broken[1])
    found = replace(found, expected_at=_line_of(entries, expect), state_at=_line_of(entries, state_hash))
    problem = ""
    if key is not None and proven_from is None:
        problem = "no entry carries a proof: the log was begun without a key, or it was written anew without one"
    elif expect is not None and found.expected_at is None:
        problem = (
            f"no line has the expected hash {escaped(expect.strip())[:64]}: the end of the log was cut off, or the log"
            " was written anew"
        )
    elif state_hash is not None and found.state_at is None:
        problem = (
            f"no line has the hash {escaped(state_hash)[:64]} that the state ends with: the end of the log was cut off,"
            " the log was written anew, or the state belongs to another log"
        )
    return replace(found, intact=not problem, problem=problem)


def _line_of(entries: list[Entry], wanted: str | None) -> int | None:
    return None if wanted is None else next((e.sequence for e in entries if e.hash == wanted.strip().lower()), None)


def _find_time_reversal(entries: list[Entry]) -> tuple[int, str] | None:
    """The first line whose time is before that of the line above it, where that is not said."""
    for last, entry in pairwise(entries):
        if entry.kind != CLOCK and entry.when < last.when - CLOCK_MAY_DIFFER:
            return entry.sequence, (
                f"line {entry.sequence} (entry {entry.sequence}, {entry.kind}) is dated {entry.time}, before line"
                f" {last.sequence} of {last.time}, and no entry says that the clock was set back"
            )
    return None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LogError(f"there is no log {path}") from error
    except IsADirectoryError as error:
        raise LogError(f"{path} is a folder, not a log") from error


def _untrusted_log(path: str | os.PathLike[str], problem: str) -> LogError:
    return LogError(f"the log {os.fspath(path)} cannot be trusted: {problem}")


def _appendable_hashes(entries: list[Entry]) -> set[str]:
    """The hashes after which somebody may go on writing: of the last entry, and of those before remarks of the log."""
    ends = {entries[-1].hash if entries else GENESIS}
    for entry in reversed(entries):
        if entry.kind not in (REPAIRED, CLOCK):
            break
        ends.add(entry.previous)
    return ends


def utc_now() -> datetime:
    """The time of the machine."""
    return datetime.now(UTC)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


class AuditLog:
    """A log open for writing, now and then: the file is locked only while something is written or `held`.

    With a `key` (`open_key` reads one from a file) every entry carries a proof, and what the log says can be done again
    for a state that was saved earlier. Without one it is a chain of hashes that anybody could write: it is never acted
    upon, and a log with proofs can only be read.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock = utc_now, key: bytes | None = None) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) < LEAST_KEY):
            raise SettingError(
                f"key={'…' if isinstance(key, bytes) else type(key).__name__} is not valid: expected at least"
                f" {LEAST_KEY} random bytes, e.g. open_key(FILE)"
            )
        self.path = Path(path)
        self.key = key
        self.clock = clock
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
            return read_log(self.path, self.key)

    def finished(self) -> list[Entry]:
        """The same without a change to the file: of a line that was cut short nothing is said."""
        content = _content(self.path)
        entries, broken = read_entries(content[: content.rfind(b"\n") + 1], self.key)
        if broken is not None:
            raise _untrusted_log(self.path, broken[1])
        return entries

    def append(self, kind: str, summary: str, evidence: Mapping[str, Any], after: str | None) -> Entry:
        """Add an entry; `after` is the hash that the last one must have, None for the first entry of a new log."""
        with self.held():
            return self._add(self.check(after), kind, summary, evidence)

    def check(self, after: str | None) -> list[Entry]:
        """All entries; raises unless they can be added to: sound, ending with this hash or empty, the key at hand."""
        with self.held():
            entries = self.entries() if os.path.getsize(self.path) else []
            self.check_key(entries)
            if (after or GENESIS) in _appendable_hashes(entries):
                return entries
            head = entries[-1].hash if entries else GENESIS
            raise LogError(
                f"the log {self.path} is not where it was left: its last entry is number {len(entries)} with the hash"
                f" {head[:12]}…, expected was {(after or GENESIS)[:12]}…. Somebody else has written to it, its end was"
                " cut off, or it is another log. Nothing was done; load the state again"
            )

    def check_key(self, entries: list[Entry]) -> None:
        """Raise where these entries carry proofs and there is no key to go on with."""
        if self.key is None and entries and entries[-1].mac is not None:
            raise LogError(
                f"the entries of the log {self.path} carry proofs, and no key was given to go on with; give the key"
                " that they were written with: --key FILE, or in Python key=open_key(FILE)"
            )

    def _add(self, entries: list[Entry], kind: str, summary: str, evidence: Mapping[str, Any]) -> Entry:
        """Write an entry behind these, and before it one about the clock where that was set back."""
        now = self.clock().astimezone(UTC)
        if entries and kind != CLOCK and now < entries[-1].when - CLOCK_MAY_DIFFER:
            last = entries[-1]
            told = f"The clock is behind: it says {_text(now)}, and entry {last.sequence} is dated {last.time}."
            entries = [*entries, self._write(now, entries, CLOCK, told, {"before": last.time})]
        return self._write(now, entries, kind, summary, evidence)

    def _write(
        self, now: datetime, entries: list[Entry], kind: str, summary: str, evidence: Mapping[str, Any]
    ) -> Entry:
        previous = entries[-1].hash if entries else GENESIS
        # What is sealed is what a reader will parse: tuples become lists, names of fields text.
        content = json.loads(
            json.dumps(
                {
                    "sequence": len(entries) + 1,
                    "time": _text(now),
                    "kind": kind,
                    "summary": summary,
                    "evidence": dict(evidence),
                },
                allow_nan=False,
            )
        )
        mac = None if self.key is None else prove(self.key, previous, content)
        entry = Entry(**content, previous=previous, hash=seal(previous, content), mac=mac)
        self._append(entry.text().encode() + b"\n")
        return entry

    def _append(self, content: bytes) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        try:
            while content:
                content = content[os.write(self._file, content) :]
            os.fsync(self._file)
            if not size:  # its name is new as well
                flush_folder(self.path.parent)
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
        entries, broken = read_entries(whole + b"\n", self.key) if whole else ([], None)
        if broken is not None or not entries:
            return  # not ours to mend: reading it names the line
        self.check_key(entries)
        os.ftruncate(self._file, len(content) - len(torn))
        self._add(
            entries,
            REPAIRED,
            f"An entry that was never finished ({len(torn)} bytes) was taken off the end of the log.",
            {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()},
        )


def as_log(given: str | os.PathLike[str] | AuditLog | None, key: bytes | None = None) -> AuditLog | None:
    """A log from a log or the name of one; a key that is given is its key."""
    if given is None or (isinstance(given, AuditLog) and key is None):
        return given
    return AuditLog(given.path, given.clock, key) if isinstance(given, AuditLog) else AuditLog(given, key=key)


def _lock(file: int, path: Path) -> None:
    """Keep a second writer out, where the system can."""
    try:
        missing = lock(file)
    except BlockingIOError as error:
        raise LogError(f"another process is writing to the log {path}; wait for it and try again") from error
    except OSError as error:
        raise LogError(f"the log {path} cannot be locked ({(error.strerror or str(error)).lower()})") from error
    if missing is not None:
        warnings.warn(
            f"the file system of the log {path} has no locks ({missing}): make sure that no second process writes to"
            " it",
            stacklevel=2,
        )
