"""History entries arrive at TensorBoard, wandb, mlflow and functions: once each, in order, with the right values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration_cases import BATCH, SETTINGS, anchors, images, network, sgd
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.errors import SettingError
from sgoif.integrations.records import Records, follow


def trained(*sinks: Any, epochs: int = 2) -> tuple[InfluenceMonitor, Records]:
    """A loop that never mentions the records."""
    model = network()
    optimizer = sgd(model)
    monitor = InfluenceMonitor(model, optimizer, anchors(), **SETTINGS)
    records = follow(monitor, *sinks)
    x, y = images()
    for _ in range(epochs):
        for index in torch.arange(len(x)).split(BATCH):
            optimizer.zero_grad()
            with monitor.step(index):
                nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return monitor, records


def expected(monitor: InfluenceMonitor, name: str) -> list[tuple[int, float]]:
    return [(int(entry["step"]), entry[name]) for entry in monitor.history]


def test_a_function_gets_every_entry_once() -> None:
    got: list[tuple[int, dict[str, Any]]] = []
    monitor, records = trained(lambda step, values: got.append((step, values)))
    assert got  # before anybody asked
    monitor.close()
    records.close()
    records.close()
    assert records.update() == 0
    assert [(step, v["sgoif/tau"]) for step, v in got if "sgoif/tau" in v] == expected(monitor, "tau")
    medians = [v["sgoif/confidence_q50"] for _, v in got if "sgoif/confidence_q50" in v]
    assert medians[-1] == pytest.approx(float(np.median(monitor.anchors.confidence.numpy())))
    assert monitor.observers == []
    assert all("sgoif/step" not in values for _, values in got)


def test_only_what_comes_after_is_sent() -> None:
    monitor, _ = trained()
    got: list[int] = []
    with follow(monitor, lambda step, values: got.append(step)):
        assert got == []
        monitor.refresh()
    assert got == [12]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    monitor, records = trained(writer)
    records.close()
    writer.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    read = [(event.step, event.value) for event in events.Scalars("sgoif/tau")]
    assert [step for step, _ in read] == [step for step, _ in expected(monitor, "tau")]
    np.testing.assert_allclose([v for _, v in read], [v for _, v in expected(monitor, "tau")], rtol=1e-6)
    low, high = (events.Scalars(f"sgoif/confidence_q{percent}")[-1].value for percent in (10, 90))
    np.testing.assert_allclose([low, high], np.percentile(monitor.anchors.confidence.numpy(), [10, 90]), rtol=1e-6)


class StandInRun:
    """The calls of a wandb run, which drops entries for steps that have passed."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.axes: dict[str, str | None] = {}

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is None, "the run's own step belongs to the training loop"
        self.logged.append(data)


def test_a_run_of_wandb_has_an_axis_of_its_own() -> None:
    run = StandInRun()
    monitor, records = trained(run)
    records.close()
    assert run.axes == {"sgoif/step": None, "sgoif/*": "sgoif/step"}
    figures = [(entry["sgoif/step"], entry["sgoif/tau"]) for entry in run.logged if "sgoif/tau" in entry]
    assert figures == expected(monitor, "tau")


def test_the_real_wandb(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as run:
        monitor, records = trained(run)
        records.close()
        assert run.summary["sgoif/step"] == monitor.steps
        assert run.summary["sgoif/tau"] == monitor.history[-1]["tau"]
    assert list(tmp_path.rglob("*.wandb"))


class StandInMLflow:
    """Calls of the module mlflow, with its argument names."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:
        assert all(type(value) is float and np.isfinite(value) for value in metrics.values())
        self.metrics.append((step, metrics))


def test_mlflow() -> None:
    module = StandInMLflow()
    monitor, records = trained(module)
    records.close()
    assert [(step, m["sgoif/tau"]) for step, m in module.metrics if "sgoif/tau" in m] == expected(monitor, "tau")
    median = [m["sgoif/confidence_q50"] for _, m in module.metrics if "sgoif/confidence_q50" in m][-1]
    assert median == pytest.approx(float(np.median(monitor.anchors.confidence.numpy())))


@pytest.mark.filterwarnings("ignore")
def test_the_real_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "store").as_uri()  # made by mlflow, with an experiment to begin with
    mlflow.set_tracking_uri(store)
    with mlflow.start_run() as run:
        monitor, records = trained(mlflow)
        records.close()
    read = mlflow.MlflowClient(store).get_metric_history(run.info.run_id, "sgoif/tau")
    assert sorted((entry.step, entry.value) for entry in read) == expected(monitor, "tau")


def test_what_cannot_take_records() -> None:
    monitor, _ = trained(epochs=1)
    with pytest.raises(SettingError, match="a str cannot take records: expected a TensorBoard SummaryWriter"):
        follow(monitor, "runs")
