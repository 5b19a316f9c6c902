"""The influence of every example on the hold-out, as it was when the hold-out joined the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence, Rows


@dataclass(frozen=True)
class InfluenceSnapshot:
    """Influences, half-widths and parts by group: a hold-out that is trained on says no more about influence."""

    index: Labels
    influence: Array
    width: Array
    groups: Rows

    @classmethod
    def of(cls, evidence: Evidence, width: Array) -> InfluenceSnapshot:
        """Those of some examples, in the order of their indices."""
        return cls(evidence.index, evidence.influence, width, evidence.groups)

    def put_into(self, evidence: Evidence) -> tuple[Evidence, Array]:
        """What is known of the same examples now, with influences as they were; and their half-widths."""
        evidence = evidence.take(np.flatnonzero(np.isin(evidence.index, self.index)))
        at = np.searchsorted(self.index, evidence.index)
        return replace(evidence, influence=self.influence[at], groups=self.groups.take(at)), self.width[at]

    def state_dict(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        parts = {"index": self.index, "influence": self.influence, "width": self.width, "groups": self.groups.mean}
        if self.groups.slots is not None:
            parts["slots"] = self.groups.slots
        return {name: torch.from_numpy(part.copy()) for name, part in parts.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> InfluenceSnapshot:
        """What `state_dict` gave."""
        part = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        return cls(part["index"], part["influence"], part["width"], Rows(part["groups"], part.get("slots")))
