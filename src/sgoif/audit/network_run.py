"""The part of an audit that trains a network: from the newest checkpoint to the end, and what it found."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from sgoif.audit.finetuning import described
from sgoif.audit.interruption import Interruption
from sgoif.audit.live_status import LiveStatus
from sgoif.audit.plan import Plan
from sgoif.audit.progress import Progress
from sgoif.audit.results import Found
from sgoif.audit.run_directory import RunDirectory
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Training
from sgoif.backbones import Backbone
from sgoif.core.types import Indices
from sgoif.distributed.communicator import Communicator
from sgoif.errors import StateError
from sgoif.images import Pixels
from sgoif.reports.label_report import harmed_by
from sgoif.tasks import LabelErrors

REASONS = {
    "memorising": "the model has begun to learn the training images by heart",
    "settled": "the list of suspicious images does not change any more",
}


@dataclass(frozen=True)
class NetworkRun:
    """A network that is trained in a run directory: what it is trained on and how, and who is told."""

    directory: RunDirectory
    settings: AuditSettings
    plan: Plan
    pixels: Pixels
    split: tuple[Indices, Indices]
    """Rows to train on and to hold out."""
    backbone: Backbone | None
    """The pretrained network that is trained further, if one is."""
    communicator: Communicator
    interruption: Interruption
    show: Progress
    began: float
    """When this process did, by the monotonic clock."""

    def train(self, ending: ExitStack) -> tuple[Training, LiveStatus, float]:
        """The network trained to the end, who is told of it, and the seconds that all of the run has taken.

        Hooks are taken off the network when `ending` closes.
        """
        live = LiveStatus(None if self.communicator.rank else self.directory.path, self.pixels)
        with self.interruption.deferred():  # on every process before the first one says that it trains
            training = Training(self.pixels, self.settings, self.plan, *self.split, self.communicator, self.backbone)
            ending.callback(training.close)
            self._reopen(training)
            spent = training.seconds
            self._advance(training, spent - self.began, live)
        training.monitor.unite()
        return training, live, spent + time.monotonic() - self.began

    def _reopen(self, training: Training) -> None:
        """Go on from the newest checkpoint, if there is one."""
        directory, show = self.directory, self.show
        if training.fresh_head:
            show.say(f"weights of {', '.join(training.fresh_head)} start afresh: the file has none that fit")
        state, problems = directory.load()
        for problem in problems:
            show.say(problem)
        if state is None:
            return
        try:
            training.load_state_dict(state)
        except StateError as error:
            raise StateError(
                f"{directory.path}: {error}. Go on with the version of sgoif that began the run, or give another folder"
                " with --out"
            ) from error

    def _advance(self, training: Training, clock: float, live: LiveStatus) -> None:
        """Train to the end, with checkpoints; `clock` plus the time now is what the run has taken in all.

        Signals are deferred. Of several processes the first says when to save, and each may have heard that the run
        should stop.
        """
        if training.finished():
            return
        directory, interruption, show = self.directory, self.interruption, self.show
        plan, communicator = self.plan, self.communicator
        show.stage(f"training {described(plan.model)}", plan.steps, training.step)

        def save() -> None:
            state = {**training.state_dict(), "seconds": clock + time.monotonic()}
            communicator.run_and_sync_errors(lambda: directory.save(state) if communicator.rank == 0 else None)

        def wishes() -> tuple[bool, bool]:
            due = communicator.rank == 0 and directory.due(training.step % plan.steps_per_epoch == 0)
            stop, keep = communicator.total(
                torch.tensor([interruption.asked is not None, due], dtype=torch.int64)
            ).tolist()
            return stop > 0, keep > 0

        while not training.finished():
            training.advance()
            show.advance(
                training.step, plan.steps, f"epoch {training.epoch} of {plan.epochs}, loss {training.loss:.3f}"
            )
            live.tell("training", training, clock + time.monotonic())
            stop, keep = wishes()
            if stop:
                live.tell("stopped", training, clock + time.monotonic(), now=True)
                save()
                interruption.leaving = True
                raise KeyboardInterrupt
            if keep and not training.finished():
                save()
        save()
        if training.stopped != "all epochs done":
            show.say(f"stopped early after {training.step} of {plan.steps} steps: {REASONS[training.stopped]}")


def found_by(training: Training, pixels: Pixels, held: Indices, checked: Mapping[int, int] | None) -> Found:
    """What a trained network says of the labels."""
    errors = LabelErrors(
        training.monitor,
        dataset=training.dataset,
        class_names=pixels.class_names,
        checked=checked,
        features=training.features(),
    )
    plan, trained_on = training.plan, len(training.batches.rows)
    facts = {
        "model": described(plan.model),
        "images trained on": f"{trained_on:,}",
        "images held out": f"{len(held):,}",
        "epochs": f"{training.step / plan.steps_per_epoch:.0f} of {plan.epochs} ({training.stopped})",
        "batch size": str(plan.batch_size),
        "learning rate": f"{plan.learning_rate:.3g}",
        "device": plan.device.type,
    }
    record = {
        "trained_on": trained_on,
        "held_out": len(held),
        "plan": plan.record(),
        "stopped": training.stopped,
        "steps": training.step,
    }
    return Found(errors, held, facts, record, training.monitor.history, partial(harmed_by, errors))
