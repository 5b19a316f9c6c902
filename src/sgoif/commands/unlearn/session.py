"""A state from one command to the next: begun, loaded, brought to the end of its log, saved, told in terms of JSON."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.audit.progress import Progress
from sgoif.commands.settings import require_computing, require_device
from sgoif.commands.unlearn.feature_source import fit_archive, fit_run
from sgoif.core.serialization import atomic_write
from sgoif.device.selection import choose_device
from sgoif.errors import SettingError
from sgoif.images.errors import make_writable
from sgoif.tasks.unlearning import Unlearner
from sgoif.tasks.unlearning.keys import check_apart, default_key_file, open_key, own_key_file
from sgoif.tasks.unlearning.log import AuditLog
from sgoif.tasks.unlearning.replay import count_unreplayed, replay_log
from sgoif.tasks.unlearning.settings import UnlearnerSettings


def init(
    run: Path | None,
    features: Path | None,
    state: Path,
    log: Path,
    key: Path | None,
    *,
    model: str | None,
    continue_log: bool,
    head: UnlearnerSettings,
    batch_size: int,
    device: str,
    progress: Progress,
) -> Unlearner:
    """Begin: fit the head to the features of a run or of an archive, write the state and the first entry of the log."""
    if (run is None) == (features is None):
        raise SettingError(
            "give either RUN, the run directory of a finished `sgoif audit`, or --features FILE.npz with features and"
            " labels"
        )
    if model is not None and run is None:
        raise SettingError("--model says what network RUN trained, and --features needs none; leave --model away")
    require_computing(batch_size, device)
    if state.resolve() == log.resolve():
        raise SettingError(f"--state and --log are the same file, {state}; give two")
    if state.exists() and not continue_log:
        raise SettingError(
            f"--state {state} exists, and with it requests that must not be lost; use it, or give another name. For a"
            " network that was trained again, give --continue"
        )
    make_writable(state.absolute().parent)  # before the log is begun, which would stay
    options = {"log": with_key(log, key, state, begin=True), "continue_log": continue_log, **vars(head)}
    if features is not None:
        unlearner = fit_archive(features, device, options, progress)
    else:
        assert run is not None
        unlearner = fit_run(run, model, batch_size, device, options, progress)
    unlearner.save(state)
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
    require_device(device)
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
