"""The overhead benchmark measures what it says; its figures are not tested here."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif_bench import overhead_memory
from sgoif_bench.memory import tensor_peak
from sgoif_bench.models import MODELS
from sgoif_bench.overhead import _slices, main
from sgoif_bench.overhead_memory import memory_row, peak_memory
from sgoif_bench.overhead_parts import ALL, BLOCKS, COLLECT, CURVATURE, ENTER, HOOKS, LEVELS, PartialMonitor
from sgoif_bench.overhead_training import OverheadSettings, Plan, Training

pytestmark = pytest.mark.long

SMALL = ["--device", "cpu", "--examples", "96", "--batch-size", "16", "--anchors", "10", "--repeats", "3"]


@pytest.mark.usefixtures("tiny")
def test_a_small_run_gives_ratios_with_their_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "overhead.json"
    assert main([*SMALL, "--least-steps", "8", "--no-memory", "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    row = result["layers"]["head"]
    assert row["time_ratio_low"] <= row["time_ratio"] <= row["time_ratio_high"]
    assert len(row["time_ratios"]) == 3
    assert row["steps_per_repeat"] % row["refresh_period"] == 0
    assert row["steps_per_repeat"] >= 8
    assert row["refreshes_measured"] >= 2
    assert json.loads(out.read_text()) == result


@pytest.mark.usefixtures("tiny")
def test_a_budget_is_a_share_of_the_time_with_the_monitor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--least-steps", "8", "--no-memory", "--budget", "0.2", "--json"]
    assert main([*arguments, "--out", str(tmp_path / "overhead.json")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["plan"]["budget"] == 0.2
    assert result["layers"]["head"]["stride"] >= 1

    training = Training(replace(_plan(), budget=0.2))
    monitor = training.watched("head", InfluenceMonitor)
    training.run(2, monitor)
    before = monitor.schedule.time.elapsed
    time.sleep(0.3)
    training.run(2)
    seconds, _ = training.run(2, monitor)
    assert monitor.schedule.time.elapsed - before < seconds + 0.1
    monitor.close()


@pytest.mark.usefixtures("tiny")
def test_warming_up_ends_at_a_steady_pace() -> None:
    training = Training(_plan())
    monitor = training.watched("head", InfluenceMonitor)
    period = training.warm_up(monitor)
    before = len(monitor.history)
    training.run(3 * period, monitor)
    assert len(monitor.history) - before in (2, 3, 4)
    monitor.close()


@pytest.mark.slow
def test_peak_memory_comes_from_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead_memory, "PROBES", 1)
    plan = replace(_plan(), batch_size=4)
    plain, watched = peak_memory(plan, None), peak_memory(plan, "head")
    assert plain["resident"] > 50 > watched["tensors"] > plain["tensors"] > 1
    row = memory_row(plain, watched)
    assert row["memory_ratio"] == watched["tensors"] / plain["tensors"]
    assert 0.5 < row["resident_ratio"] < 2


def test_the_peak_of_tensors_is_what_they_ask_for_at_once() -> None:
    kept = []

    def work() -> None:
        kept.append(torch.empty(1000))
        for _ in range(3):
            torch.empty(5000)
        kept.append(torch.empty(2000))

    assert tensor_peak(work) == 4 * 6000
    assert tensor_peak(lambda: None) == 0


def test_slices_add_up() -> None:
    assert _slices(10, 4) == [4, 4, 2]
    assert _slices(4, 20) == [4]


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(SettingError, match="repeats"):
        OverheadSettings(repeats=0)
    with pytest.raises(SettingError, match="budget"):
        OverheadSettings(budget=1.0)
    with pytest.raises(SettingError, match="larger than the training set"):
        Plan.of(OverheadSettings(device="cpu", examples=10, batch_size=20))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that takes next to no time in place of the default."""
    monkeypatch.setitem(MODELS, "small-cnn", _tiny)


def _tiny(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(16 * channels, classes))


@pytest.mark.usefixtures("tiny")
def test_parts_are_measured_against_plain_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "parts.json"
    assert main([*SMALL[:-1], "2", "--parts", "--slice-steps", "8", "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["levels"]) == ["plain", "plain again", *LEVELS]
    plain = [result["levels"][name]["added_ms"] for name in ("plain", "plain again")]
    assert plain[0] == pytest.approx(-plain[1])
    assert set(result["single"]) == {"enter", "leave", "block", "curvature", "anchors", "refresh"}
    assert json.loads(out.read_text()) == result


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("level", [ENTER, HOOKS, COLLECT, BLOCKS, CURVATURE, ALL])
def test_a_level_does_its_own_part_and_no_more(level: int) -> None:
    training = Training(_plan())
    monitor = training.watched("head", partial(PartialMonitor, level))
    assert not _hooked(training)
    monitor.capture.hook()
    assert _hooked(training) == (level >= HOOKS)
    training.run(8, monitor)
    assert not _hooked(training)
    assert (monitor.directions.psi is not None) == (level >= COLLECT)
    assert bool(monitor.ledger.sums.any()) == (level >= BLOCKS)
    assert ("curvature" in monitor.host) == (level >= CURVATURE)
    assert bool(monitor.history) == (level == ALL)


@pytest.mark.usefixtures("tiny")
def test_the_last_level_is_the_monitor_itself() -> None:
    tables = []
    for make in (InfluenceMonitor, partial(PartialMonitor, ALL)):
        training = Training(_plan())
        monitor = training.watched("head", make)
        training.run(20, monitor)
        tables.append(torch.as_tensor(monitor.scores()["influence"]))
        monitor.close()
    assert torch.equal(*tables)


@pytest.mark.usefixtures("tiny")
def test_steps_without_the_monitor_are_plain_training() -> None:
    weights = []
    for watch in (False, True):
        training = Training(_plan())
        monitor = training.watched("head", InfluenceMonitor) if watch else None
        for turn in range(4):
            training.run(3, monitor if turn % 2 else None)
        weights.append(nn.utils.parameters_to_vector(training.model.parameters()))
    assert monitor is not None
    assert monitor.steps == 6
    assert torch.equal(*weights)


def _hooked(training: Training) -> bool:
    return any(module._forward_hooks for module in training.model.modules())


def _plan() -> Plan:
    return Plan.of(OverheadSettings(device="cpu", examples=96, batch_size=16, anchors=10, repeats=3, slice_steps=4))
