"""How much more the two halves of a run differ than independent observations would.

An example's scores in successive epochs resemble each other, most where inputs come back unchanged, so a mean of m of
them varies more than V/m. With x̄₁ and x̄₂ its means before and after a moment near the middle of the run,

    R = max(1, mean_i (x̄₁ − x̄₂)² / mean_i V_i (1/m₁ + 1/m₂))

over a sample of examples is by how much. Sums are noted at steps that double, and the last two notes are kept: one of
them always lies between a third and two thirds of the run.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from sgoif.distributed.communicator import Communicator
from sgoif.errors import StateError

SAMPLE = 4096
"""Examples whose sums are noted: every k-th."""
LEAST = 30
"""Examples with scores in both halves, below which nothing is said."""
COLUMNS = ("weight", "weight2", "score")
LATEST = 2 / 3
"""Share of the run after which a note is too late to be its middle."""


class Sums(Protocol):
    """What is asked of a ledger."""

    used: int

    def column(self, name: str) -> Tensor: ...

    def variance(self) -> Tensor: ...


class Autocorrelation:
    """Notes of what a ledger held at two moments."""

    def __init__(self, device: torch.device) -> None:
        self.count = 0
        """Steps that the ledger has seen."""
        self.steps = [0, 0]
        self.strides = [1, 1]
        self.sums = torch.zeros(2, SAMPLE, len(COLUMNS), device=device)

    def observe(self, ledger: Sums, steps: int) -> None:
        """So many more steps were folded in: note the sums if the run is twice as long as at the last note."""
        self.count += steps
        if self.count < max(1, 2 * self.steps[1]):
            return
        stride = max(1, -(-ledger.used // SAMPLE))
        now = _columns(ledger, stride)
        self.steps, self.strides = [self.steps[1], self.count], [self.strides[1], stride]
        self.sums = torch.stack([self.sums[1], torch.zeros_like(self.sums[1])])
        self.sums[1, : len(now)] = now

    def ratio(self, ledger: Sums) -> float:
        """R of the ledger as it is now; 1 where too little is known."""
        which = 1 if self.steps[1] <= LATEST * self.count else 0
        stride = self.strides[which]
        if not self.steps[which] or not ledger.used:
            return 1.0
        now = _columns(ledger, stride)
        first = self.sums[which, : len(now)]
        variance = ledger.variance()[::stride][: len(now)]
        return dependence_ratio(first, now - first, variance)

    def merged(self, communicator: Communicator) -> Autocorrelation:
        """The notes of all ranks together, which were made at the same steps."""
        whole = Autocorrelation(self.sums.device)
        whole.count, whole.steps, whole.strides = self.count, list(self.steps), list(self.strides)
        whole.sums = communicator.total(self.sums)
        return whole

    def forget(self) -> None:
        """Nothing was noted."""
        self.sums.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"moments": torch.tensor([self.count, *self.steps, *self.strides]), "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        moments, sums = state.get("moments"), state.get("sums")
        if not isinstance(moments, Tensor) or not isinstance(sums, Tensor) or sums.shape != self.sums.shape:
            raise StateError("the saved ledger is damaged: its notes of the halves are missing or have another shape")
        count, earlier, later, first, second = (int(number) for number in moments)
        if not 0 <= earlier <= later <= count or min(first, second) < 1:
            raise StateError("the saved ledger is damaged: its notes of the halves are not in order")
        self.count, self.steps, self.strides = count, [earlier, later], [first, second]
        self.sums = sums.to(self.sums.device).clone()


def dependence_ratio(first: Tensor, second: Tensor, variance: Tensor) -> float:
    """R from the sums Σω, Σω², Σωx [n, 3] of both halves and the variances [n] of some examples."""
    known = (first[:, 1] > 0) & (second[:, 1] > 0) & torch.isfinite(variance)
    if int(known.sum()) < LEAST:
        return 1.0
    first, second, variance = first[known].double(), second[known].double(), variance[known].double()
    apart = first[:, 2] / first[:, 0] - second[:, 2] / second[:, 0]
    expected = variance * (first[:, 1] / first[:, 0].square() + second[:, 1] / second[:, 0].square())
    return max(1.0, float(apart.square().mean() / expected.mean().clamp_min(torch.finfo(torch.float64).tiny)))


def _columns(ledger: Sums, stride: int) -> Tensor:
    return torch.stack([ledger.column(name)[::stride][:SAMPLE] for name in COLUMNS], dim=1)
