"""What is known about labels when training ends: what training saw, and in a short run one look more."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.batches import read_items
from sgoif.core.data import isolated_random_state
from sgoif.engine.closing_pass import LOOKS, closing_pass, looks_an_example
from sgoif.errors import SettingError
from sgoif.tasks.labels.evidence import Evidence, anchor_evidence, from_ledger, training_evidence

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

MOST_UNASKED = 50_000
"""Examples up to which it is done unasked: one process reads them, which may take long."""


def evidence_of(
    monitor: InfluenceMonitor, dataset: Dataset[Any] | None, wanted: bool | None, label: int | None = None
) -> tuple[Evidence, Evidence]:
    """Evidence on training and held-out examples, with a closing pass over `dataset` or without.

    `label` names one of several labels per example, which have no such pass. None: with one where every example was
    seen less than ten times on average, and there is a data set of at most 50,000 examples to look at.
    """
    if wanted and (reason := _obstacle(monitor, dataset, label)):
        raise SettingError(f"closing_pass=True is not possible {reason}; leave it out")
    training = training_evidence(monitor, label)
    if wanted is None:
        wanted = is_short(monitor) and len(training) <= MOST_UNASKED and not _obstacle(monitor, dataset, label)
    if wanted and len(training):
        assert dataset is not None
        try:
            return _looked_again(monitor, dataset)
        except Exception as error:  # whatever a model raises of data that it cannot take
            warnings.warn(
                "the training examples could not be looked at once more by the trained model, so the list rests on the"
                f" steps of training alone: {type(error).__name__}: {error}. Pass closing_pass=False to do without",
                stacklevel=4,
            )
    return training, anchor_evidence(monitor, label)


def is_short(monitor: InfluenceMonitor) -> bool:
    """Whether one more look would tell much."""
    return looks_an_example(monitor.record()) < LOOKS


def _obstacle(monitor: InfluenceMonitor, dataset: Dataset[Any] | None, label: int | None) -> str:
    """Why no closing pass is possible, if none is."""
    if monitor.communicator.size > 1:
        return "where several processes train the model"
    if label is not None:
        return "of several labels per example"
    if dataset is None:
        return "without the data: give dataset=, indexed like the loop"
    return "" if len(dataset) >= monitor.ledger.used else "with a data set that has fewer examples than the loop"  # type: ignore[arg-type]


def _looked_again(monitor: InfluenceMonitor, dataset: Dataset[Any]) -> tuple[Evidence, Evidence]:
    given = monitor.record().label

    def read(rows: Tensor) -> tuple[Any, Tensor]:
        with isolated_random_state():
            inputs, _ = read_items(dataset, rows, monitor.device)
        return inputs, given[rows.to(given.device)].long()

    ledgers = closing_pass(monitor.pipeline, monitor.held_out, monitor.checkpoint, read)
    held = monitor.held_out_indices()
    training = from_ledger(ledgers.training)
    if held is not None:
        training = training.take(np.flatnonzero(~np.isin(training.index, held)))
    return training, from_ledger(ledgers.held_out, held)
