"""The measurement of growth: what a point is made of, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_paths import RESULTS

from sgoif.errors import SettingError
from sgoif_bench.cli import main as cli
from sgoif_bench.growth import COSTS, plot_growth, slope, slopes
from sgoif_bench.scaling import Head, ScalingSettings, Size, Thin, main, measured, show


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


def test_a_thin_head_is_a_full_one_to_the_monitor() -> None:
    size = Size(examples=256, anchors=20, features=300, classes=70, groups="one")
    heads = [Head(replace(size, thin=thin), ScalingSettings(), watched=True) for thin in (True, False)]
    assert isinstance(heads[0].model, Thin)
    layouts, kept = [], []
    for head in heads:
        head.run(2)
        assert head.monitor is not None
        assert bool(np.isfinite(head.monitor.scores()["influence"]).all())
        layouts.append(head.monitor.layout.blocks)
        kept.append({name: value.shape for name, value in head.monitor.state_dict().items() if hasattr(value, "shape")})
        head.monitor.close()
    assert layouts[0] == layouts[1]
    assert kept[0] == kept[1]
    thin = heads[0].model
    x = torch.randn(3, 300)
    torch.testing.assert_close(thin(x), x @ (thin.down @ thin.up) + thin.bias, rtol=1e-3, atol=1e-3)


def test_slopes_are_the_exponents_of_powers() -> None:
    assert slope([1, 10, 100], [5, 50, 500]) == pytest.approx(1.0)
    assert slope([1, 10, 100], [7, 7, 7]) == pytest.approx(0.0)
    assert slope([2, 8], [3, 6]) == pytest.approx(0.5)
    assert slope([3], [1]) is slope([1, 2], [0, 1]) is None


def points(**rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return rows


def test_slopes_of_sweeps_by_hand() -> None:
    found = slopes(
        points(
            examples=[
                {"examples": 10_000, "added_ms": 2.0, "kept_mb": 40.0},
                {"examples": 100, "added_ms": 20.0, "kept_mb": 1.0},
                {"examples": 1000, "added_ms": 2.0, "kept_mb": 4.0},
            ]
        )
    )["examples"]
    # An epoch has examples / 128 steps: 15.6, 15.6 and 156 ms.
    assert found["added to an epoch, s"]["overall"] == pytest.approx(0.5)
    assert found["added to an epoch, s"]["upper"] == pytest.approx(1.0)
    assert found["memory kept, MB"]["upper"] == pytest.approx(1.0)


def test_growth_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    costs = {"added_ms": 1.0, "refresh_ms": 2.0, "scoring_ms": 0.5, "kept_mb": 3.0, "examples": 100}
    rows = {name: [{**costs, name: 100}, {**costs, name: 1000}] for name in COSTS}
    for ending in ("png", "svg"):
        plot_growth({"sweeps": rows}, tmp_path / f"growth.{ending}", "title")
    text = (tmp_path / "growth.svg").read_text()
    assert text.count('<g id="axes_') == 3
    with pytest.raises(SettingError, match="no sweep 'colours'"):
        plot_growth({"sweeps": {"colours": []}}, tmp_path / "no.png")
    with pytest.raises(SettingError, match="must end in"):
        plot_growth({"sweeps": rows}, tmp_path / "no.txt")


def test_a_picture_of_growth_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "growth.png"
    known = RESULTS / "scaling-cpu.json"
    assert cli(["plot", "growth", str(known), "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    (tmp_path / "other.json").write_text("{}")
    assert cli(["plot", "growth", str(tmp_path / "other.json"), "--out", str(out)]) == 2
    assert "not a result file of `sgoif-bench scaling`" in capsys.readouterr().err.replace("\n", " ")


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
