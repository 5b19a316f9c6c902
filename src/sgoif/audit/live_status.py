"""What a running audit tells whoever watches: live.json in the run directory, written every few seconds.

The file is written whole or not at all, so a reader needs no lock; a full disk never stops a run for its sake.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sgoif.audit.finetuning import described
from sgoif.audit.progress import Progress
from sgoif.audit.stopping import memorises
from sgoif.audit.training import Training
from sgoif.core.provenance import plain
from sgoif.core.serialization import atomic_write
from sgoif.images import Pixels

LIVE = "live.json"
EVERY = 2.0
"""Seconds between two writes."""
CURVES = ("step", "residual_median", "tau", "confidence_mean", "pass_share", "train_loss", "anchor_loss", "step_weight")
FEW_BELIEVED, THIN = 0.05, 0.1
"""Share of believed anchors, and coverage of the groups' directions, below which a warning is due."""


class LiveStatus:
    """Writes live.json for one run; without a folder, as on all processes but the first, nothing."""

    def __init__(self, folder: Path | None, pixels: Pixels) -> None:
        self._folder, self._pixels = folder, pixels
        self._next = 0.0

    def tell(self, state: str, training: Training, seconds: float, *, now: bool = False) -> None:
        """Write how the run is, at most every two seconds unless it must be `now`."""
        if self._folder is None or (not now and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + EVERY
        _write(self._folder, self._content(state, training, seconds))

    def _content(self, state: str, training: Training, seconds: float) -> dict[str, Any]:
        plan, history = training.plan, training.monitor.history
        names = self._pixels.class_names
        rows = [] if training.look is None else training.look.rows
        return {
            "state": state,
            "stopped": training.stopped,
            "step": training.step,
            "steps": plan.steps,
            "epoch": training.epoch,
            "epochs": plan.epochs,
            "loss": training.loss,
            "seconds": seconds,
            "model": described(plan.model),
            "images": len(self._pixels),
            "classes": len(names),
            "history": {name: [entry[name] for entry in history] for name in CURVES},
            "estimate": None if training.estimate is None else asdict(training.estimate),
            "worst_step": None if training.look is None else training.look.step,
            "worst": [
                {
                    **row,
                    "name": self._pixels.names[row["row"]],
                    "label": names[int(self._pixels.labels[row["row"]])],
                    "harmed": names[row["harmed"]] if 0 <= row["harmed"] < len(names) else "",
                }
                for row in rows
            ],
            "alarms": alarms(training),
        }


class Stages(Progress):
    """Tells of the pieces of work in which no network is trained, in live.json and to somebody else."""

    def __init__(self, folder: Path, further: Progress) -> None:
        self._folder, self._further = folder, further
        self._name, self._next = "", 0.0

    def stage(self, name: str, total: int, done: int = 0) -> None:
        self._name = name
        self.write(name, done, total)
        self._further.stage(name, total, done)

    def advance(self, done: int, total: int, note: str = "") -> None:
        if time.monotonic() >= self._next:
            self.write(self._name, done, total)
        self._further.advance(done, total, note)

    def say(self, message: str) -> None:
        self._further.say(message)

    def write(self, state: str, done: int = 0, total: int = 0) -> None:
        """Write live.json."""
        self._next = time.monotonic() + EVERY
        _write(self._folder, {"state": state, "done": done, "total": total})


@contextmanager
def told_stages(folder: Path, further: Progress) -> Iterator[Stages]:
    """Tell of pieces of work in live.json and to somebody else; and where that ends with an error, that it stopped."""
    stages = Stages(folder, further)
    try:
        yield stages
    except BaseException:
        stages.write("stopped")
        raise


def _write(folder: Path, content: dict[str, Any]) -> None:
    text = json.dumps(plain(content), allow_nan=False)
    with suppress(OSError):
        atomic_write(folder / LIVE, lambda file: file.write(text), text=True)


def alarms(training: Training) -> list[str]:
    """What a person should look at."""
    found = []
    history = training.monitor.history
    if training.loss == training.loss and not math.isfinite(training.loss):
        found.append("the training loss is infinite: the learning rate may be too high")
    if not history:
        return found
    last = history[-1]
    if last["anomalies"]:
        found.append(f"{last['anomalies']:.0f} held-out images gave no usable direction at the last look")
    if last["pass_share"] < FEW_BELIEVED:
        found.append(f"only {last['pass_share']:.0%} of the held-out images are believed: scores rest on few of them")
    if last["coverage"] < THIN:
        found.append("the directions of the classes have become nearly the same; the bank is refreshed more often")
    if memorises(history):
        found.append("the model has begun to learn the training images by heart; later steps hardly count")
    return found
