"""Data, a plain loop, and how two monitors are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from sgoif import InfluenceMonitor
from sgoif.core.score_table import ScoreTable

CLASSES, COUNT, BATCH = 3, 48, 8
SETTINGS: dict[str, Any] = {"refresh_every": 3}


def images(count: int = COUNT, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    x = torch.randn(count, 1, 8, 8, generator=generator)
    x[torch.arange(count), 0, labels] += 1.5
    return x, labels


def anchors() -> TensorDataset:
    return TensorDataset(*images(30, seed=1))


class Dicts(Dataset[Any]):
    """Items as Hugging Face data sets have them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.x[i], "labels": int(self.y[i])}


def network(seed: int = 0) -> nn.Module:
    """With batch norm, whose statistics must not notice the monitor."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_loop(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    *,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    options: dict[str, Any] | None = None,
) -> InfluenceMonitor:
    """A loop of one's own with the three lines of the README."""
    optimizer = sgd(model)
    monitor = InfluenceMonitor(model, optimizer, anchors(), **(options or SETTINGS))
    for number, (x, y, index) in enumerate(batches):
        if number % accumulate == 0:
            optimizer.zero_grad()
        with monitor.step(index):
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / accumulate).backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
    monitor.close()
    return monitor


def batches_of(epochs: int, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(x[i], y[i], i) for _ in range(epochs) for i in torch.arange(len(x)).split(BATCH)]


def assert_same_table(one: ScoreTable, other: ScoreTable) -> None:
    assert one.columns == other.columns
    for name in one.columns:
        numbers = one[name].dtype.kind == "f"
        assert np.array_equal(one[name], other[name], equal_nan=numbers), name
    assert len(np.unique(one["influence"])) > COUNT // 2  # a table of zeros would be equal, too


def assert_same(one: InfluenceMonitor, other: InfluenceMonitor) -> None:
    """Every column of the tables and of the anchors' tables, and the history except for its clock."""
    assert_same_table(one.scores(), other.scores())
    for column in one.anchor_scores().columns:
        np.testing.assert_array_equal(one.anchor_scores()[column], other.anchor_scores()[column])
    assert one.steps == other.steps
    for mine, theirs in zip(one.history, other.history, strict=True):
        np.testing.assert_equal({**mine, "seconds": 0}, {**theirs, "seconds": 0})
    assert len(one.history) > 1


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def hooks_of(model: nn.Module) -> int:
    kinds: tuple[Callable[[nn.Module], Any], ...] = (
        lambda m: m._forward_hooks,
        lambda m: m._forward_pre_hooks,
        lambda m: m._backward_hooks,
    )
    return sum(len(kind(module)) for module in model.modules() for kind in kinds)
