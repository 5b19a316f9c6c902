"""The running size q of raw scores, and the squashing T tanh(u / T q) of one step's scores by it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator
from sgoif.scoring.outputs import alike, for_examples, per_step

SCALE_DECAY = 0.9
SETTLED = 200
"""Steps after which the correction for a short history is one in single precision."""
TINY = torch.finfo(torch.float32).tiny


class ScoreScaling:
    """Running scale q and the squashing of one step's scores."""

    def __init__(
        self, temperature: float | None, device: torch.device, communicator: Communicator = SINGLE_PROCESS
    ) -> None:
        self.temperature = temperature
        self._communicator = communicator
        self.mean = torch.zeros((), device=device)
        self.updates = 0
        self._mixings: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bound(self) -> float:
        """Largest size of a squashed score."""
        return self.temperature if self.temperature is not None else float("inf")

    def observe(self, raw: Tensor, sizes: Sequence[int]) -> Tensor:
        """Fold steps in, one after the other, and return q of the step for every example, [R]."""
        summed = per_step(torch.nan_to_num(raw, posinf=0, neginf=0).abs(), sizes)
        if self._communicator.size == 1 and alike(sizes):
            size = summed / sizes[0]
        else:
            counts = torch.tensor(sizes, dtype=torch.float32).to(raw.device, non_blocking=True)
            size = torch.div(*self._communicator.total(torch.stack([summed, counts])).unbind())
        old, new = self._mixing(len(sizes))
        means = new @ size + old * self.mean
        if self.updates < SETTLED:
            unbiased = 1 - SCALE_DECAY ** (self.updates + np.arange(1, len(sizes) + 1))
            q = means / torch.from_numpy(unbiased.astype(np.float32)).to(raw.device, non_blocking=True)
        else:
            q = means
        self.mean = means[-1]
        self.updates += len(sizes)
        return for_examples(q.clamp_min(TINY), sizes)

    def _mixing(self, steps: int) -> tuple[Tensor, Tensor]:
        """What the old mean [M] and the sizes of steps 0 … t [M, M] count for in the mean after step t, in row t."""
        if steps not in self._mixings:
            lag = np.subtract.outer(np.arange(steps), np.arange(steps))
            weights = np.where(lag >= 0, (1 - SCALE_DECAY) * SCALE_DECAY ** np.maximum(lag, 0), 0)
            old = SCALE_DECAY ** np.arange(1, steps + 1)
            tables = (torch.from_numpy(table.astype(np.float32)).to(self.mean.device) for table in (old, weights))
            self._mixings[steps] = next(tables), next(tables)
        return self._mixings[steps]

    def apply(self, raw: Tensor, q: Tensor) -> Tensor:
        """Scores [R, ...] in units of q [R], bent towards ±T."""
        if self.temperature is None:
            return raw
        return self.temperature * torch.tanh(raw / (self.temperature * q.view(-1, *[1] * (raw.dim() - 1))))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"].to(self.mean.device).clone()
        self.updates = int(state["updates"])
