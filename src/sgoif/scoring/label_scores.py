"""Scores of every (example, label): with several labels per example each of them is a question of two classes.

The influence that an example has through the head splits exactly over the rows of the head, one per label,

    s_igk = −Σ_t δ_itk (ψ_g a_it)_k        Σ_k s_igk = s_ig,

so what is remembered of example i and label k is that of an example of its own, under the index i L + k, in 52 bytes.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from sgoif.core.logits import two_classes
from sgoif.core.objective import Classification
from sgoif.curvature.base import Factors
from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator
from sgoif.errors import SettingError
from sgoif.scoring.influence import StepScores, remember
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.score_scaling import ScoreScaling

MOST_LABELS = 64
"""Labels per example up to which each has scores of its own."""
PRESENCE = Classification(2)
"""Whether a label is there."""


class LabelScores:
    """The ledger and the scale of scores by label, of training examples or of held-out ones."""

    def __init__(
        self,
        labels: int,
        groups: int,
        device: torch.device,
        size: int | None,
        temperature: float | None,
        communicator: Communicator = SINGLE_PROCESS,
        *,
        duplicates: bool = False,
    ) -> None:
        self.labels = labels
        whole = None if size is None else size * labels
        self.ledger = Ledger(groups, 2, device, whole, duplicates=duplicates)
        self.scaling = ScoreScaling(temperature, device, communicator)

    def reserve(self, largest: int) -> None:
        """Make room for an example."""
        if self.ledger.fixed_size is None:
            self.ledger.reserve((largest + 1) * self.labels - 1)

    def remember(
        self,
        index: Tensor,
        scores: Tensor,
        z: Tensor,
        targets: Tensor,
        support: Tensor,
        weight: float,
        help_weight: float,
        sizes: Sequence[int],
    ) -> None:
        """Fold in the scores [B, L, G] of some examples whose logits and labels these are, [B, L]."""
        many, scaling = self.labels, copy(self.scaling)
        rows = (index.unsqueeze(1) * many + torch.arange(many, device=index.device)).flatten()
        seen = PRESENCE.columns(two_classes(z.float().flatten()), targets.round().long().flatten())
        groups = scores.flatten(0, 1)
        found = StepScores.of(rows, groups.sum(1), groups, seen.surprise, seen)
        remember(self.ledger, scaling, found, support, weight, help_weight, sizes=[size * many for size in sizes])
        self.scaling.mean, self.scaling.updates = scaling.mean, scaling.updates

    def of(self, label: int, ledger: Ledger | None = None) -> Ledger:
        """What is remembered about one label of every example."""
        return (ledger or self.ledger).every(self.labels, label)


def check_label(labels: LabelScores | None, label: Any) -> LabelScores:
    """The scores by label; raises where there are none, or not of this one."""
    if labels is None:
        raise SettingError(
            f"label={label!r} asks for the scores of one label, and there are none: they are kept where examples have"
            f" several labels, up to {MOST_LABELS}, with loss=nn.BCEWithLogitsLoss() and one output of the head each"
        )
    if not isinstance(label, int) or not 0 <= label < labels.labels:
        raise SettingError(f"label={label!r} is not valid: expected a number from 0 to {labels.labels - 1}")
    return labels


def scores_by_row(factors: Factors, directions: Tensor) -> Tensor:
    """ψ_gᵀ g_i of a layer by its rows, [B, L, G], for directions [G, L, cols]."""
    response = torch.einsum("btc,grc->btrg", factors.inputs, directions)
    return (response * factors.delta.unsqueeze(-1)).sum(1)
