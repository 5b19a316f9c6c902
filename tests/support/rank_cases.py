"""Trainings that one process, or several together, run on the same batches; each process saves what it found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from warm_processes import start_warm_processes

from sgoif import InfluenceMonitor

EXAMPLES, CLASSES, BATCH, EPOCHS, ANCHORS = 240, 4, 24, 4, 40


def data(count: int = EXAMPLES, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of four kinds of blobs, a fifth of them with a wrong label."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    x = torch.randn(count, 1, 6, 6, generator=generator) * 0.5
    for label in range(CLASSES):
        x[y == label, :, (label // 2) * 3 : (label // 2) * 3 + 3, (label % 2) * 3 : (label % 2) * 3 + 3] += 1.0
    wrong = torch.rand(count, generator=generator) < 0.2
    return x, torch.where(wrong, (y + 1) % CLASSES, y)


def network() -> nn.Module:
    """Convolutions without batch statistics, so that parts of a batch compute what the whole does."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 16), nn.ReLU(),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


def batches(rank: int, size: int, epochs: int = EPOCHS) -> list[tuple[int, Tensor]]:
    """(epoch, indices of this rank's part) of every step; the whole batches are the same for any number of ranks."""
    found = []
    for epoch in range(epochs):
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(100 + epoch))
        found += [(epoch, whole.chunk(size)[rank]) for whole in order.split(BATCH)]
    return found


def train(model: nn.Module, monitor: InfluenceMonitor, steps: list[tuple[int, Tensor]], **options: Any) -> None:
    """Plain steps of SGD with the monitor around them."""
    x, y = data()
    for _, index in steps:
        with monitor.step(index, **options):
            F.cross_entropy(model(x[index]), y[index]).backward()
        monitor.optimizer.step()
        monitor.optimizer.zero_grad()


def watched(model: nn.Module, **options: Any) -> InfluenceMonitor:
    """A monitor with a hold-out of the same kind of data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return InfluenceMonitor(model, optimizer, anchors=data(ANCHORS, seed=1), **{"curvature_every": 3, **options})


def on_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, size, *arguments)` returned on every rank of a process group."""
    with tempfile.TemporaryDirectory() as folder:
        start_warm_processes(_run, (size, folder, work, arguments), nprocs=size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _run(rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        torch.save(work(rank, size, *arguments), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def columns(monitor: InfluenceMonitor) -> dict[str, np.ndarray[Any, Any]]:
    """The table of scores by column."""
    table = monitor.scores()
    return {name: np.asarray(table[name]) for name in table.columns}
