"""Scores of the held-out examples themselves, and where they stand in the data set."""

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.anchors.bank import AnchorBank
from sgoif.anchors.gradients import ExampleGradients
from sgoif.core.data import Part
from sgoif.core.interrupts import guarded
from sgoif.core.precision import full_precision
from sgoif.core.types import Flags, Indices
from sgoif.engine.group_directions import GroupDirections
from sgoif.scoring.influence import held_out_scores, remember
from sgoif.scoring.label_scores import LabelScores, check_label
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.score_scaling import ScoreScaling
from sgoif.stability.step_weight import StepWeight

ReadExamples = Callable[[Tensor], tuple[Any, Tensor]]
"""Inputs and labels of some positions, on the monitor's device."""


class HeldOutScorer:
    """Owns the ledger of held-out examples and the scale of their scores."""

    def __init__(
        self,
        ledger: Ledger,
        scaling: ScoreScaling,
        directions: GroupDirections,
        gradients: ExampleGradients,
        step_weight: StepWeight,
        help_weight: float,
    ) -> None:
        self.ledger, self.scaling, self.directions, self.gradients = ledger, scaling, directions, gradients
        self.step_weight, self.help_weight, self.device = step_weight, help_weight, ledger.device
        self.bank: AnchorBank = gradients.bank
        self.labels: LabelScores | None = None
        """Scores by label, where examples have several."""

    def score_bank(self, gradient: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Scores for the anchors, each with its own contribution left out."""
        bank, directions = self.bank, self.directions
        assert directions.psi is not None
        own = bank.own_scores(directions.psi, gradient)
        objective = self.gradients.objective
        scores = held_out_scores(bank.member_positions, own, losses, logits, bank.member_labels, objective)
        remember(self.ledger, self.scaling, scores, directions.support, self.step_weight.factor, self.help_weight)
        if self.labels is not None:
            psi = directions.psi
            own = torch.stack([bank.own_scores(psi, gradient, row) for row in self._head_rows(self.labels.labels)], 1)
            seen = bank.member_positions, own, logits, bank.member_labels
            self._remember_labels(self.labels, *seen, self.step_weight.factor)

    def _remember_labels(
        self, labels: LabelScores, at: Tensor, scores: Tensor, logits: Tensor, targets: Tensor, weight: float
    ) -> None:
        labels.remember(at, scores, logits, targets, self.directions.support, weight, self.help_weight, [len(at)])

    def _head_rows(self, labels: int) -> list[slice]:
        """Where the weights of each row of the head stand."""
        start, stop = self.directions.layout.offsets[-2:]
        width = (stop - start) // labels
        return [slice(start + k * width, start + (k + 1) * width) for k in range(labels)]

    @guarded
    @full_precision
    def label_record(self) -> LabelScores:
        """What is remembered about every label of every held-out example, those scored that were never an anchor."""
        assert self.labels is not None
        labels, directions, gradients = copy(self.labels), self.directions, self.gradients
        labels.ledger = labels.ledger.every(1, 0)
        labels.scaling = copy(labels.scaling)
        missing = (self.labels.of(0).column("count") == 0).nonzero().squeeze(1).cpu()
        if not len(missing) or directions.psi is None:
            return labels
        rows = self._head_rows(labels.labels)
        with gradients.captured() as capture:
            for some in missing.split(gradients.batch_size):
                inputs, targets = self.bank.read(some)
                found = gradients.of(inputs, targets, capture)
                g = gradients.joined(found.gradients)
                scores = torch.stack([-(g[:, row] @ directions.psi[:, row].T) for row in rows], 1)
                self._remember_labels(labels, some.to(g.device), scores, found.logits, targets, 1.0)
        return labels

    def record(self, label: int | None = None) -> Ledger:
        """The ledger with one score for every held-out example that was never an anchor; the run is unchanged.

        `label` asks about one of several labels of each.
        """
        if label is not None:
            check_label(self.labels, label)
            return self.label_record().of(label)
        ledger = self.ledger.copy()
        missing = (ledger.column("count") == 0).nonzero().squeeze(1).cpu()
        self.score_into(ledger, missing, self.bank.read)
        return ledger

    @guarded
    @full_precision
    def score_into(self, ledger: Ledger, positions: Tensor, read: ReadExamples, weight: float = 1.0) -> None:
        """Score examples with the model and the directions of this moment, out of training, into rows of a ledger."""
        directions = self.directions
        if not len(positions) or directions.psi is None:
            return
        scaling, gradients = copy(self.scaling), self.gradients
        with gradients.captured() as capture:
            for some in positions.split(gradients.batch_size):
                inputs, labels = read(some)
                found = gradients.of(inputs, labels, capture)
                groups = -(gradients.joined(found.gradients) @ directions.psi.T)
                at = some.to(groups.device)
                scores = held_out_scores(at, groups, found.losses, found.logits, labels, gradients.objective)
                remember(ledger, scaling, scores, directions.support, weight, self.help_weight)

    @property
    def indices(self) -> Indices | None:
        """Indices of the held-out examples in the data set they were split off; None where they are numbered apart."""
        dataset = self.bank.dataset
        return np.asarray(dataset.indices, dtype=np.int64) if isinstance(dataset, Part) else None

    def flags(self) -> Flags | None:
        """The same as one flag per index, up to the one after the largest, which stands for all beyond."""
        held = self.indices
        if held is None:
            return None
        flags = np.zeros(int(held.max()) + 2, dtype=np.bool_)
        flags[held] = True
        return flags
