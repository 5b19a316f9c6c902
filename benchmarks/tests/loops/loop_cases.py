"""One loop trained twice on a few digits, without and with the monitor."""

from __future__ import annotations

from dataclasses import replace

import torch

from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.evidence import training_evidence
from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.measures import found, identical
from sgoif_bench.loops.registry import train_function
from sgoif_bench.loops.study import Study, Trained

FEW = 250


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
    """Same weights to the last bit, something learned, every training example scored."""
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
    assert len(scored) >= 0.95 * (FEW - len(held_out))  # a loader may drop what does not fill a batch
    shown = found(watched, noisy_digits("symmetric-20", 0, FEW))
    assert all(0 < value <= 1 for name, value in shown.items() if name != "accuracy")
