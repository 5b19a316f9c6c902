"""What a loop's monitor found, beside what anybody can read off the same training; and whether training was changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif.core.losses import cross_entropy
from sgoif.core.score_table import ScoreTable
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels import LabelErrors
from sgoif.tasks.labels.evidence import training_evidence
from sgoif_bench.loops.digits import Digits
from sgoif_bench.loops.study import Trained
from sgoif_bench.metrics import average_precision

OTHERS = {
    "final_loss": "final loss",
    "mean_loss": "mean loss",
    "probability_margin": "probability margin",
    "logit_margin": "logit margin",
}
"""Signals that need no influence, as a table calls them."""
Scores = NDArray[np.float64]


def suspicions(monitor: InfluenceMonitor, table: ScoreTable, trained: Trained, digits: Digits) -> dict[str, Scores]:
    """How suspicious each signal finds the training examples in the table; the higher the more."""
    evidence = training_evidence(monitor)
    assert np.array_equal(evidence.index, table["index"])
    images, labels = digits.images[evidence.index], torch.from_numpy(digits.given[evidence.index])
    return {
        "label_score": np.nan_to_num(table["probability_wrong"], nan=-np.inf),
        "influence": evidence.influence,
        "mean_loss": evidence.loss,
        "probability_margin": -evidence.margin,
        "logit_margin": -evidence.logit_margin,
        "final_loss": cross_entropy(trained.logits(images), labels).double().numpy(),
    }


def found(trained: Trained, digits: Digits) -> dict[str, float]:
    """AUPR of every signal on the training examples, and two figures beside.

    `labels_known` is the share of these whose given label the table states as it is, `accuracy` that of the final model
    on the right labels of the held-out examples.
    """
    monitor = trained.monitor
    assert isinstance(monitor, InfluenceMonitor)
    whole, held_out = LabelErrors(monitor).table(), monitor.held_out_indices()
    assert held_out is not None
    table = whole.take(np.flatnonzero(~np.isin(whole["index"], held_out)))
    index = table["index"]
    by_name = suspicions(monitor, table, trained, digits)
    answers = trained.logits(digits.images[held_out]).argmax(dim=1).numpy()
    return {
        **{name: average_precision(digits.is_wrong[index], scores) for name, scores in by_name.items()},
        "labels_known": float((table["given_label"] == digits.given[index]).mean()),
        "accuracy": float((answers == digits.right[held_out]).mean()),
    }


def efforts(monitor: Any) -> dict[str, int]:
    """How often the monitor did what."""
    assert isinstance(monitor, InfluenceMonitor)
    return {
        "steps": monitor.steps,
        "refreshes": len(monitor.history),
        "curvature_updates": monitor.curvature.updates,
        "anchors": len(monitor.anchors),
    }


def identical(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same weights and buffers, to the last bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) and value.dtype == theirs[name].dtype for name, value in mine.items()
    )
