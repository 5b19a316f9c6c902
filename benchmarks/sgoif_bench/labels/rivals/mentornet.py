"""MentorNet: a small network that learns, from how losses run, which labels to trust, and weighs examples by it.

Jiang, Zhou, Leung, Li, Fei-Fei: MentorNet: Learning Data-Driven Curriculum for Very Deep Neural Networks on Corrupted
Labels. ICML 2018.

The student minimises the weighted loss of a batch; the mentor g gives the weights:

    L = (1/n) Σ_i v_i ℓ_i,    v_i = σ(g(h_i, d_i, y_i, t))

    h_i   losses ℓ_i of the example, up to ten latest looks at it (one look an epoch), padded with the first
    d_i   the same for ℓ_i − m, m the moving average of the 70th percentile of the batch losses
    y_i   label, embedded in 2 dimensions
    t     percentage of training done, 0 to 99, embedded in 5 dimensions

(h, d) go through a bidirectional LSTM; its two last states and the embeddings go through a layer of 20 tanh units and
one logit. In the first 20% of the epochs (burn-in) the weights are 1 and half of a batch, drawn at random, is left
out; afterwards the mentor weighs and 5% are left out.

Which mentor. Ours is the data-driven one, "MentorNet DD", which the authors learn on a set where it is known which
labels are corrupted. Nobody gives us such a set, so it is made from the given labels: a tenth of them, drawn at random,
are flipped to another class on purpose, a student of the same kind is trained on the result under the same burn-in,
and the mentor learns from all looks after it which labels were flipped (target v* = 0) and which not (v* = 1), until
it gets no better on a fifth of the examples that it does not learn from. A share ε of the unflipped is wrong too,
without our knowing. Both kinds are therefore drawn equally often: what looks wrong is then to be weighed
ε / (1 + ε) < ½, whatever ε is, and what looks right 1.

Differences from the published code: it reads a single look with one LSTM unit and the same label 0 for all, where the
paper has a history and labels; its mentor was learned at one epoch, so it freezes t after burn-in, which is not needed
here; it changes the percentile with the (known) noise rate, we keep its default; and it leaves out 90% or more in the
last 5% of the epochs, which the recipe's falling learning rate stands in for.

`mentornet_predefined` needs no planted flips: it is "MentorNet PD", whose curriculum is given. After burn-in, with d
the difference of the loss to the moving average of the 75th percentile (p = 0.75), v = 1 where d ≤ 0 and else 0, and in
the last tenth of the epochs v = min(max(1 − d, 0), 1). The authors teach a mentor this function; here it is the weight.

Score. `mentornet`: suspicion is 1 − v, averaged over the looks of the last quarter of the epochs. The paper has no
detector; what it claims is a student that withstands wrong labels, so `mentornet_loss` and `mentornet_predefined` score
by that student's cross entropy with the given label in evaluation mode, over the same epochs. Flagged is v < ½. Cost:
the student's training, and for the data-driven mentor the one that it learns from (the mentor's own learning is small
beside them).
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Labels, Outcome, Problem, Scores
from sgoif_bench.labels.rivals.common import LateLosses, MeanPerExample, is_late, numpy_stream, torch_stream

HISTORY = 10
"""Looks at an example that the LSTM reads."""
LSTM_UNITS = 10
LABEL_DIMENSIONS = 2
EPOCH_DIMENSIONS = 5
HIDDEN_UNITS = 20
PERCENTAGES = 100
LOSS_PERCENTILE, PREDEFINED_PERCENTILE = 0.7, 0.75
LINEAR_FROM = 90
"""Percentage of training done from which the predefined weights fall linearly."""
PERCENTILE_DECAY = 0.5
"""What is kept of the moving percentile at each step."""
BURN_IN_SHARE = 0.2
BURN_IN_DROPOUT = 0.5
DROPOUT = 0.05
"""Share of a batch that is left out after burn-in."""
PLANTED_SHARE = 0.1
"""Labels flipped on purpose for the mentor to learn from."""
MENTOR_STEPS = 2000
MENTOR_BATCH = 256
VALIDATION_SHARE = 0.2
"""Examples, flipped or not, that the mentor does not learn from: its best state is chosen on them."""
VALIDATION_LOOKS = 2048
VALIDATE_EVERY = 50
"""Steps between two looks at the validation examples."""
PATIENCE = 5
"""The mentor stops learning after so many looks without a better one."""
MENTOR_LEARNING_RATE = 0.01
MENTOR_CLIP = 5.0
"""Largest norm of a gradient of the mentor."""
_PLANT_STREAM, _PILOT_STREAM, _MENTOR_STREAM, _STUDENT_STREAM, _VALIDATION_STREAM = 201, 202, 203, 204, 205
_STUDENT, _PILOT = 0, 1


class Mentor(nn.Module):
    """From histories [n, H, 2] of (loss, difference), labels [n] and percentages [n] to logits of the weights [n]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, LSTM_UNITS, batch_first=True, bidirectional=True)
        self.label = nn.Embedding(classes, LABEL_DIMENSIONS)
        self.epoch = nn.Embedding(PERCENTAGES, EPOCH_DIMENSIONS)
        self.hidden = nn.Linear(2 * LSTM_UNITS + LABEL_DIMENSIONS + EPOCH_DIMENSIONS, HIDDEN_UNITS)
        self.out = nn.Linear(HIDDEN_UNITS, 1)

    def forward(self, history: Tensor, labels: Tensor, percentage: Tensor) -> Tensor:
        _, (last, _) = self.lstm(history)
        features = torch.cat([last[0], last[1], self.label(labels), self.epoch(percentage)], dim=1)
        logits: Tensor = self.out(torch.tanh(self.hidden(features)))
        return logits.squeeze(1)


