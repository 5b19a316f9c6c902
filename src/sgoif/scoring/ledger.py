"""What is remembered about every example: running weighted sums, in at most 256 bytes.

With ω the weight of a step and x the (squashed) score of an example in it, the ledger keeps Σω, Σω², Σωx, Σωx², the
same for confidence, margins, loss and the solver's error bound, the label, and two rows of means: the score per group
and the probability per class. Few groups or classes have a column each; of many, every example keeps the largest so far
in a few slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sgoif.core.serialization import nest, unnest
from sgoif.distributed.communicator import Communicator
from sgoif.errors import IndexingError, SettingError, StateError
from sgoif.scoring.autocorrelation import Autocorrelation
from sgoif.scoring.running_means import TINY, MeanRows, grown

SUMS = ("count", "weight", "weight2", "score", "score2", "support", "margin", "logit_margin", "loss", "bound")
DENSE_GROUPS, FLOAT_GROUPS = 64, 32
DENSE_CLASSES, FLOAT_CLASSES = 40, 0
"""Up to how many groups and classes have a column each, and up to how many of them in single precision."""
GROUP_SLOTS, CLASS_SLOTS = 12, 8
LARGEST_INDEX = 2**31 - 1
UNKNOWN = {"label": -1, "group_slots": -1, "class_slots": -1}
"""What the parts of a row hold before an example was seen, where that is not 0."""
MERGED_AT_ONCE = 2**16
"""Examples whose rows are exchanged between ranks at a time."""
WEIGHT = SUMS.index("weight")


class Ledger:
    """Growing table of per-example sums on one device; `duplicates` says that a batch may name an example twice."""

    def __init__(
        self, groups: int, classes: int, device: torch.device, size: int | None = None, *, duplicates: bool = False
    ) -> None:
        if size is not None and not 1 <= size <= LARGEST_INDEX:
            raise SettingError(f"size={size!r} is not valid: expected the number of training examples, or None")
        self.duplicates = duplicates
        self.device = device
        self.fixed_size = size
        self._weight: float | None = None
        self._powers = torch.tensor([0, 1, 2] + [1] * (len(SUMS) - 3), device=device)
        """Of a weight, in each column."""
        self._factors = torch.ones(len(SUMS), device=device)
        self.used = size or 0
        """Rows that count: the known size, or one more than the largest index seen."""
        capacity = size or 0
        self.sums = torch.zeros(capacity, len(SUMS), device=device)
        self.label = torch.full((capacity,), -1, device=device, dtype=torch.int32)
        """Label of every example when it was last seen, −1 before."""
        self.groups = MeanRows(
            groups, dense=DENSE_GROUPS, single=FLOAT_GROUPS, slots=GROUP_SLOTS, capacity=capacity, device=device
        )
        """Mean score of every example per group, of the watched head."""
        self.classes = MeanRows(
            classes, dense=DENSE_CLASSES, single=FLOAT_CLASSES, slots=CLASS_SLOTS, capacity=capacity, device=device
        )
        """Mean probability of every class for every example, as training saw it."""
        self.autocorrelation = Autocorrelation(device)

    def blank(self) -> Ledger:
        """An empty ledger of the same layout."""
        columns = self.groups.columns, self.classes.columns
        return Ledger(*columns, self.device, self.fixed_size, duplicates=self.duplicates)

    def copy(self) -> Ledger:
        """The same, with memory of its own."""
        ledger = self.blank()
        ledger.load_state_dict(self.state_dict())
        return ledger

    @property
    def bytes_per_example(self) -> int:
        own = self.sums.shape[1] * self.sums.element_size() + self.label.element_size()
        return own + self.groups.bytes_per_example + self.classes.bytes_per_example

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
            sums, label = grown(self.sums, capacity, 0), grown(self.label, capacity, -1)
            groups, classes = self.groups.enlarged(capacity), self.classes.enlarged(capacity)
        except (RuntimeError, MemoryError) as error:
            raise IndexingError(
                f"index {capacity - 1} is out of range: {capacity} examples of {self.bytes_per_example} bytes do not"
                " fit the memory. Indices must count examples from 0; do not use hashes or file numbers"
            ) from error
        self.sums, self.label = sums, label
        (self.groups.mean, self.groups.slot), (self.classes.mean, self.classes.slot) = groups, classes

    def add(
        self,
        index: Tensor,
        values: Tensor,
        groups: Tensor,
        probabilities: Tensor,
        label: Tensor,
        valid: Tensor,
        weight: float,
        share: Tensor | None = None,
    ) -> None:
        """Fold in one observation per entry of `index` [B], with the weight of its step, or a `share` [B] of it.

        `values` is [B, 6]: score, support, margin, logit margin, loss, bound. `groups` is [B, G], `probabilities`
        [B, C]. Entries that are not `valid` [B] leave no trace.
        """
        score = values[:, 0]
        one = torch.ones_like(score)
        columns = torch.stack([one, one, one, score, score * score, *values.unbind(1)[1:]], dim=1)
        factors = self.weigh(weight)
        if share is not None:
            factors = factors * share.unsqueeze(1) ** self._powers
        self.sums.index_add_(0, index, torch.where(valid.unsqueeze(1), columns * factors, 0))
        # A first observation has rate ω/ω = 1 and simply sets the mean.
        rate = (factors[..., WEIGHT] * valid / self.sums[index, WEIGHT].clamp_min(TINY)).unsqueeze(1)
        self.label.index_copy_(0, index, torch.where(valid, label.int(), self.label.index_select(0, index)))
        for rows, means in ((self.groups, groups), (self.classes, probabilities)):
            means = torch.nan_to_num(means)
            rows.add(*(_merged(index, means, rate) if self.duplicates else (index, means, rate)))

    def weigh(self, weight: float) -> Tensor:
        """1, ω, ω², ω, ω, …: what each column is multiplied with; kept in one place, as ω changes only at a refresh."""
        if self._weight != weight:
            row = [1.0, weight, weight * weight] + [weight] * (len(SUMS) - 3)
            self._factors.copy_(torch.tensor(row))
            self._weight = weight
        return self._factors

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
        observed = self.sums[chosen, WEIGHT] > 0
        value, group = self.groups.largest(chosen)
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

    def _parts(self) -> dict[str, Tensor]:
        """Every tensor with a row per example."""
        parts = {"sums": self.sums, "label": self.label, "groups": self.groups.mean, "classes": self.classes.mean}
        slots = {"group_slots": self.groups, "class_slots": self.classes}
        return parts | {name: rows.slot for name, rows in slots.items() if not rows.dense}

    def every(self, step: int, first: int) -> Ledger:
        """A ledger of its own of every so many rows, from the first one on."""
        size = None if self.fixed_size is None else self.fixed_size // step
        part = Ledger(self.groups.columns, self.classes.columns, self.device, size, duplicates=self.duplicates)
        if self.used:
            part.reserve(self.used // step - 1)
        for name, rows in part._parts().items():
            rows[: part.used] = self._parts()[name][first : self.used : step]
        return part

    def state_dict(self) -> dict[str, Any]:
        return {name: part[: self.used] for name, part in self._parts().items()} | nest(
            "autocorrelation", self.autocorrelation.state_dict()
        )

    def forget(self) -> None:
        """Nothing is known about any example; the number of them stays."""
        for name, part in self._parts().items():
            part.fill_(UNKNOWN.get(name, 0))
        self.autocorrelation.forget()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine, notes = self._parts(), unnest("autocorrelation", state)
        state = {name: value for name, value in state.items() if not name.startswith("autocorrelation.")}
        if set(state) != set(mine) or any(state[name].shape[1:] != part.shape[1:] for name, part in mine.items()):
            raise StateError("the saved ledger has another number of groups, classes or columns than this monitor")
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
        self.forget()
        for name, part in self._parts().items():
            part[:used] = state[name].to(self.device)
        self.autocorrelation.load_state_dict(notes)


def merged(ledger: Ledger, communicator: Communicator) -> Ledger:
    """The ledgers of all ranks as one: sums are added, means weighed by what stands behind them."""
    whole = ledger.blank()
    if not ledger.used:
        return whole
    whole.reserve(ledger.used - 1)
    whole.autocorrelation = ledger.autocorrelation.merged(communicator)
    for start in range(0, ledger.used, MERGED_AT_ONCE):
        rows = slice(start, min(start + MERGED_AT_ONCE, ledger.used))
        sums = communicator.total(ledger.sums[rows])
        whole.sums[rows] = sums
        share = (ledger.sums[rows, WEIGHT] / sums[:, WEIGHT].clamp_min(TINY)).unsqueeze(1)
        whole.label[rows] = communicator.gathered(ledger.label[rows].unsqueeze(0)).amax(
            0
        )  # −1 where a rank has not seen it
        for mine, theirs in ((ledger.groups, whole.groups), (ledger.classes, whole.classes)):
            mine.merge(theirs, rows, share, communicator)
    return whole


def _merged(index: Tensor, values: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The observations of one example within a batch as one: the rates add up, the values are their mean."""
    index, same = torch.unique(index, return_inverse=True)
    total = rate.new_zeros(len(index), 1).index_add_(0, same, rate)
    parts = values.new_zeros(len(index), values.shape[1]).index_add_(0, same, rate * values)
    return index, parts / total.clamp_min(TINY), total
