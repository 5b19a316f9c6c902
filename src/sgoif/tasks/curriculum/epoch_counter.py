"""How often a training run has gone through its data, seen from the indices of its batches."""

from typing import Any, Self

import numpy as np
import torch

from sgoif.core.types import Indices


class EpochCounter:
    """Counts examples, all and different ones; an epoch is as many as there are different ones.

    During the first epoch nobody knows how many there will be: it has ended when an example comes back.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.different = 0
        self.judged = -1
        """Examples that had come up at the last judgement; −1: there was none."""
        self.size = 0
        """One more than the largest index."""
        self._known = np.zeros(0, dtype=np.bool_)

    @property
    def epochs(self) -> float:
        """Epochs so far; 0 during the first."""
        return self.asked / self.different if self.asked > self.different else 0.0

    def is_due(self, indices: Indices, warm_up: float, every: float) -> bool:
        """Whether it is time to judge, with these examples coming next."""
        if self.asked == self.different and not self._known[indices[indices < self.size]].any():
            return False
        if self.asked < warm_up * self.different:
            return False
        return self.judged < 0 or self.asked - self.judged >= every * self.different

    def mark_judgement(self) -> None:
        """Take note of a judgement."""
        self.judged = self.asked

    def add(self, indices: Indices) -> None:
        """Take note of examples that come up."""
        self.size = max(self.size, int(indices.max(initial=-1)) + 1)
        if self.size > len(self._known):
            more = max(self.size, 3 * len(self._known) // 2) - len(self._known)
            self._known = np.concatenate([self._known, np.zeros(more, dtype=np.bool_)])
        if self.different < self.size:
            fresh = indices[~self._known[indices]]
            self.different += len(np.unique(fresh))
            self._known[fresh] = True
        self.asked += len(indices)

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "judged": self.judged, "known": torch.from_numpy(self._known[: self.size].copy())}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The counts that `state_dict` gave."""
        passes = cls()
        passes._known = state["known"].cpu().numpy().astype(np.bool_)
        passes.asked, passes.judged = int(state["asked"]), int(state["judged"])
        passes.different, passes.size = int(passes._known.sum()), len(passes._known)
        return passes