class LossRecord:
    """Every example's loss, and its difference to the moving percentile, in every epoch; kept on the device."""

    def __init__(self, epochs: int, size: int, device: torch.device, percentile: float = LOSS_PERCENTILE) -> None:
        self._percentile = percentile
        self._values = torch.zeros(epochs, size, 2, device=device)
        self._level: Tensor | None = None
        self._back = torch.arange(HISTORY - 1, -1, -1, device=device)

    @torch.no_grad()
    def add(self, epoch: int, index: Tensor, losses: Tensor) -> None:
        """Take in the losses of a batch of this epoch, counted from 0."""
        percentile = losses.quantile(self._percentile)
        if self._level is None:
            self._level = percentile
        else:
            self._level = PERCENTILE_DECAY * self._level + (1 - PERCENTILE_DECAY) * percentile
        self._values[epoch, index] = torch.stack([losses, losses - self._level], dim=1)

    def history(self, epoch: int | Tensor, index: Tensor) -> Tensor:
        """The looks at these examples up to this epoch (or one epoch for each), [n, H, 2]; the first look pads."""
        now = epoch if isinstance(epoch, Tensor) else torch.full_like(index, epoch)
        return self._values[(now[:, None] - self._back).clamp_min(0), index[:, None]]


def percentage_done(epoch: int | Tensor, epochs: int) -> int | Tensor:
    """t of an epoch counted from 0: whole percents of training done when it begins."""
    return PERCENTAGES * epoch // epochs


def burn_in_epochs(epochs: int) -> int:
    """How many epochs of so many are burn-in: a fifth, at least one."""
    return max(1, round(BURN_IN_SHARE * epochs))


