"""The examples that a removal is judged by: held out from training, or, where there are none, training examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sgoif.tasks.unlearning.head import HeadData

MOST = 2000
"""Training examples that stand in for held-out ones."""
LEAST = 2


@dataclass(frozen=True)
class Queries:
    """Examples with labels, in the form of the head's data."""

    data: HeadData
    ids: list[str] | None = None
    """Their names where they are training examples; None where they were held out."""

    @classmethod
    def of_training(cls, data: HeadData, ids: Sequence[str]) -> Queries:
        """Training examples, spread over the data."""
        rows = torch.linspace(0, len(data) - 1, min(len(data), MOST)).round().long().unique()
        return cls(data.take(rows.to(data.device)), [ids[row] for row in rows.tolist()])

    def __len__(self) -> int:
        return len(self.data)

    @property
    def kind(self) -> str:
        """What to call them."""
        return "held-out" if self.ids is None else "training"

    def without(self, ids: Iterable[str]) -> Queries:
        """Those that are left when these are deleted."""
        gone = set(ids)
        if self.ids is None or not gone.intersection(self.ids):
            return self
        rows = [row for row, name in enumerate(self.ids) if name not in gone]
        return Queries(self.data.take(torch.tensor(rows, device=self.data.device)), [self.ids[row] for row in rows])

    @cached_property
    def typical(self) -> float:
        """Median of ‖ã‖."""
        return float(self.data.norms().median())
