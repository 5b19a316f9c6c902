"""A row of running means for every example, in single or half precision, or only the largest of many."""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.distributed.communicator import Communicator

TINY = torch.finfo(torch.float32).tiny
HALF = torch.finfo(torch.float16).max


class MeanRows:
    """A row of running means for every example: a column each while there are few, else slots for the largest."""

    def __init__(
        self, columns: int, *, dense: int, single: int, slots: int, capacity: int, device: torch.device
    ) -> None:
        self.columns = columns
        self.dense = columns <= dense
        width = columns if self.dense else slots
        dtype = torch.float16 if single < columns <= dense else torch.float32
        self.mean = torch.zeros(capacity, width, device=device, dtype=dtype)
        self.slot = torch.full((0 if self.dense else capacity, width), -1, device=device, dtype=torch.int32)

    @property
    def bytes_per_example(self) -> int:
        slots = 0 if self.dense else self.slot.shape[1] * self.slot.element_size()
        return self.mean.shape[1] * self.mean.element_size() + slots

    def enlarged(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Means and slots with room for more examples; the row itself is unchanged."""
        return grown(self.mean, capacity, 0), self.slot if self.dense else grown(self.slot, capacity, -1)

    def add(self, index: Tensor, values: Tensor, rate: Tensor) -> None:
        """Move the means of some examples towards `values` [B, columns] at a rate [B, 1]."""
        if not self.columns:
            return
        if not self.dense:
            self._add_slots(index, values, rate)
            return
        mixed = torch.lerp(self.mean.index_select(0, index).float(), values, rate)
        if self.mean.dtype == torch.float16:
            mixed = mixed.clamp_(-HALF, HALF).half()
        self.mean.index_copy_(0, index, mixed)

    def _add_slots(self, index: Tensor, values: Tensor, rate: Tensor) -> None:
        """Running means of the columns in an example's slots; a new largest one takes the least slot."""
        slot, mean = self.slot[index].long(), self.mean[index]
        held = slot >= 0
        seen = values.gather(1, slot.clamp_min(0))
        mean = torch.where(held, mean + rate * (seen - mean), mean)
        value, candidate = values.topk(2, dim=1)
        for k in range(2):
            new, column = value[:, k : k + 1] * rate, candidate[:, k : k + 1]
            known = (slot == column).any(1, keepdim=True)
            ranked = torch.where(slot >= 0, mean, float("-inf"))
            least, place = ranked.min(1, keepdim=True)
            take = ~known & (new > least) & (rate > 0)
            slot = slot.scatter(1, place, torch.where(take, column, slot.gather(1, place)))
            mean = mean.scatter(1, place, torch.where(take, new, mean.gather(1, place)))
        self.slot[index] = slot.int()
        self.mean[index] = mean

    def merge(self, whole: MeanRows, rows: slice, share: Tensor, communicator: Communicator) -> None:
        """Write the means of all ranks into `whole`; `share` [R, 1] is this rank's part of an example's weight."""
        if not self.columns:
            return
        mean = self.mean[rows].float() * share
        if self.dense:
            whole.mean[rows] = communicator.total(mean).to(whole.mean.dtype)
            return
        # Slots of the ranks side by side: those of one column are added, and the largest kept.
        width = mean.shape[1]
        means = communicator.gathered(mean.unsqueeze(0)).transpose(0, 1).flatten(1)
        slots = communicator.gathered(self.slot[rows].unsqueeze(0)).transpose(0, 1).flatten(1)
        same = (slots.unsqueeze(1) == slots.unsqueeze(2)) & (slots >= 0).unsqueeze(1)
        added = (same * means.unsqueeze(1)).sum(2)
        repeated = torch.tril(same, diagonal=-1).any(2)
        ranked = torch.where((slots >= 0) & ~repeated, added, float("-inf"))
        value, place = ranked.topk(width, dim=1)
        kept = value > float("-inf")
        whole.mean[rows] = torch.where(kept, value, 0)
        whole.slot[rows] = torch.where(kept, slots.gather(1, place), -1)

    def largest(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The largest mean of these examples and its column, −1 where there is none."""
        mean = self.mean[rows].float()
        if self.dense:
            value, column = mean.max(1)
            return value, column
        slot = self.slot[rows]
        value, place = torch.where(slot >= 0, mean, float("-inf")).max(1)
        return value, slot.gather(1, place.unsqueeze(1)).squeeze(1).long()


def grown(tensor: Tensor, capacity: int, fill: float) -> Tensor:
    """A copy with room for more rows, filled with a number."""
    shape = (capacity, *tensor.shape[1:])
    # Zeros are handed out by the system without touching the memory; a filled tensor is not.
    larger = torch.zeros(shape, device=tensor.device, dtype=tensor.dtype)
    if fill:
        larger.fill_(fill)
    larger[: len(tensor)] = tensor
    return larger