class Curriculum:
    """The student's loss. Without a mentor all weights are 1, throughout; what is seen is recorded either way."""

    def __init__(self, problem: Problem, mentor: Mentor | None, stream: int) -> None:
        self.epochs = problem.recipe.epochs
        self.burn_in = burn_in_epochs(self.epochs)
        self.epoch = 0
        self.record = LossRecord(self.epochs, len(problem), problem.device)
        self.distrust = MeanPerExample(len(problem), problem.device)
        """1 − v over the last epochs."""
        self._mentor = mentor
        self._generator = torch_stream(problem, stream)

    def __call__(self, logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """(1/n) Σ v_i ℓ_i over those of the batch that are not left out."""
        losses = F.cross_entropy(logits, labels, reduction="none")
        index = index.to(losses.device)
        self.record.add(self.epoch, index, losses.detach())
        weights = self._weights(labels, index)
        rate = BURN_IN_DROPOUT if self.epoch < self.burn_in else DROPOUT
        stays = torch.rand(len(losses), generator=self._generator, device=losses.device) >= rate
        return (weights * stays * losses).mean()

    def end_of_epoch(self, epoch: int) -> None:
        """So many epochs are over."""
        self.epoch = epoch

    @torch.no_grad()
    def _weights(self, labels: Tensor, index: Tensor) -> Tensor:
        ones = torch.ones(len(labels), device=labels.device)
        if self._mentor is None or self.epoch < self.burn_in:
            return ones
        percentage = torch.full_like(labels, int(percentage_done(self.epoch, self.epochs)))
        logits = self._mentor(self.record.history(self.epoch, index), labels, percentage)
        if is_late(self.epoch + 1, self.epochs):
            self.distrust.add(index, torch.sigmoid(-logits.double()))
        return torch.sigmoid(logits)


class Predefined(Curriculum):
    """The loss of a student whose weights follow from its losses alone."""

    def __init__(self, problem: Problem, stream: int) -> None:
        super().__init__(problem, None, stream)
        self.record = LossRecord(self.epochs, len(problem), problem.device, PREDEFINED_PERCENTILE)

    @torch.no_grad()
    def _weights(self, labels: Tensor, index: Tensor) -> Tensor:
        if self.epoch < self.burn_in:
            return torch.ones(len(labels), device=labels.device)
        difference = self.record.history(self.epoch, index)[:, -1, 1]
        weights = predefined_weights(difference, int(percentage_done(self.epoch, self.epochs)))
        if is_late(self.epoch + 1, self.epochs):
            self.distrust.add(index, 1 - weights.double())
        return weights


def predefined_weights(difference: Tensor, percentage: int) -> Tensor:
    """v of the predefined curriculum after burn-in, from the differences to the moving percentile."""
    if percentage >= LINEAR_FROM:
        return (1 - difference).clamp(0, 1)
    return (difference <= 0).float()


class Planted(NamedTuple):
    """The given labels with some more flipped on purpose, and which."""

    labels: Labels
    is_planted: NDArray[np.bool_]


def plant_flips(problem: Problem) -> Planted:
    """Give a tenth of the examples another label than the given one, every other class being equally likely."""
    stream, size = numpy_stream(problem, _PLANT_STREAM), len(problem)
    chosen = stream.choice(size, size=max(1, round(PLANTED_SHARE * size)), replace=False)
    labels = problem.labels.copy()
    labels[chosen] = (labels[chosen] + stream.integers(1, problem.classes, size=len(chosen))) % problem.classes
    return Planted(labels, labels != problem.labels)


def record_pilot(problem: Problem, planted: Planted, tell: Say) -> LossRecord:
    """Train a student on the planted labels and return how its losses ran."""
    curriculum = Curriculum(problem, None, _PILOT_STREAM)

    def on_epoch(epoch: int) -> None:
        curriculum.end_of_epoch(epoch)
        tell(f"mentornet, student with planted flips: epoch {epoch} of {problem.recipe.epochs}")

    batches = problem.batches(labels=planted.labels, number=_PILOT)
    problem.fit(problem.new_model(_PILOT), batches, loss=curriculum, on_epoch=on_epoch)
    return curriculum.record


def new_mentor(problem: Problem) -> Mentor:
    """A mentor with fresh weights on the device, leaving the global random state as it was."""
    seed = int(numpy_stream(problem, _MENTOR_STREAM).integers(2**62))
    with torch.random.fork_rng(devices=[problem.device] if problem.on_gpu else []):
        torch.manual_seed(seed)
        return Mentor(problem.classes).to(problem.device)


class Examples:
    """Looks of the pilot at examples whose labels are known to be flipped or not, both kinds drawn equally often."""

    def __init__(self, problem: Problem, planted: Planted, record: LossRecord) -> None:
        self._record, self._epochs, self._device = record, problem.recipe.epochs, problem.device
        self._first = min(burn_in_epochs(self._epochs), self._epochs - 1)
        self._labels = torch.from_numpy(planted.labels).to(problem.device)
        self._generator = torch_stream(problem, _MENTOR_STREAM)
        stream = numpy_stream(problem, _VALIDATION_STREAM)
        self._rows: dict[bool, list[Tensor]] = {False: [], True: []}
        """Under "to validate with or not": flipped rows, other rows."""
        for kind in (planted.is_planted, ~planted.is_planted):
            rows = torch.from_numpy(stream.permutation(np.flatnonzero(kind))).to(problem.device)
            cut = max(1, round(VALIDATION_SHARE * len(rows)))
            self._rows[True].append(rows[:cut])
            self._rows[False].append(rows[cut:] if len(rows) > cut else rows)

    def draw(self, count: int, validation: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(histories, labels, percentages, targets v*) of so many looks after burn-in, the first half flipped."""
        half = count // 2
        index = torch.cat([rows[self._random(0, len(rows), half)] for rows in self._rows[validation]])
        epoch = self._random(self._first, self._epochs, 2 * half)
        percentage = torch.as_tensor(percentage_done(epoch, self._epochs))
        target = torch.arange(2, device=self._device).repeat_interleave(half).float()
        return self._record.history(epoch, index), self._labels[index], percentage, target

    def _random(self, low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=self._generator, device=self._device)


def learn_mentor(problem: Problem, planted: Planted, record: LossRecord, tell: Say) -> Mentor:
    """Learn to tell flipped from other labels; the state that does best on the validation examples is returned."""
    examples, mentor = Examples(problem, planted, record), new_mentor(problem)
    *seen, truth = examples.draw(VALIDATION_LOOKS, validation=True)
    optimizer = torch.optim.Adam(mentor.parameters(), lr=MENTOR_LEARNING_RATE)
    best, best_loss, waited = copy.deepcopy(mentor.state_dict()), math.inf, 0
    for step in range(1, MENTOR_STEPS + 1):
        history, labels, percentage, target = examples.draw(MENTOR_BATCH)
        F.binary_cross_entropy_with_logits(mentor(history, labels, percentage), target).backward()
        nn.utils.clip_grad_norm_(mentor.parameters(), MENTOR_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if step % VALIDATE_EVERY == 0:
            with torch.no_grad():
                loss = float(F.binary_cross_entropy_with_logits(mentor(*seen), truth))
            waited += 1
            if loss < best_loss:
                best, best_loss, waited = copy.deepcopy(mentor.state_dict()), loss, 0
            if waited == PATIENCE:
                break
    tell(f"mentornet: mentor learned in {step} steps, validation loss {best_loss:.3f}")
    mentor.load_state_dict(best)
    return mentor.eval()


class Student(NamedTuple):
    """What is known of every example once the student is trained."""

    distrust: Scores
    """1 − v over the last epochs."""
    loss: Scores
    """Cross entropy of the given label over the last epochs."""
    details: dict[str, Any]

    def outcome(self, suspicion: Scores, trainings: float) -> Outcome:
        """One of the two as suspicion; what the curriculum distrusts is flagged."""
        return Outcome(suspicion, flagged=self.distrust > 0.5, trainings=trainings, details=self.details)


def train_student(problem: Problem, curriculum: Curriculum, tell: Say, **details: Any) -> Student:
    """Train a student under a curriculum."""
    model, late = problem.new_model(_STUDENT), LateLosses(problem, tell, "mentornet")

    def on_epoch(epoch: int) -> None:
        curriculum.end_of_epoch(epoch)
        late.end_of_epoch(model, epoch)

    problem.fit(model, problem.batches(), loss=curriculum, on_epoch=on_epoch)
    details["burn_in_epochs"] = curriculum.burn_in
    return Student(curriculum.distrust.result(), late.result(), details)


def data_driven(problem: Problem, tell: Say) -> Student:
    """Learn a mentor from planted flips, then train a student under it."""
    planted = plant_flips(problem)
    mentor = learn_mentor(problem, planted, record_pilot(problem, planted, tell), tell)
    curriculum = Curriculum(problem, mentor, _STUDENT_STREAM)
    return train_student(problem, curriculum, tell, planted=int(planted.is_planted.sum()))


def mentornet(problem: Problem, tell: Say) -> Outcome:
    """The data-driven mentor; suspicion is its late distrust 1 − v."""
    student = data_driven(problem, tell)
    return student.outcome(student.distrust, trainings=2.0)


def mentornet_loss(problem: Problem, tell: Say) -> Outcome:
    """The data-driven mentor; suspicion is the student's late loss."""
    student = data_driven(problem, tell)
    return student.outcome(student.loss, trainings=2.0)


def mentornet_predefined(problem: Problem, tell: Say) -> Outcome:
    """The predefined curriculum; suspicion is the student's late loss."""
    student = train_student(problem, Predefined(problem, _STUDENT_STREAM), tell)
    return student.outcome(student.loss, trainings=1.0)
