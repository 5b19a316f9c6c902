"""What a running audit tells whoever watches it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from audit_cases import FLIPPED

from sgoif.audit import live_status as live_module
from sgoif.audit.audit import audit
from sgoif.audit.live_status import LIVE, LiveStatus, alarms
from sgoif.audit.preview import Look, expected_aupr
from sgoif.audit.settings import AuditSettings
from sgoif.core.score_table import ScoreTable
from sgoif_bench.metrics import average_precision


def test_a_run_tells_its_state_and_its_worst_images(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "EVERY", 0.0)
    told: list[dict[str, Any]] = []
    inner = live_module.atomic_write

    def listening(path: Path, write: Any, **options: Any) -> None:
        inner(path, write, **options)
        told.append(json.loads(path.read_text(encoding="utf-8")))

    monkeypatch.setattr(live_module, "atomic_write", listening)
    options: dict[str, Any] = {"model": "tiny_nets:tiny", "epochs": 10, "device": "cpu", "early_stop": False}
    audit(AuditSettings(photos, out=tmp_path / "run", **options))
    assert [entry["state"] for entry in told[-2:]] == ["judging", "finished"]
    steps = [entry["step"] for entry in told]
    assert steps == sorted(steps)
    assert told[0]["worst"] == []
    last = told[-1]
    assert (last["images"], last["classes"], last["step"]) == (180, 3, last["steps"])
    assert 0 <= last["estimate"]["low"] <= last["estimate"]["noise_rate"] <= last["estimate"]["high"] <= 1
    assert len(last["history"]["tau"]) == len(last["history"]["step"]) > 1
    found = sum(FLIPPED in row["name"] for row in last["worst"])
    assert found >= len(last["worst"]) / 3  # a tenth would be chance
    assert json.loads((tmp_path / "run" / LIVE).read_text(encoding="utf-8"))["state"] == "finished"


def test_a_full_disk_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_module, "atomic_write", full)
    training = SimpleNamespace(
        plan=SimpleNamespace(steps=1, epochs=1, model="m"), monitor=SimpleNamespace(history=[]), look=None,
        estimate=None, loss=float("nan"), step=0, epoch=1, stopped="",
    )  # fmt: skip
    LiveStatus(tmp_path, Two()).tell("training", training, 0.0)  # type: ignore[arg-type]
    assert not (tmp_path / LIVE).exists()


class Two:
    """What a record needs of two images."""

    class_names = ("a", "b")

    def __len__(self) -> int:
        return 2


def test_the_most_harmful_images_are_shown_and_none_without_a_score() -> None:
    count = 40
    scores = ScoreTable(
        {
            "index": np.arange(count),
            "influence": np.r_[np.nan, 1.0, np.nan, np.linspace(0.9, 0, count - 3)],
            "interval_low": np.zeros(count),
            "interval_high": np.ones(count),
            "group": np.zeros(count, dtype=np.int64),
        }
    )
    assert [row["row"] for row in Look.at(5, scores).rows[:3]] == [1, 3, 4]
    unscored = ScoreTable({**{name: scores[name] for name in scores.columns}, "influence": np.full(count, np.nan)})
    assert Look.at(5, unscored).rows == []


def test_expected_quality_is_that_of_labels_drawn_by_the_probabilities() -> None:
    generator = np.random.default_rng(0)
    p = generator.beta(0.3, 1.5, 4000)
    real = [average_precision(generator.random(len(p)) < p, p) for _ in range(30)]
    assert expected_aupr(p) == pytest.approx(np.mean(real), abs=0.01)
    assert expected_aupr(np.zeros(3)) == 0
    assert expected_aupr(np.ones(3)) == 1


def test_alarms() -> None:
    entry = {
        "anomalies": 2.0,
        "pass_share": 0.01,
        "coverage": 0.05,
        "step_weight": 0.5,
        "train_loss": 1,
        "anchor_loss": 1,
    }
    training = SimpleNamespace(loss=float("inf"), monitor=SimpleNamespace(history=[entry]))
    found = alarms(training)  # type: ignore[arg-type]
    assert len(found) == 4
    calm = {**entry, "anomalies": 0.0, "pass_share": 0.8, "coverage": 0.6}
    assert alarms(SimpleNamespace(loss=1.0, monitor=SimpleNamespace(history=[calm]))) == []  # type: ignore[arg-type]
