"""The run directory: what a run is, how far it got, and who is at work in it.

    run.json            settings, versions and the digest of the data; written before any work
    cache/              the images, decoded once
    checkpoint.npz      the newest state of training, and the one before it as checkpoint-previous.npz
    lock                held while a process is at work
    issues.csv ...      the results

A checkpoint is complete before it takes its name, and the one before it is kept, so that a kill at any moment, a full
disk or a damaged file costs the work since the last checkpoint at most. It carries the identity of its run (settings,
plan, digests of the data and of the prepared images), and that of another run is refused.
"""

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sgoif.audit.errors import RunDirectoryError, explained_writes
from sgoif.audit.models import is_harmless, name_from_file
from sgoif.audit.plan import Plan
from sgoif.audit.settings import AUTOMATIC, FREE, PRETRAINED, AuditSettings
from sgoif.core.locks import lock
from sgoif.core.provenance import versions, write_json
from sgoif.core.serialization import load_state, save_state
from sgoif.core.serialization import replace as move
from sgoif.distributed.communicator import Communicator
from sgoif.errors import SgoifError, StateError
from sgoif.images import Pixels
from sgoif.images.text import shown

RUN, LOCK, CACHE = "run.json", "lock", "cache"
IDENTITY = "run"
NEWEST, PREVIOUS, INCOMING = "checkpoint.npz", "checkpoint-previous.npz", "checkpoint-incoming.npz"
EVERY, EPOCH_EVERY = 30.0, 10.0
"""Seconds between two checkpoints, in the middle of an epoch and at its end."""


