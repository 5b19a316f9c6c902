"""What is remembered about every example: running weighted sums, in at most 256 bytes.

With ω the weight of a step and x the (squashed) score of an example in it, the ledger keeps Σω, Σω², Σωx, Σωx², the
same for confidence, margins, loss and the solver's error bound, and the mean score per group. Up to 64 groups have a
column each; beyond that every example keeps the groups that harmed it most so far in a few slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sgoif.errors import IndexingError, SettingError, StateError

SUMS = ("count", "weight", "weight2", "score", "score2", "support", "margin", "logit_margin", "loss", "bound")
DENSE_GROUPS = 64
FLOAT_GROUPS = 32
SLOTS = 12
LARGEST_INDEX = 2**31 - 1
WEIGHT = SUMS.index("weight")
TINY = torch.finfo(torch.float32).tiny
HALF = torch.finfo(torch.float16).max


class Ledger:
    """Growing table of per-example sums on one device; `duplicates` says that a batch may name an example twice."""

    def __init__(self, groups: int, device: torch.device, size: int | None = None, *, duplicates: bool = False) -> None:
        if size is not None and not 1 <= size <= LARGEST_INDEX:
            raise SettingError(f"size={size!r} is not valid: expected the number of training examples, or None")
        self.groups = groups
        self.duplicates = duplicates
        self.device = device
        self.fixed_size = size
        self._factor: tuple[float, Tensor] | None = None
        self.used = size or 0
        """Rows that count: the known size, or one more than the largest index seen."""
        capacity = size or 0
        self.sums = torch.zeros(capacity, len(SUMS), device=device)
        self.dense = groups <= DENSE_GROUPS
        width = groups if self.dense else SLOTS
        dtype = torch.float16 if FLOAT_GROUPS < groups <= DENSE_GROUPS else torch.float32
        self.group_mean = torch.zeros(capacity, width, device=device, dtype=dtype)
        self.group_slot = torch.full((0 if self.dense else capacity, width), -1, device=device, dtype=torch.int32)

    @property
    def bytes_per_example(self) -> int:
        slots = 0 if self.dense else self.group_slot.shape[1] * self.group_slot.element_size()
        return (
            self.sums.shape[1] * self.sums.element_size()
            + self.group_mean.shape[1] * self.group_mean.element_size()
            + slots
        )

    def reserve(self, largest: int) -> None:
        """Make room for an index; grows by half so that a run copies little."""
        if self.fixed_size is not None and largest >= self.fixed_size:
            raise IndexingError(f"index {largest} is out of range: the training set was said to have {self.fixed_size}")
        if largest > LARGEST_INDEX:
            raise IndexingError(f"index {largest} is out of range; indices count examples from 0")
        if largest >= len(self.sums):
            self._grow(max(largest + 1, len(self.sums) * 3 // 2, 1024))
        self.used = max(self.used, largest + 1)

    def _grow(self, capacity: int) -> None:
        try:
            # All parts are made before any is kept, so that running out of memory leaves the ledger whole.
            grown = [
                _grown(self.sums, capacity, 0),
                _grown(self.group_mean, capacity, 0),
                self.group_slot if self.dense else _grown(self.group_slot, capacity, -1),
            ]
        except (RuntimeError, MemoryError) as error:
            raise IndexingError(
                f"index {capacity - 1} is out of range: {capacity} examples of {self.bytes_per_example} bytes do not"
                " fit the memory. Indices must count examples from 0; do not use hashes or file numbers"
            ) from error
        self.sums, self.group_mean, self.group_slot = grown

    def add(self, index: Tensor, values: Tensor, groups: Tensor, valid: Tensor, weight: float) -> None:
        """Fold in one observation per entry of `index` [B], with the weight of its step.

        `values` is [B, 6]: score, support, margin, logit margin, loss, bound. `groups` is [B, G]. Entries that are not
        `valid` [B] leave no trace. Few operations on purpose: on a GPU every one of them is a launch per step.
        """
        score = values[:, 0]
        one = torch.ones_like(score)
        columns = torch.stack([one, one, one, score, score * score, *values.unbind(1)[1:]], dim=1)
        self.sums.index_add_(0, index, torch.where(valid.unsqueeze(1), columns * self._factors(weight), 0))
        # A first observation has rate ω/ω = 1 and simply sets the mean.
        rate = (weight * valid / self.sums[index, WEIGHT].clamp_min(TINY)).unsqueeze(1)
        groups = torch.nan_to_num(groups)
        if self.duplicates:
            index, groups, rate = _merged(index, groups, rate)
        if self.dense:
            mean = self.group_mean[index]
            mixed = torch.lerp(mean.float(), groups, rate)
            self.group_mean[index] = mixed.clamp(-HALF, HALF).half() if mean.dtype == torch.float16 else mixed
        else:
            self._add_slots(index, groups, rate)

    def _factors(self, weight: float) -> Tensor:
        """1, ω, ω², ω, ω, …: what each column is multiplied with; kept, since ω changes only at a refresh."""
        if self._factor is None or self._factor[0] != weight:
            row = [1.0, weight, weight * weight] + [weight] * (len(SUMS) - 3)
            self._factor = weight, torch.tensor(row, device=self.device)
        return self._factor[1]

    def _add_slots(self, index: Tensor, groups: Tensor, rate: Tensor) -> None:
        """Running means of the groups in an example's slots; a new worst group takes the least harmful slot."""
        slot, mean = self.group_slot[index].long(), self.group_mean[index]
        held = slot >= 0
        seen = groups.gather(1, slot.clamp_min(0))
        mean = torch.where(held, mean + rate * (seen - mean), mean)
        value, candidate = groups.topk(2, dim=1)
        for k in range(2):
            new, group = value[:, k : k + 1] * rate, candidate[:, k : k + 1]
            known = (slot == group).any(1, keepdim=True)
            ranked = torch.where(slot >= 0, mean, float("-inf"))
            least, place = ranked.min(1, keepdim=True)
            take = ~known & (new > least) & (rate > 0)
            slot = slot.scatter(1, place, torch.where(take, group, slot.gather(1, place)))
            mean = mean.scatter(1, place, torch.where(take, new, mean.gather(1, place)))
        self.group_slot[index] = slot.int()
        self.group_mean[index] = mean

    def column(self, name: str) -> Tensor:
        """One sum for every index below `used`."""
        return self.sums[: self.used, SUMS.index(name)]

    def mean(self, name: str) -> Tensor:
        """Weighted mean of a quantity, nan where an example was never observed."""
        weight = self.column("weight")
        return torch.where(weight > 0, self.column(name) / weight.clamp_min(torch.finfo(weight.dtype).tiny), torch.nan)

    def worst_group(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Most harmed group of these examples (all without `rows`) and its mean score; −1 where there is none."""
        chosen: Tensor | slice = slice(self.used) if rows is None else rows
        mean = self.group_mean[chosen].float()
        observed = self.sums[chosen, SUMS.index("weight")] > 0
        if self.dense:
            value, group = mean.max(1)
        else:
            slot = self.group_slot[chosen]
            value, place = torch.where(slot >= 0, mean, float("-inf")).max(1)
            group = slot.gather(1, place.unsqueeze(1)).squeeze(1).long()
        return torch.where(observed, group, -1), torch.where(observed & (group >= 0), value, torch.nan)

    def variance(self) -> Tensor:
        """Weighted variance of the scores of every example, corrected for the number of observations."""
        mean = self.mean("score")
        effective = self.effective_count()
        spread = (self.mean("score2") - mean * mean).clamp_min(0)
        return torch.where(effective > 1, spread * effective / (effective - 1).clamp_min(1e-6), torch.nan)

    def effective_count(self) -> Tensor:
        """(Σω)² / Σω²: how many equally weighted observations the weighted ones are worth."""
        weight, square = self.column("weight"), self.column("weight2")
        return torch.where(weight > 0, weight * weight / square.clamp_min(torch.finfo(weight.dtype).tiny), 0)

    def state_dict(self) -> dict[str, Any]:
        state = {"sums": self.sums[: self.used], "group_mean": self.group_mean[: self.used]}
        if not self.dense:
            state["group_slot"] = self.group_slot[: self.used]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["sums"].shape[1:] != self.sums.shape[1:] or state["group_mean"].shape[1:] != self.group_mean.shape[1:]:
            raise StateError("the saved ledger has another number of groups or columns than this monitor")
        used = len(state["sums"])
        if any(len(rows) != used for rows in state.values()):
            raise StateError("the saved ledger is damaged: its columns differ in length")
        if self.fixed_size is not None and used > self.fixed_size:
            raise StateError(
                f"the saved ledger has {used} examples, this monitor was made with size={self.fixed_size}; resume with"
                " the same training set"
            )
        if self.fixed_size is None:
            self.used = 0
        if used:
            self.reserve(used - 1)
        self.sums.zero_()[:used] = state["sums"].to(self.device)
        self.group_mean.zero_()[:used] = state["group_mean"].to(self.device)
        if not self.dense:
            self.group_slot.fill_(-1)[:used] = state["group_slot"].to(self.device)


def _merged(index: Tensor, groups: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The observations of one example within a batch as one: the rates add up, the groups are their mean."""
    index, same = torch.unique(index, return_inverse=True)
    total = rate.new_zeros(len(index), 1).index_add_(0, same, rate)
    parts = groups.new_zeros(len(index), groups.shape[1]).index_add_(0, same, rate * groups)
    return index, parts / total.clamp_min(TINY), total


def _grown(tensor: Tensor, capacity: int, fill: float) -> Tensor:
    shape = (capacity, tensor.shape[1])
    # Zeros are handed out by the system without touching the memory; a filled tensor is not.
    grown = torch.zeros(shape, device=tensor.device, dtype=tensor.dtype)
    if fill:
        grown.fill_(fill)
    grown[: len(tensor)] = tensor
    return grown
