"""The overhead benchmark measures what it says; its figures are not tested here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sgoif.bench.overhead import OverheadSettings, Plan, Training, _slices, main
from sgoif.errors import SettingError

SMALL = ["--device", "cpu", "--examples", "96", "--batch-size", "16", "--anchors", "10", "--repeats", "3"]


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


def test_warming_up_ends_at_a_steady_pace() -> None:
    training = Training(_plan(), "head")
    period = training.warm_up()
    monitor = training.monitor
    assert monitor is not None
    before = len(monitor.history)
    training.run(3 * period)
    assert len(monitor.history) - before in (2, 3, 4)
    monitor.close()


def test_peak_memory_comes_from_a_fresh_process() -> None:
    from sgoif.bench.overhead import _peak_memory

    plain, watched = _peak_memory(_plan(), None), _peak_memory(_plan(), "head")
    assert plain > 50
    assert 0.5 < watched / plain < 2


def test_slices_add_up() -> None:
    assert _slices(10, 4) == [4, 4, 2]
    assert _slices(4, 20) == [4]


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(SettingError, match="repeats"):
        OverheadSettings(repeats=0)
    with pytest.raises(SettingError, match="larger than the training set"):
        Plan.of(OverheadSettings(device="cpu", examples=10, batch_size=20))


def _plan() -> Plan:
    return Plan.of(OverheadSettings(device="cpu", examples=96, batch_size=16, anchors=10, repeats=3, slice_steps=4))
