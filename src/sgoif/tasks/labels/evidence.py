"""What is known about labels when training ends: one row per example, as plain arrays.

It is what training saw of its examples. After a short run the trained model looks at each of them once more
(`engine.closing_pass`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from sgoif.engine.closing_pass import LOOKS, closing_pass, looks_an_example, obstacle
from sgoif.errors import SettingError
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.running_means import MeanRows
from sgoif.tasks.labels.channel import SMALLEST, Array, Labels

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

MOST_UNASKED = 50_000
"""Examples up to which they are looked at once more unasked: one process reads them, which may take long."""


@dataclass(frozen=True)
class Rows:
    """Means by column: all of them, or the largest with their columns in `slots` (−1: empty)."""

    mean: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any] | None = None

    @classmethod
    def of(cls, rows: MeanRows, chosen: Labels) -> Rows:
        mean = rows.mean.cpu().numpy()[chosen]
        return cls(mean, None if rows.dense else rows.slot.cpu().numpy()[chosen])

    def take(self, chosen: Labels) -> Rows:
        return Rows(self.mean[chosen], None if self.slots is None else self.slots[chosen])

    def dense(self, columns: int, fill: float) -> Array:
        """Every column, `fill` where nothing is known."""
        if self.slots is None:
            return self.mean.astype(np.float64)
        out = np.full((len(self.mean), columns + 1), fill)
        np.put_along_axis(out, np.where(self.slots < 0, columns, self.slots), self.mean.astype(np.float64), axis=1)
        return out[:, :columns]

    def largest(self, but: Labels | int = -1) -> tuple[Labels, Array]:
        """The largest column of each row, other than the excluded one, and its mean; −1 where there is none."""
        mean = self.mean.astype(np.float64)
        columns = np.broadcast_to(np.arange(mean.shape[1]), mean.shape) if self.slots is None else self.slots
        mean[(columns == np.reshape(but, (-1, 1))) | (columns < 0)] = -np.inf
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

    def take(self, chosen: Labels) -> Evidence:
        return Evidence(**{f.name: getattr(self, f.name).take(chosen) for f in fields(self)})

    def without(self, index: Labels | None) -> Evidence:
        """All but the examples of these indices."""
        return self if index is None else self.take(np.flatnonzero(~np.isin(self.index, index)))

    @cached_property
    def likeliest(self) -> tuple[Labels, Array]:
        """The class of the largest probability, and that probability."""
        return self.classes.largest()

    @property
    def agrees(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the given label is the likeliest class."""
        return np.equal(self.likeliest[0], self.given)

    def agreement(self) -> float:
        """Share of examples whose given label is the likeliest class."""
        return float(self.agrees.mean())

    def probabilities(self, columns: int) -> Array:
        """Mean probabilities [n, C]; classes outside the slots get the least one."""
        return self.classes.dense(columns, SMALLEST)


def from_ledger(ledger: Ledger, index: Labels | None = None) -> Evidence:
    """The rows of a ledger that have been observed, under their own positions or under `index`."""
    seen = (ledger.column("weight") > 0).cpu().numpy() & (ledger.label[: ledger.used] >= 0).cpu().numpy()
    chosen = np.flatnonzero(seen)
    signals = {"influence": "score", "margin": "margin", "logit_margin": "logit_margin", "loss": "loss"}
    return Evidence(
        index=chosen.astype(np.int64) if index is None else np.asarray(index, dtype=np.int64)[chosen],
        given=ledger.label.cpu().numpy()[chosen].astype(np.int64),
        **{name: ledger.mean(column).double().cpu().numpy()[chosen] for name, column in signals.items()},
        groups=Rows.of(ledger.groups, chosen),
        classes=Rows.of(ledger.classes, chosen),
    )


def training_evidence(monitor: InfluenceMonitor, label: int | None = None) -> Evidence:
    """What training saw of its examples; held-out ones of the same numbering are left out."""
    monitor.flush()
    return from_ledger(monitor.record(label)).without(monitor.held_out_indices())


def anchor_evidence(monitor: InfluenceMonitor, label: int | None = None) -> Evidence:
    """The held-out examples, out of sample, by their index in the whole data set where they share its numbering."""
    return from_ledger(monitor.anchor_record(label), monitor.held_out_indices())


def evidence_of(
    monitor: InfluenceMonitor, dataset: Dataset[Any] | None, wanted: bool | None, label: int | None = None
) -> tuple[Evidence, Evidence]:
    """Evidence on training and held-out examples, with a closing pass over `dataset` or without.

    `label` names one of several labels per example, which have no such pass. None: with one where every example was
    seen less than ten times on average, and there is a data set of at most 50,000 examples to look at.
    """
    reason = "of several labels per example" if label is not None else obstacle(monitor.pipeline, dataset)
    if wanted and reason:
        raise SettingError(f"closing_pass=True is not possible {reason}; leave it out")
    training = training_evidence(monitor, label)
    if wanted is None:
        wanted = looks_an_example(monitor.record()) < LOOKS and len(training) <= MOST_UNASKED and not reason
    if wanted and len(training):
        held = monitor.held_out_indices()
        try:
            ledgers = closing_pass(monitor.pipeline, monitor.held_out, monitor.checkpoint, dataset)
            return from_ledger(ledgers.training).without(held), from_ledger(ledgers.held_out, held)
        except Exception as error:  # whatever a model raises of data that it cannot take
            warnings.warn(
                "the training examples could not be looked at once more by the trained model, so the list rests on the"
                f" steps of training alone: {type(error).__name__}: {error}. Pass closing_pass=False to do without",
                stacklevel=4,
            )
    return training, anchor_evidence(monitor, label)
