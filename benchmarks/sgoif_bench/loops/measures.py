"""What a loop's monitor found, beside what anybody can read off the same training; and whether training was changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif.core.losses import cross_entropy
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels import LabelErrors
from sgoif.tasks.labels.evidence import training_evidence
from sgoif_bench.loops.digits import Digits
from sgoif_bench.loops.study import Trained
from sgoif_bench.metrics import average_precision

OTHERS = {
    "final_loss": "loss at the end",
    "mean_loss": "mean loss",
    "probability_margin": "probability margin",
    "logit_margin": "logit margin",
}
"""Signals that need no influence, as a table calls them."""
Scores = NDArray[np.float64]


def suspicions(trained: Trained, digits: Digits) -> tuple[NDArray[np.int64], dict[str, Scores]]:
    """Training examples that were scored, and how suspicious each signal finds them; the higher the more."""
    monitor = trained.monitor
    assert isinstance(monitor, InfluenceMonitor)
    evidence = training_evidence(monitor)
    table = LabelErrors(monitor).table()
    probability = np.full(len(digits.given), -np.inf)
    probability[table["index"]] = np.nan_to_num(table["probability_wrong"], nan=-np.inf)
    images, labels = digits.images[evidence.index], torch.from_numpy(digits.given[evidence.index])
    return evidence.index, {
        "label_score": probability[evidence.index],
        "influence": evidence.influence,
        "mean_loss": evidence.loss,
        "probability_margin": -evidence.margin,
        "logit_margin": -evidence.logit_margin,
        "final_loss": cross_entropy(trained.logits(images), labels).double().numpy(),
    }


def found(trained: Trained, digits: Digits) -> dict[str, float]:
    """AUPR of every signal on the training examples, and the accuracy of the final model on the held-out ones."""
    index, by_name = suspicions(trained, digits)
    is_wrong = digits.is_wrong[index]
    apart = np.setdiff1d(np.arange(len(digits.given)), index)
    answers = trained.logits(digits.images[apart]).argmax(dim=1).numpy()
    areas = {name: average_precision(is_wrong, scores) for name, scores in by_name.items()}
    return {**areas, "accuracy": float((answers == digits.right[apart]).mean())}


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
