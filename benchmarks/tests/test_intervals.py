"""The measurement of coverage: its bookkeeping against a slow loop, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sgoif.analysis.intervals import interval_width
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.autocorrelation import dependence_ratio
from sgoif.scoring.ledger import SUMS, Ledger
from sgoif_bench import intervals
from sgoif_bench.intervals import IntervalSettings, judged, long_run, main, show

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def few_digits() -> Iterator[None]:
    """The first digits alone: epochs are to be many here, not images."""
    pixels, labels = intervals.load_digits()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(intervals, "load_digits", lambda: (pixels[:500], labels[:500]))
        yield


@pytest.fixture(scope="module")
def run() -> tuple[InfluenceMonitor, torch.Tensor]:
    return long_run(IntervalSettings(model="mlp", warm_up=1, epochs=80), 0, lambda message: None)


def test_windows_are_judged_as_a_slow_loop_would(run: tuple[InfluenceMonitor, torch.Tensor]) -> None:
    monitor, sums = run
    assert sums.shape[0] == 81
    weight, score = (SUMS.index(name) for name in ("weight", "score"))
    noted = [SUMS.index(name) for name in ("weight", "weight2", "score")]
    covered, length = [], 20
    for start in (0, 20, 40, 60):
        ledger = Ledger(1, 1, torch.device("cpu"), sums.shape[1])
        ledger.sums = sums[start + length] - sums[start]
        middle = sums[start + 10] - sums[start]
        ratio = dependence_ratio(middle[:, noted], (ledger.sums - middle)[:, noted], ledger.variance())
        width = interval_width(ledger, monitor.settings.level, monitor.scaling.bound, ratio)
        for i in range(sums.shape[1]):
            here = ledger.sums[i]
            others = sums[-1, i] - sums[0, i] - here
            miss = abs(float(here[score] / here[weight] - others[score] / others[weight]))
            covered.append(miss <= float(width[i]))
    found = judged(monitor, sums, length)
    assert found["windows"] == 4
    assert found["covered"] == pytest.approx(np.mean(covered), abs=1e-3)
    assert found["covered_normal"] < found["covered"] < found["covered_bernstein"] + 0.1


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    assert main(["--model", "mlp", "--warm-up", "1", "--epochs", "80", "--no-augment", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert [row["epochs"] for row in result["runs"][0]["windows"]] == [3, 5, 10, 20, 40]
    assert result["settings"]["augment"] is False
    assert show(result) in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"model": "x"}, {"epochs": 10}, {"noise_rate": 1.0}])
def test_settings_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        IntervalSettings(**wrong)  # type: ignore[arg-type]
