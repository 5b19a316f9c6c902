"""Scores of the held-out examples themselves, and where they stand in the data set."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from torch import Tensor

from sgoif.anchors.bank import AnchorBank
from sgoif.anchors.gradients import ExampleGradients
from sgoif.core.data import Part
from sgoif.core.interrupts import guarded
from sgoif.core.precision import full_precision
from sgoif.core.types import Flags, Indices
from sgoif.engine.group_directions import GroupDirections
from sgoif.scoring.influence import held_out_scores, remember
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

    def score_bank(self, gradient: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Scores for the anchors, each with its own contribution left out."""
        bank, directions = self.bank, self.directions
        assert directions.psi is not None
        own = bank.own_scores(directions.psi, gradient)
        objective = self.gradients.objective
        scores = held_out_scores(bank.member_positions, own, losses, logits, bank.member_labels, objective)
        remember(self.ledger, self.scaling, scores, directions.support, self.step_weight.factor, self.help_weight)

    def record(self) -> Ledger:
        """The ledger with one score for every held-out example that was never an anchor; the run is unchanged."""
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
