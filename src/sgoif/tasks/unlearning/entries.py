"""Entries of the audit log: JSON lines that can only be added to, each sealed with what came before it.

    {"sequence": 2, "time": "2025-03-01T09:30:00Z", "kind": "request", "summary": "…", "evidence": {…},
     "previous": "<hash of line 1>", "hash": "<hash of this line>", "mac": "<proof that the key was there>"}

    sealed = previous + canonical JSON of sequence, time, kind, summary and evidence
    hash   = sha256(sealed)
    mac    = HMAC-SHA256(key, sealed)

canonical: as Python's json module writes it with sorted keys and no spaces, in ASCII; what precedes the first line is
64 zeros. In the file only characters that cannot be printed are written out, so that people can read it. What hash and
mac show is in docs/unlearning.md; from the first entry with a mac on, every entry has one.
"""

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from sgoif.tasks.unlearning.text import escaped, quoted

GENESIS = "0" * 64
FIELDS = ("sequence", "time", "kind", "summary", "evidence", "previous", "hash")
SEALED = FIELDS[:-2]
MAC = "mac"
TEXTS = ("time", "kind", "summary", "previous", "hash")
TIME = "%Y-%m-%dT%H:%M:%SZ"


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
    mac: str | None = None
    """None in a log that was begun without a key."""

    @property
    def when(self) -> datetime:
        """The time."""
        return datetime.strptime(self.time, TIME).replace(tzinfo=UTC)

    def text(self) -> str:
        """The line, without its end."""
        names = FIELDS if self.mac is None else (*FIELDS, MAC)
        return escaped(json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False, allow_nan=False))


def seal(previous: str, content: Mapping[str, Any]) -> str:
    """The hash of a line with this content."""
    return hashlib.sha256(_sealed(previous, content)).hexdigest()


def prove(key: bytes, previous: str, content: Mapping[str, Any]) -> str:
    """The mac of a line with this content."""
    return hmac.new(key, _sealed(previous, content), hashlib.sha256).hexdigest()


def _sealed(previous: str, content: Mapping[str, Any]) -> bytes:
    sealed = {name: content[name] for name in SEALED}
    text = json.dumps(sealed, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return (previous + text).encode()


def are_texts(value: Any) -> bool:
    """Whether this is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_removal(value: Any) -> bool:
    requests = value.get("requests") if isinstance(value, dict) else None
    if not isinstance(requests, list) or not requests or not all(map(_is_number, requests)):
        return False
    return len(set(requests)) == len(requests)


KINDS: dict[str, dict[str, type | Callable[[Any], bool]]] = {
    "opened": {},
    "retrained": {},
    "request": {"request": _is_number, "ids": are_texts, "reason": str},
    "refused": {"ids": are_texts, "reason": str},
    "decision": {"request": _is_number, "decision": dict},
    "removal": {"removal": _is_removal},
    "check": {"check": dict},
    "applied": {"head": str},
    "recovered": {"from": _is_number, "to": _is_number},
    "repaired": {"bytes": _is_number, "sha256": str},
    "clock": {"before": str},
}
"""Every kind of entry, and what its evidence must hold."""


def read_entries(content: bytes, key: bytes | None) -> tuple[list[Entry], tuple[int, str] | None]:
    """The sound entries from the start, and the first broken line with what is wrong with it."""
    *lines, rest = content.split(b"\n")
    if rest:
        lines.append(rest)
    if not lines:
        return [], (1, "line 1 is missing: the log is empty")
    entries: list[Entry] = []
    for number, text in enumerate(lines, start=1):
        last = entries[-1] if entries else None
        try:
            if number == len(lines) and rest:
                raise _Broken("has no end: a write was cut short, or the line was cut")
            entry = _entry(text)
            _check_place(entry, number, GENESIS if last is None else last.hash, lines)
            _check_proof(entry, last, key)
            _check_content(entry)
        except _Broken as problem:
            return entries, (number, f"line {number} {problem}")
        entries.append(entry)
    return entries, None


class _Broken(Exception):
    """What is wrong with a line."""


def _entry(text: bytes) -> Entry:
    try:
        found = json.loads(
            text.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_finite,
        )
        entry = Entry(**found)
        sound = set(found) - {MAC} == set(FIELDS) and isinstance(entry.evidence, dict) and type(entry.sequence) is int
        texts = (*TEXTS, MAC) if MAC in found else TEXTS
        sound = sound and all(isinstance(getattr(entry, name), str) for name in texts)
        sound = sound and entry.previous.isascii() and entry.hash.isascii() and (entry.mac or "").isascii()
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise _Broken("is not an entry of an audit log: it was changed or damaged")
    return entry


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which every key stands once: of two, a reader might see the one that is not sealed."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """A number; 1e999 is none that could have been written."""
    number = float(text)
    return number if math.isfinite(number) else _reject_constant(text)


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


def _number(text: bytes) -> int | None:
    try:
        return _entry(text).sequence
    except _Broken:
        return None


def _check_proof(entry: Entry, last: Entry | None, key: bytes | None) -> None:
    """Raise where an entry was not written with the key; without the key, only where it does not even claim to be."""
    if entry.mac is None:
        if last is not None and last.mac is not None:
            raise _Broken(
                f"(entry {entry.sequence}, {escaped(entry.kind)}) carries no proof, unlike those before it: it was not"
                " written with the key"
            )
        return
    if key is not None and not hmac.compare_digest(entry.mac, prove(key, entry.previous, asdict(entry))):
        raise _Broken(
            f"(entry {entry.sequence}, {escaped(entry.kind)}) carries a proof that does not fit the key: it was forged,"
            " or written with another key"
        )


def _check_content(entry: Entry) -> None:
    """Raise where an entry is nothing that this package writes."""
    if entry.kind not in KINDS:
        raise _Broken(f"is of the unknown kind {quoted(entry.kind)}; known are {', '.join(KINDS)}")
    for name, fits in KINDS[entry.kind].items():
        if name not in entry.evidence:
            raise _Broken(f"(entry {entry.sequence}, {entry.kind}) has no {name} in its evidence")
        value = entry.evidence[name]
        if not (isinstance(value, fits) if isinstance(fits, type) else fits(value)):
            raise _Broken(f"(entry {entry.sequence}, {entry.kind}) has evidence of another form for {name}")
    try:
        entry.when  # noqa: B018  (reads the time)
    except ValueError:
        raise _Broken(
            f"(entry {entry.sequence}, {entry.kind}) is dated {quoted(entry.time)}, which is no time"
        ) from None
