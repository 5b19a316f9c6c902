"""What `sgoif unlearn verify` looks at beside the log, and what it says it cannot know."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif.tasks.unlearning import persistence
from sgoif.tasks.unlearning.keys import check_apart, open_key, own_key_file
from sgoif.tasks.unlearning.log import Verification, verify_log
from sgoif.tasks.unlearning.text import counted

STATE = "unlearning.npz"
WITHOUT_KEY = (
    "without the key this shows only that the chain is unbroken: anybody who can write the file could have written it"
    " anew"
)


@dataclass(frozen=True)
class VerifiedLog:
    """A log beside its key and its state."""

    log: Path
    key_file: Path | None
    state: Path | None
    found: Verification

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        places = {"key": self.key_file, "state": self.state}
        named = {name: None if place is None else str(place) for name, place in places.items()}
        return {"log": str(self.log), **named, **asdict(self.found)}

    def lines(self) -> list[str]:
        """For a person."""
        found = self.found
        if not found.intact:
            return [
                f"BROKEN: {found.problem}",
                f"sound up to there: {found.entries:,} entries, head {found.head}",
                *([] if self.key_file is None else [f"the key was {self.key_file}; --no-key checks the chain alone"]),
            ]
        return [
            f"sound: {found.entries:,} entries, head {found.head}",
            self._about_proofs(),
            self._about_the_state(),
            f"the expected hash is that of line {found.expected_at:,}"
            if found.expected_at is not None
            else "keep the head: with --expect it shows later whether the end was cut off or the log written anew",
        ]

    def _about_proofs(self) -> str:
        start = self.found.proven_from
        if start is None:
            return f"no entry carries a proof; {WITHOUT_KEY}"
        if self.key_file is None:
            return f"the proofs were not checked; {WITHOUT_KEY}"
        if start == 1:
            return f"every entry was written with the key {self.key_file}"
        return (
            f"every entry from line {start:,} on was written with the key {self.key_file}; those before it carry no"
            f" proof, and line {start:,} vouches for them as they were then"
        )

    def _about_the_state(self) -> str:
        found = self.found
        if self.state is None or found.state_at is None:
            return "no state was compared: give --state FILE to see whether the end of the log was cut off"
        later = found.entries - found.state_at
        behind = f", {counted(later, 'entry', 'entries')} before the end" if later else ", the last"
        return f"the state {self.state} ends with line {found.state_at:,}{behind}"


def verify(
    log: Path, *, expect: str | None = None, key: Path | None = None, no_key: bool = False, state: Path | None = None
) -> VerifiedLog:
    """Check a log with the key that is given, or else the user's own, and beside the state that belongs to it."""
    if key is not None and no_key:
        raise SettingError("--key and --no-key exclude each other; give one")
    key_file = None if no_key else key or own_key_file()
    beside, last_hash = _state(log, state)
    secret = None
    if key_file is not None:
        check_apart(key_file, log, *([] if beside is None else [beside]))
        secret = open_key(key_file)
    return VerifiedLog(log, key_file, beside, verify_log(log, expect, key=secret, state_hash=last_hash))


def _state(log: Path, given: Path | None) -> tuple[Path | None, str | None]:
    """The state to compare with, the one beside the log where none is given, and the hash that it ends with."""
    if given is not None:
        last_hash = persistence.read_log_position(given)[1]
        if last_hash is None:
            raise SettingError(f"--state {given} has no log; leave it out, or give the state that the log belongs to")
        return given, last_hash
    beside = log.parent / STATE
    if not beside.is_file():
        return None, None
    name, last_hash = persistence.read_log_position(beside)
    return (beside, last_hash) if name == log.name and last_hash is not None else (None, None)
