"""A state from one command to the next: begun, loaded, brought to the end of its log, saved, told in terms of JSON."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.audit.progress import Progress
from sgoif.commands.unlearn.feature_source import fit_unlearner
from sgoif.commands.unlearn.settings import InitSettings, check_device
from sgoif.core.serialization import atomic_write
from sgoif.device.selection import choose_device
from sgoif.errors import SettingError
from sgoif.images.errors import make_writable
from sgoif.tasks.unlearning import Unlearner
from sgoif.tasks.unlearning.keys import check_apart, default_key_file, open_key, own_key_file
from sgoif.tasks.unlearning.log import AuditLog
from sgoif.tasks.unlearning.replay import count_unreplayed, replay_log


def init(settings: InitSettings, show: Progress, key: Path | None = None) -> Unlearner:
    """Begin: fit the head, write the state and the first entry of the log."""
    make_writable(settings.state.absolute().parent)  # before the log is begun, which would stay
    log = with_key(settings.log, key, settings.state, begin=True)
    unlearner = fit_unlearner(settings, show, log)
    unlearner.save(settings.state)
    return unlearner


@contextmanager
def session(state: Path, log: Path | None, key: Path | None, device: str = "cpu") -> Iterator[Unlearner]:
    """An unlearner for a command that acts: brought to the end of its log, and saved where the log has grown."""
    unlearner = load(state, log, device)
    if unlearner.log is not None:
        unlearner.log = with_key(unlearner.log.path, key, state)
        replay_log(unlearner, unlearner.log, state)
    try:
        yield unlearner
    finally:
        if unlearner.last_hash != unlearner.saved_hash or log is not None:
            unlearner.save(state)


def load(state: Path, log: Path | None, device: str = "cpu") -> Unlearner:
    """An unlearner as it was saved; its log is not looked at."""
    check_device(device)
    if not state.exists():
        raise SettingError(f"--state {state}: there is no such file; make one with `sgoif unlearn init`")
    return Unlearner.load(state, log=log, replay=False, device=choose_device(device))


def with_key(log: Path, key: Path | None, state: Path, *, begin: bool = False) -> AuditLog:
    """A log with the key that is given, or else the user's own, which is made where the log has no proofs yet."""
    place = key or default_key_file()
    check_apart(place, state, log)
    plain = AuditLog(log)
    entries = plain.finished() if plain.exists() else []
    make = entries[-1].mac is None and (begin or key is None) if entries else begin
    new = make and not place.exists()
    opened = AuditLog(log, key=open_key(place, make=make))
    if new:
        print(f"made the key {place}; keep a copy: without it the log cannot be added to or proven", file=sys.stderr)
    return opened


def read_ids(given: Sequence[str], listing: Path | None) -> list[str]:
    """Ids from the command line and from a file with one a line; - is standard input."""
    ids = list(given)
    if listing is not None:
        try:
            text = sys.stdin.read() if str(listing) == "-" else listing.read_text("utf-8-sig", "surrogateescape")
        except OSError as error:
            raise SettingError(f"--from {listing} cannot be read ({(error.strerror or str(error)).lower()})") from error
        ids += [line for line in text.splitlines() if line.strip()]
    if not ids:
        raise SettingError("no example is named: give ids, or --from FILE with one id a line")
    return ids


def write_head(unlearner: Unlearner, out: Path) -> None:
    """The head as an archive of plain arrays: weight [C, D], bias [C]."""
    head = unlearner.head()
    arrays = {"weight": head.weight, **({} if head.bias is None else {"bias": head.bias})}
    plain: dict[str, Any] = {name: value.cpu().numpy() for name, value in arrays.items()}
    atomic_write(out, lambda file: np.savez(file, **plain))


def not_in_state(unlearner: Unlearner, key: Path | None, state: Path) -> int:
    """How many entries the log of an unlearner has that its state does not have; nothing is changed."""
    if unlearner.log is None:
        return 0
    place = key or own_key_file()
    if place is not None:
        check_apart(place, state, unlearner.log.path)
    log = AuditLog(unlearner.log.path, key=None if place is None else open_key(place))
    return count_unreplayed(unlearner, log, state)


def plan(unlearner: Unlearner, later: int) -> dict[str, Any]:
    """All requests that wait for something, the most urgent first; `later` entries of the log are not in it."""
    pending = unlearner.pending()
    numbers = {decision.number for decision in pending}
    return {
        "pending": [decision.record() for decision in pending],
        "waiting_for_retraining": [d.record() for d in unlearner.outstanding() if d.number not in numbers],
        "not_in_state": later,
        **status(unlearner),
    }


def status(unlearner: Unlearner) -> dict[str, Any]:
    """Where an unlearner stands."""
    log: AuditLog | None = unlearner.log
    return {
        "examples": len(unlearner),
        "deleted": sum(unlearner.class_totals) - len(unlearner),
        "requests": len(unlearner.requests),
        "log": None if log is None else str(log.path),
        "log_head": unlearner.last_hash,
        "head": unlearner.head_digest(),
        "certificate": unlearner.certificate().record(),
    }
