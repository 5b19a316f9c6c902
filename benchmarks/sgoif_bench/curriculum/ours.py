"""Training with a curriculum, as weights of the losses.

The run is a user's run: a hold-out with labels as noisy as the others, all of them anchors, which is not trained on at
first, and default settings of the curriculum unless others are asked for. For the last quarter of the epochs the
curriculum is finished and the hold-out joins the training, weighed like everything else, or with targets instead of
weights (`targets`); in `apart` it never does, so that both parts of the effect can be told. Where it goes on judging
steps are watched to the end.

What limits the weights is asked of `told`, no method but a ceiling: from the judgement on that first moves a weight,
wrong labels have none, or right labels all of theirs, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.curriculum import Curriculum
from sgoif_bench.batches import Batches
from sgoif_bench.curriculum.settings import curriculum_settings
from sgoif_bench.curriculum.study import Study, Trained, Weights
from sgoif_bench.labels.problem import Problem, Rows
from sgoif_bench.labels.watching import watch

JOINED = 0.25
"""Share of the epochs, at the end, in which the hold-out is trained on too."""
NOTHING = 1e-6
"""A weight of nothing: what has none at all leaves no gradient to score."""


def curriculum(study: Study) -> Trained:
    """Weighed losses; the hold-out joins at the end."""
    return _train(study)


def apart(study: Study) -> Trained:
    """Weighed losses; the hold-out is never trained on."""
    return _train(study, joined=0.0)


def targets(study: Study) -> Trained:
    """Weighed losses; at the end the hold-out joins, and targets stand instead of weights."""
    return _train(study, aimed=True)


def robust(study: Study) -> Trained:
    """Weighed losses, robust as far as labels seem wrong at random; the hold-out joins at the end."""
    return _train(study, robust=True)


def told(study: Study) -> Trained:
    """Weights without mistakes, from the moment on when ours begin to move."""
    return _train(study, joined=JOINED, told=("wrong", "right"))


def told_wrong(study: Study) -> Trained:
    """Our weights, but for wrong labels, which have none."""
    return _train(study, joined=JOINED, told=("wrong",))


def told_right(study: Study) -> Trained:
    """Our weights, but for right labels, which have all of theirs."""
    return _train(study, joined=JOINED, told=("right",))


def _train(study: Study, **how: Any) -> Trained:
    """As `taught` does, looking at every epoch."""

    def look(model: nn.Module, teacher: Teacher) -> None:
        study.look(model, weights=teacher.shown())

    return taught(study, on_epoch=look, **how)[0]


def taught(
    study: Study,
    *,
    on_epoch: Callable[[nn.Module, Teacher], None],
    joined: float | None = None,
    aimed: bool = False,
    told: tuple[str, ...] = (),
    robust: bool = False,
) -> tuple[Trained, Teacher]:
    """Train with a curriculum; what there is to say about it, and the teacher, whose monitor is closed.

    The hold-out joins for the share `joined` of the epochs; None: that of the options, or the default.
    """
    problem, options = study.problem, study.options
    training, held_out = problem.split()
    rows = np.asarray(training.indices)
    epochs = problem.recipe.epochs
    last = min(round((options.get("joined", JOINED) if joined is None else joined) * epochs), epochs - 1)
    model = problem.new_model()
    watched, everything = problem.batches(rows), problem.batches(number=1)
    steps = (epochs - last) * len(watched) + last * len(everything)
    optimizer, schedule = problem.optimizer(model, steps)
    monitor = watch(problem, model, optimizer, held_out)
    teaching = Curriculum(monitor, settings=curriculum_settings(options, robust=robust))
    teacher = (
        Told(problem, monitor, teaching, study.right, told) if told else Teacher(problem, monitor, teaching, aimed)
    )

    def lesson(batches: Batches, part: Rows, count: int) -> None:
        teacher.begin(part)
        problem.fit(
            model,
            batches,
            epochs=count,
            optimizer=(optimizer, schedule),
            loss=teacher.loss,
            watching=teacher.watching,
            on_epoch=lambda epoch: on_epoch(model, teacher),
        )

    lesson(watched, rows, epochs - last)
    if last:
        teacher.finish()
        lesson(everything, problem.rows(), last)
    monitor.close()
    seconds = study.seconds
    spent = monitor.schedule.time.spent + sum(entry["seconds"] for entry in teacher.curriculum.history)
    details = {"joined_epochs": last, "report": teacher.curriculum.report().to_dict()}
    details |= {"judgements": teacher.curriculum.history, "monitor_seconds": monitor.schedule.time.spent}
    share = ((epochs - last) * len(rows) + last * len(problem)) / (epochs * len(problem))
    return Trained(share, details, overhead=seconds / max(seconds - spent, 1e-9)), teacher


class Teacher:
    """A curriculum in a training loop of the benchmark."""

    def __init__(
        self, problem: Problem, monitor: InfluenceMonitor, curriculum: Curriculum, aimed: bool = False
    ) -> None:
        self.problem, self.monitor, self.curriculum = problem, monitor, curriculum
        self.aimed = aimed
        self.rows: Rows = problem.rows()
        self._labels = torch.from_numpy(problem.labels)
        self._weights = torch.ones(0)
        self._watched = True

    def begin(self, rows: Rows) -> None:
        """From now on these examples are trained on."""
        self.rows = rows

    def weights(self, index: Tensor) -> Tensor:
        """What the losses of a batch are multiplied with."""
        return self.curriculum.weights(index)

    def watching(self, index: Tensor) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a batch."""
        self._weights = self.weights(index)
        if not self._watched:
            return nullcontext()
        target = self._labels[index].to(self.problem.device) if self.curriculum.settings.robust else None
        return self.monitor.step(index, target=target, weights=self._weights)

    def loss(self, logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The mean loss of a batch: weighed unless it has targets instead."""
        if self.aimed and self.curriculum.finished:
            return F.cross_entropy(logits, self.curriculum.targets(index, labels, logits))
        if self.curriculum.settings.robust:
            return self.curriculum.loss(index, labels, logits)
        losses = F.cross_entropy(logits, labels, reduction="none")
        return (losses * self._weights).mean()

    def finish(self) -> None:
        """From now on the hold-out is trained on, and steps are watched where that changes weights."""
        self.curriculum.finish()
        self._watched = self.curriculum.goes_on and not self.aimed
        if not self._watched:
            self.monitor.close()

    def values(self) -> Weights:
        """What every label weighs now, trained on or not."""
        size, doubt = len(self.problem), self.curriculum.doubt if self.aimed else None
        values = self.curriculum.values(size) if doubt is None else 1 - doubt.cpu().numpy()
        return values.astype(np.float32)

    def shown(self) -> Weights:
        """What every label weighed in the epoch that ends, zero where its example was not trained on."""
        found: Weights = np.zeros(len(self.problem), dtype=np.float32)
        found[self.rows] = self.values()[self.rows]
        return found


class Told(Teacher):
    """A teacher who is told which labels are right, and changes the weights of wrong ones, of right ones, or of both.

    Their mean over what is trained on is one, as it was.
    """

    def __init__(
        self,
        problem: Problem,
        monitor: InfluenceMonitor,
        curriculum: Curriculum,
        right: Rows | None,
        told: tuple[str, ...],
    ) -> None:
        super().__init__(problem, monitor, curriculum)
        assert right is not None, "a ceiling is told which labels are right"
        self.told, self.is_right = told, np.zeros(len(problem), dtype=bool)
        self.is_right[right] = True
        self._known: tuple[int, int] | None = None
        self._changed = torch.ones(0)

    def weights(self, index: Tensor) -> Tensor:
        """Changed as soon as a judgement has moved weights; the first moves none."""
        ours = super().weights(index)
        moment = len(self.curriculum.history), len(self.rows)
        if moment[0] < 2:
            return ours
        if self._known != moment:
            self._known, self._changed = moment, torch.from_numpy(self.values()).to(self.problem.device)
        return self._changed[index.to(self.problem.device)]

    def values(self) -> Weights:
        weights = super().values()
        if len(self.curriculum.history) < 2:
            return weights
        if "wrong" in self.told:
            weights[~self.is_right] = NOTHING
        if "right" in self.told:
            weights[self.is_right] = 1
        changed: Weights = weights / weights[self.rows].mean()
        return changed
