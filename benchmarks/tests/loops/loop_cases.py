"""One loop trained twice on a few digits, without and with the monitor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sgoif.errors import StepError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.evidence import training_evidence
from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.measures import found, identical
from sgoif_bench.loops.registry import train_function
from sgoif_bench.loops.study import Study, Trained

FEW = 250


def takes_soft_targets() -> bool:
    """Whether a step can be given probabilities as its target."""
    model = nn.Linear(2, 2)
    anchors = TensorDataset(torch.eye(2).repeat(4, 1), torch.arange(2).repeat(4))
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=anchors)
    try:
        with monitor.step([0, 1], target=torch.full((2, 2), 0.5)):
            nn.functional.cross_entropy(model(torch.eye(2)), torch.full((2, 2), 0.5)).backward()
    except StepError:
        return False
    return True


SOFT = pytest.mark.skipif(not takes_soft_targets(), reason="monitor.step takes no mixed or soft targets yet")


def trained_twice(name: str) -> tuple[Trained, Trained]:
    """One epoch each; random numbers that are drawn next are the same after both."""
    digits, train = noisy_digits("symmetric-20", 0, FEW), train_function(name)
    study, drawn = Study(digits.dataset(), seed=0, epochs=1), []
    trained = []
    for one in (replace(study, monitored=False), study):
        trained.append(train(one))
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]
    return trained[0], trained[1]


def check_unchanged(name: str) -> None:
    """Same weights to the last bit, every training example scored, with the label that it was given."""
    without, watched = trained_twice(name)
    assert identical(watched.model, without.model)
    monitor = watched.monitor
    assert isinstance(monitor, InfluenceMonitor)
    assert not isinstance(without.monitor, InfluenceMonitor)
    assert monitor.history
    held_out = monitor.held_out_indices()
    assert held_out is not None
    scored = training_evidence(monitor).index
    assert not set(scored.tolist()) & set(held_out.tolist())
    assert len(scored) >= 0.9 * (FEW - len(held_out))  # a loader may drop what does not fill a batch
    assert found(watched, noisy_digits("symmetric-20", 0, FEW))["labels_known"] == 1
