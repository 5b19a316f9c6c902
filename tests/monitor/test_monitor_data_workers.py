"""Data workers that fail, hang, die or are slow: the loop ends soon, and the monitor goes on afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sgoif import InfluenceMonitor

HERE = Path(__file__).resolve()


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class Numbered(Dataset[tuple[Tensor, int, int]]):
    """Examples of which one is trouble."""

    def __init__(self, trouble: str = "") -> None:
        self.x, self.trouble = torch.randn(48, 6, generator=torch.Generator().manual_seed(1)), trouble

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        if index == 29 and self.trouble == "fails":
            raise OSError("the file server is gone")
        if index == 29 and self.trouble == "dies":
            os._exit(3)
        if index == 29 and self.trouble == "hangs":
            time.sleep(600)
        if self.trouble == "slow":
            time.sleep(0.005)
        return self.x[index], index % 3, index


class Pairs(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), float(index % 3)), index % 3


class Loop:
    """A monitored training that counts its steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors=Pairs(), size=48)
        self.steps = 0

    def over(self, batches: Iterator[Any] | DataLoader[Any]) -> None:
        for x, y, index in batches:
            with self.monitor.step(index):
                nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1


def loader(trouble: str = "", **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(trouble), batch_size=8, num_workers=1, **options)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    loop = Loop()
    loop.over(iter(loader()))
    loop.over(iter(loader()))
    return dict(loop.monitor.scores())


@pytest.mark.parametrize(("trouble", "said"), [("fails", "file server"), ("hangs", "timed out")])
def test_a_worker_in_trouble_ends_the_loop_soon_and_costs_the_monitor_nothing(
    trouble: str, said: str, undisturbed: dict[str, Any]
) -> None:
    loop, start = Loop(), time.monotonic()
    with pytest.raises((RuntimeError, OSError), match=said):
        loop.over(loader(trouble, timeout=3))
    assert time.monotonic() - start < 60
    assert loop.steps == loop.monitor.steps == 3
    loop.over(batch for number, batch in enumerate(loader()) if number >= 3)
    loop.over(loader())
    for name, values in dict(loop.monitor.scores()).items():
        torch.testing.assert_close(torch.as_tensor(values), torch.as_tensor(undisturbed[name]), equal_nan=True)


def test_a_worker_that_dies_ends_the_loop_soon() -> None:
    """In a process of its own: torch tells of a death by an exception at any place."""
    program = "from test_monitor_data_workers import Loop, loader; Loop().over(loader('dies', timeout=30))"
    paths = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(HERE.parent)])
    environment = {**ENVIRONMENT, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_slow_worker_changes_nothing(undisturbed: dict[str, Any]) -> None:
    loop = Loop()
    loop.over(loader("slow"))
    loop.over(loader("slow"))
    for name, values in dict(loop.monitor.scores()).items():
        torch.testing.assert_close(torch.as_tensor(values), torch.as_tensor(undisturbed[name]), equal_nan=True)
