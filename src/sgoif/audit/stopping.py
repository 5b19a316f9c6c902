"""When a run has told what it can tell.

Two things end a run early, both looked at after every epoch:

- **memorising.** The weight of a step (`step_weight` in `monitor.history`) says what a step's scores are worth:
  it rises while the model learns about held-out images and falls once it learns the training images by heart. The run
  stops when the weight has fallen at each of the last refreshes, is below half of its maximum, and the training loss is
  below half of the held-out loss. Steps after that would hardly count.
- **settled.** In the last part of the schedule, where the learning rate falls, the most harmful examples are compared
  with those of the epoch before. The run stops when the two sets have agreed for several epochs in a row.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

FALLS = 3
"""Refreshes in a row at which the weight has to fall."""
KNOWS = 0.05
"""A weight that was never above this says that the model has not learned anything yet, not that it memorises."""
FINAL_PHASE = 0.7
"""Part of the schedule after which the ranking may settle."""
TOP_SHARE, TOP_LEAST = 0.05, 20
AGREEMENT, EPOCHS_AGREEING = 0.98, 3


def memorises(history: Sequence[Mapping[str, float]]) -> bool:
    """Whether the weight of a step has fallen for good."""
    weights = [entry["step_weight"] for entry in history]
    if len(weights) <= FALLS or max(weights) < KNOWS:
        return False
    last = weights[-FALLS - 1 :]
    falling = all(after < before for before, after in pairwise(last))
    apart = history[-1]["train_loss"] < history[-1]["anchor_loss"] / 2
    return falling and last[-1] < max(weights) / 2 and apart


def most_harmful(influence: NDArray[Any]) -> NDArray[np.int64]:
    """Rows of the most harmful twentieth, at least 20, sorted."""
    known = np.nan_to_num(influence, nan=-np.inf)
    count = min(len(known), max(TOP_LEAST, round(TOP_SHARE * len(known))))
    return np.sort(np.argsort(-known, kind="stable")[:count])


class EarlyStop:
    """Remembers the last ranking; `after_epoch` says why to stop, or nothing."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.top: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.agreeing = 0

    def after_epoch(self, step: int, history: Sequence[Mapping[str, float]], influence: NDArray[Any]) -> str:
        """The reason to stop after `step` steps, or an empty text."""
        if step >= self.steps:
            return ""
        top = most_harmful(influence)
        agreement = len(np.intersect1d(top, self.top)) / len(top)
        late = step >= FINAL_PHASE * self.steps
        self.agreeing = self.agreeing + 1 if late and agreement >= AGREEMENT else 0
        self.top = top
        if memorises(history):
            return "memorising"
        return "settled" if self.agreeing >= EPOCHS_AGREEING else ""

    def state_dict(self) -> dict[str, Any]:
        return {"top": torch.from_numpy(self.top), "agreeing": self.agreeing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.top, self.agreeing = state["top"].numpy(), int(state["agreeing"])
