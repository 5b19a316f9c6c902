"""What a monitor knows about labels: one row per example, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sgoif.scoring.ledger import Ledger
from sgoif.scoring.running_means import MeanRows
from sgoif.tasks.labels.channel import ROWS_AT_ONCE, SMALLEST, Array, Labels

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor


@dataclass(frozen=True)
class Rows:
    """Means by column: all of them, or the largest with their columns in `slots` (−1: empty)."""

    mean: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any] | None = None

    @classmethod
    def of(cls, rows: MeanRows, chosen: np.ndarray[Any, Any]) -> Rows:
        mean = rows.mean.cpu().numpy()[chosen]
        return cls(mean, None if rows.dense else rows.slot.cpu().numpy()[chosen])

    def take(self, chosen: np.ndarray[Any, Any] | slice) -> Rows:
        return Rows(self.mean[chosen], None if self.slots is None else self.slots[chosen])

    def joined(self, others: Rows) -> Rows:
        both = None if self.slots is None else np.concatenate([self.slots, _present(others.slots)])
        return Rows(np.concatenate([self.mean, others.mean]), both)

    def dense(self, columns: int, fill: float) -> Array:
        """Every column, `fill` where nothing is known."""
        if self.slots is None:
            return self.mean.astype(np.float64)
        out = np.full((len(self.mean), columns + 1), fill)
        np.put_along_axis(out, np.where(self.slots < 0, columns, self.slots), self.mean.astype(np.float64), axis=1)
        return out[:, :columns]

    def largest_but(self, excluded: Labels) -> tuple[Labels, Array]:
        """The largest column other than the excluded one of each row, and its mean; −1 where there is none."""
        mean = self.mean.astype(np.float64)
        columns = np.broadcast_to(np.arange(mean.shape[1]), mean.shape) if self.slots is None else self.slots
        mean = np.where((columns == excluded[:, None]) | (columns < 0), -np.inf, mean)
        best = mean.argmax(1)[:, None]
        value = np.take_along_axis(mean, best, 1)[:, 0]
        column = np.take_along_axis(columns, best, 1)[:, 0].astype(np.int64)
        return np.where(np.isfinite(value), column, -1), value


@dataclass(frozen=True)
class Evidence:
    """Signals of some examples; all were observed at least once."""

    index: Labels
    given: Labels
    influence: Array
    margin: Array
    logit_margin: Array
    loss: Array
    groups: Rows
    classes: Rows

    def __len__(self) -> int:
        return len(self.index)

    def take(self, chosen: np.ndarray[Any, Any]) -> Evidence:
        changes: dict[str, Any] = {}
        for f in fields(self):
            column = getattr(self, f.name)
            changes[f.name] = column.take(chosen) if isinstance(column, Rows) else column[chosen]
        return replace(self, **changes)

    def joined(self, others: Evidence) -> Evidence:
        """These examples, then the others."""
        changes: dict[str, Any] = {}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(others, f.name)
            changes[f.name] = mine.joined(theirs) if isinstance(mine, Rows) else np.concatenate([mine, theirs])
        return replace(self, **changes)

    def agreement(self) -> float:
        """Share of examples whose given label is the likeliest class."""
        likeliest, _ = self.classes.largest_but(np.full(len(self), -1))
        return float((likeliest == self.given).mean())

    def probabilities(self, columns: int) -> Array:
        """Mean probabilities [n, C]; classes outside the slots get the least one."""
        return self.classes.dense(columns, SMALLEST)

    def likeliest(self, columns: int) -> tuple[Labels, Array]:
        """The class of the largest probability, and that probability; some rows after the others."""
        found: Labels = np.empty(len(self), dtype=np.int64)
        largest: Array = np.empty(len(self))
        some = max(1, ROWS_AT_ONCE // columns)
        for start in range(0, len(self), some):
            rows = slice(start, start + some)
            p = self.classes.take(rows).dense(columns, SMALLEST)
            found[rows], largest[rows] = p.argmax(1), p.max(1)
        return found, largest


def from_ledger(ledger: Ledger, index: Labels | None = None) -> Evidence:
    """The rows of a ledger that have been observed, under their own positions or under `index`."""
    seen = (ledger.column("weight") > 0).cpu().numpy() & (ledger.label[: ledger.used] >= 0).cpu().numpy()
    chosen = np.flatnonzero(seen)

    def column(name: str) -> Array:
        values: Array = ledger.mean(name).double().cpu().numpy()[chosen]
        return values

    return Evidence(
        index=chosen.astype(np.int64) if index is None else np.asarray(index, dtype=np.int64)[chosen],
        given=ledger.label.cpu().numpy()[chosen].astype(np.int64),
        influence=column("score"),
        margin=column("margin"),
        logit_margin=column("logit_margin"),
        loss=column("loss"),
        groups=Rows.of(ledger.groups, chosen),
        classes=Rows.of(ledger.classes, chosen),
    )


def training_evidence(monitor: InfluenceMonitor, label: int | None = None) -> Evidence:
    """What training saw of its examples; held-out ones of the same numbering are left out."""
    monitor.flush()
    found = from_ledger(monitor.record(label))
    held = monitor.held_out_indices()
    return found if held is None else found.take(np.flatnonzero(~np.isin(found.index, held)))


def anchor_evidence(monitor: InfluenceMonitor, label: int | None = None) -> Evidence:
    """The held-out examples, out of sample, by their index in the whole data set where they share its numbering."""
    return from_ledger(monitor.anchor_record(label), monitor.held_out_indices())


def _present(slots: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert slots is not None, "rows of one ledger layout"
    return slots
