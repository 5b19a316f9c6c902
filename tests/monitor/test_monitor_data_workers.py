"""Memory over many steps, data workers that fail or hang, two writers, a clock that jumps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sgoif import InfluenceMonitor
from sgoif.audit.audit import audit
from sgoif.audit.progress import Lines
from sgoif.audit.settings import AuditSettings
from sgoif.cli import main
from sgoif.tasks.unlearning.log import AuditLog, verify_log
from sgoif_bench.faults.digits import MODEL, make_folder
from sgoif_bench.faults.kills import arguments

HERE = Path(__file__).resolve()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_is_flat_over_ten_thousand_steps() -> None:
    program = [sys.executable, str(HERE.with_name("fault_memory.py"))]
    done = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=True)
    sizes = json.loads(done.stdout)
    print([round(size / 2**20, 1) for size in sizes])
    assert len(sizes) == 10
    assert sizes[-1] <= 1.02 * sizes[0]


# --- data workers ---------------------------------------------------------------------------------------------------


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
    program = "from test_bad_days import Loop, loader; Loop().over(loader('dies', timeout=30))"
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


# --- two writers ----------------------------------------------------------------------------------------------------


def test_the_second_writer_is_told_and_the_first_is_unharmed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    photos, run = make_folder(tmp_path / "photos", per_class=20), tmp_path / "run"
    given = arguments(photos, run, 60)
    first = subprocess.Popen(
        [sys.executable, "-m", "sgoif", *given],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while first.poll() is None and not (run / "live.json").exists():
            time.sleep(0.02)
        assert main(given) == 2
        assert f"another process ({first.pid}) is at work in" in capfd.readouterr().err
        printed, messages = first.communicate(timeout=120)
    finally:
        first.kill()
    assert first.returncode == 0, messages
    assert json.loads(printed)["steps"] == json.loads((run / "live.json").read_text())["steps"]
    # In a process of its own: what other tests leave behind in this one can move the last digits.
    alone = [sys.executable, "-m", "sgoif", "audit", str(photos), "--out", str(tmp_path / "alone"), *given[4:]]
    subprocess.run(alone, env=ENVIRONMENT, capture_output=True, check=True, timeout=120)
    assert (tmp_path / "alone" / "issues.csv").read_bytes() == (run / "issues.csv").read_bytes()


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_folder(tmp_path / "photos", per_class=20)

    def scores(name: str) -> bytes:
        settings = AuditSettings(photos, out=tmp_path / name, model=MODEL, epochs=3, device="cpu", early_stop=False)
        audit(settings, Lines(every=0.0))
        return (tmp_path / name / "issues.csv").read_bytes()

    steady = scores("steady")
    now, looks = time.time, [0]

    def jumping() -> float:
        looks[0] += 1
        return now() + (-1) ** looks[0] * 3e8

    monkeypatch.setattr(time, "time", jumping)
    assert scores("jumping") == steady


def test_a_log_goes_on_when_the_clock_goes_back(tmp_path: Path) -> None:
    times = [datetime(2026, 3, 1, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    log = AuditLog(tmp_path / "log.jsonl", clock=lambda: times.pop(0) + timedelta(0))
    last = None
    for number in range(3):
        last = log.append("request", f"number {number}", {"request": 1, "ids": ["1"], "reason": ""}, last).hash
    assert verify_log(log.path, last).intact
