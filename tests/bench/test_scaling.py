"""The measurement of growth: what a point is made of, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sgoif.bench.scaling import Head, ScalingSettings, Size, main, measured, show
from sgoif.errors import SettingError


def test_a_point_is_made_of_its_parts() -> None:
    calls = []
    settings = ScalingSettings(slices=2, slice_steps=2)
    row = measured(Size(examples=300, anchors=20, features=16), settings, lambda: calls.append(sum(range(100_000))))
    assert len(calls) == 2
    assert row["kept_mb"] > row["ledger_mb"]
    assert row["parameters"] == 170
    assert row["added_ms"] == pytest.approx(row["scoring_ms"] + row["refresh_ms"] / row["steps_between_refreshes"])
    assert row["added_share"] == pytest.approx(row["added_ms"] / row["network_ms"])
    assert row["ledger_mb"] == pytest.approx(300 * 104 / 2**20)  # 11 numbers, 10 groups, 10 classes in half precision
    assert row["refresh_ms"] > 0


def test_every_example_is_seen_once_and_the_monitor_refreshes_only_when_asked() -> None:
    head = Head(Size(examples=256, anchors=20, features=16), ScalingSettings(), watched=True)
    head.run(2)
    monitor = head.monitor
    assert monitor is not None
    assert monitor.scores()["n_observations"].tolist() == [1] * 256
    known = len(monitor.history)
    head.run(50)
    assert len(monitor.history) == known


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    few = ["--examples", "200,400", "--anchors", "10", "--parameters", "10000", "--slices", "1", "--slice-steps", "2"]
    assert main([*few, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert [row["examples"] for row in result["sweeps"]["examples"]] == [200, 400]
    assert result["sweeps"]["parameters"][0]["parameters"] == 10_010
    assert show(result) in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"examples": "5"}, {"anchors": "x"}, {"parameters": "77"}, {"slices": 0}])
def test_settings_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        ScalingSettings(**wrong)  # type: ignore[arg-type]