class RunDirectory:
    """A claimed run directory. Use `claim`, which locks it."""

    def __init__(self, path: Path, settings: AuditSettings) -> None:
        self.path, self.settings = path, settings
        self.cache = path / CACHE
        self.identity: dict[str, Any] = {}
        """What a checkpoint of this run says of itself."""
        self.saved_step: int | None = None
        """The step of the newest checkpoint."""
        self._saved_at = time.monotonic()
        self._anew = False  # run.json is of a run that left nothing to go on from, and gives way to this one

    # --- what the run is ------------------------------------------------------------------------------------------

    def recorded(self) -> dict[str, Any] | None:
        """The contents of run.json."""
        try:
            content = (self.path / RUN).read_bytes()
        except FileNotFoundError:
            return None
        try:
            found = json.loads(content)
            found["digest"]
            AuditSettings.from_record(found["settings"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunDirectoryError(
                f"{self.path / RUN} is damaged ({error!r}); remove the folder or give another --out"
            ) from error
        return dict(found)

    def check(self, resume: bool) -> None:
        """Raise where this run must not go on here: another run, a finished one, or files of somebody else."""
        found = self.recorded()
        if found is None:
            strangers = sorted(p.name for p in self.path.iterdir() if p.name != LOCK and not p.name.startswith("."))
            if strangers:
                raise RunDirectoryError(
                    f"{self.path} is not empty and not a run of `sgoif audit` (it holds {', '.join(strangers[:3])});"
                    " give another folder with --out"
                )
            return
        if resume and "from_scratch" not in found["settings"] and not self.settings.asks_for_pretrained:
            self.settings = replace(self.settings, from_scratch=True)  # go on as the release did that began the run
        differences = self.settings.differences(found["settings"])
        if not any((self.path / name).exists() for name in (NEWEST, PREVIOUS, INCOMING, "summary.json")):
            self._anew = bool(differences) or planted_labels(found) or not resume
            return
        if planted_labels(found):
            raise RunDirectoryError(
                f"{self.path} was trained by an earlier release, with a few labels made wrong on purpose (--decoys),"
                " and cannot be judged anew by this one. Its list, page and decisions still count (`sgoif review`,"
                " `sgoif apply`); to audit again, give another folder with --out"
            )
        named = found["settings"].get("model", AUTOMATIC)
        if resume and self.settings.model == AUTOMATIC != named:
            name_from_file(named, shown(self.path / RUN))  # says what to type; else the difference is told below
        if not resume:
            state = "a finished run" if (self.path / "summary.json").exists() else "a run that was not finished"
            way = "go on with it" if not differences else "go on with that one"
            raise RunDirectoryError(
                f"{self.path} holds {state}. To {way}: {to_go_on(found)}. To start anew, give another folder with --out"
            )
        if differences:
            raise RunDirectoryError(
                f"{self.path} was started with other settings: {'; '.join(differences)}. Go on as it was started"
                f" ({to_go_on(found)}), or give another folder with --out"
            )

    def record(self, digest: str) -> None:
        """Write run.json, or compare the data with what it says."""
        found = None if self._anew else self.recorded()
        if found is not None:
            if found["digest"] != digest:
                raise RunDirectoryError(
                    f"the images of {self.settings.path} have changed since the run in {self.path} was started (files"
                    " added, removed, renamed or written to). Give another folder with --out to audit them as they are"
                )
            return
        with self.explained():
            write_json(self.path / RUN, {"settings": self.settings.record(), "digest": digest, "versions": versions()})

    # --- how far it got -------------------------------------------------------------------------------------------

    def due(self, end_of_epoch: bool) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._saved_at >= (EPOCH_EVERY if end_of_epoch else EVERY)

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint; the one before is kept."""
        with self.explained():
            save_state(self.path / INCOMING, {**state, IDENTITY: self.identity})
            with suppress(FileNotFoundError):
                move(self.path / NEWEST, self.path / PREVIOUS)
            move(self.path / INCOMING, self.path / NEWEST)
        self.saved_step, self._saved_at = int(state["step"]), time.monotonic()

    def load(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest checkpoint that can be read, and what was wrong with newer ones; raises where none can be."""
        problems: dict[str, str] = {}
        # A kill between two renames leaves the newest one under its first name.
        for name in (INCOMING, NEWEST, PREVIOUS):
            try:
                state = load_state(self.path / name)
                self.saved_step = int(state["step"])
            except FileNotFoundError:
                continue
            except (StateError, KeyError, ValueError, TypeError, OverflowError) as error:
                problems[name] = str(error)
                continue
            way = "It is left as it is: move it away to go on without it, or give another folder with --out"
            raise_if_foreign(self.path / name, state.pop(IDENTITY, None), self.identity, way)
            return state, [f"{bad} could not be read, {name} is used instead: {why}" for bad, why in problems.items()]
        if problems:
            reasons = "; ".join(f"{name}: {why}" for name, why in problems.items())
            raise RunDirectoryError(
                f"no checkpoint in {self.path} can be read, so the run cannot go on where it was ({reasons}). To start"
                f" anew, remove {' and '.join(problems)} and run the same command again, or give another folder with"
                " --out; nothing was changed"
            )
        return None, []

    def save_part(self, name: str, state: dict[str, Any], identity: dict[str, Any]) -> None:
        """Keep what a part of the run found, with what it follows from."""
        with self.explained():
            save_state(self.path / name, {**state, IDENTITY: identity})

    def load_part(self, name: str, identity: dict[str, Any]) -> dict[str, Any] | None:
        """What `save_part` kept; None where it is not there, damaged, or follows from something else."""
        try:
            state = load_state(self.path / name)
        except (FileNotFoundError, StateError):
            return None
        return state if state.pop(IDENTITY, None) == identity else None

    def kept(self) -> str:
        """What is safe whatever happens next, as a sentence."""
        if self.saved_step is None:
            written = any((self.path / name).exists() for name in (NEWEST, PREVIOUS))
            return "The last checkpoint is kept." if written else "What was read of the images is kept."
        return f"The checkpoint after step {self.saved_step} is kept."

    def stopped(self) -> str:
        """What to tell whoever stopped the run."""
        return f"stopped. {self.kept()} Go on with: {self.settings.command('--resume')}"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a full or read-only disk into a sentence that says what is kept."""
        with explained_writes(self.path, self.kept()):
            yield


def identity(settings: AuditSettings, plan: Plan, pixels: Pixels) -> dict[str, Any]:
    """What tells a run from others, in terms of JSON; where it runs and where things lie is no part of it."""
    left_out = FREE | PRETRAINED if settings.from_scratch_asked else FREE  # as in checkpoints of earlier releases
    chosen = {name: value for name, value in settings.record().items() if name not in left_out}
    decided = {name: value for name, value in plan.record().items() if name != "device"}
    return {**chosen, **decided, "data": pixels.digest, "prepared images": pixels.content}


def raise_if_foreign(path: Path, found: dict[str, Any] | None, expected: dict[str, Any], way: str) -> None:
    """Raise where a checkpoint does not say of itself what is expected of those of a run; `way` is what to do."""
    if not isinstance(found, dict):
        raise RunDirectoryError(f"{path} does not say which run it belongs to, so it is not taken. {way}")
    if wrong := sorted(name for name, value in expected.items() if found.get(name) != value):
        raise RunDirectoryError(f"{path} belongs to another run: {', '.join(wrong)} differ. {way}")


def planted_labels(recorded: dict[str, Any]) -> bool:
    """Whether a recorded run was trained with labels made wrong on purpose, as earlier releases did by default."""
    return bool(recorded["settings"].get("decoys", 0) != 0)


def to_go_on(recorded: dict[str, Any]) -> str:
    """The command that goes on with a recorded run; code that the record names is left for the user to name."""
    settings = AuditSettings.from_record(recorded["settings"])
    if settings.model == AUTOMATIC or is_harmless(settings.model):
        return _printable(settings.command("--resume"))
    rest = _printable(replace(settings, model=AUTOMATIC).command("--resume"))
    return f"{rest} --model NAME, where NAME was {shown(settings.model)}"


def _printable(command: str) -> str:
    return shown(command, width=len(command) * 10)[1:-1]


@contextmanager
def claim(settings: AuditSettings, resume: bool) -> Iterator[RunDirectory]:
    """Create or reopen the run directory, check that it can be written, and hold its lock."""
    path = settings.directory.absolute()
    existed, locked_before = path.exists(), (path / LOCK).exists()
    if existed and not path.is_dir():
        raise RunDirectoryError(f"{path} is a file, not a folder; choose another place with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunDirectoryError(f"{path} cannot be written ({reason}); choose another place with --out") from error
    try:
        _lock(handle, path)
        directory = RunDirectory(path, settings)
        try:
            directory.check(resume)
        except SgoifError:
            if not locked_before:  # somebody else's folder
                (path / LOCK).unlink(missing_ok=True)
            raise
        _try_writing(path)
        for unfinished in path.glob(".*.part"):  # what a killed process was writing
            unfinished.unlink(missing_ok=True)
        yield directory
    finally:
        if not existed and not any(p.name != LOCK for p in path.iterdir()):
            (path / LOCK).unlink(missing_ok=True)  # nothing came of it: leave no trace
            with suppress(OSError):
                path.rmdir()
        os.close(handle)


@contextmanager
def claimed(settings: AuditSettings, resume: bool, communicator: Communicator) -> Iterator[RunDirectory]:
    """The run directory, locked by the first of the processes that work in it."""
    with ExitStack() as held:
        found: list[RunDirectory] = []

        def take() -> None:
            if communicator.rank == 0:
                found.append(held.enter_context(claim(settings, resume)))

        communicator.run_and_sync_errors(take)
        directory = found[0] if found else RunDirectory(settings.directory.absolute(), settings)
        earlier = communicator.rank == 0 and directory.settings != settings
        if int(communicator.total(torch.tensor([earlier], dtype=torch.int64))):
            directory.settings = replace(settings, from_scratch=True)
        yield directory


def _lock(handle: int, path: Path) -> None:
    """Hold the lock until the process ends, however it ends."""
    try:
        missing = lock(handle)
    except BlockingIOError as error:
        owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
        raise RunDirectoryError(
            f"another process{f' ({owner})' if owner.isdigit() else ''} is at work in {path}; wait for it or give"
            " another folder with --out"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunDirectoryError(f"{path / LOCK} cannot be locked ({reason}); give another folder with --out") from error
    if missing is not None:  # atomic writes still keep every file whole
        warnings.warn(
            f"the file system of {path} has no locks ({missing}): make sure that no second process works in it",
            stacklevel=2,
        )
    with suppress(OSError, AttributeError):  # only for the message above, which a full disk may go without
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def _try_writing(path: Path) -> None:
    with explained_writes(path, "Nothing was begun."):
        trial = path / f".trial-{os.getpid()}"
        try:
            trial.write_bytes(b"x" * 4096)
        finally:
            trial.unlink(missing_ok=True)
