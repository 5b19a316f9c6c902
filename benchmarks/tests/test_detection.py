"""The CIFAR-10 protocol from end to end, on a data set small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cifar_files import write_learnable
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.errors import SettingError
from sgoif_bench.detection import DetectionSettings, main, make_noise
from sgoif_bench.models import digits_net
from sgoif_bench.signals import SignalTracker
from sgoif_bench.watched_training import Judge, train

VARIANTS = {"gated": {}, "no_gate": {"gate": "none"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_learnable(tmp_path)


def test_one_run_compares_monitors_and_signals(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = root / "result.json", root / "run.png"
    arguments = ["--data", str(root), "--model", "small-cnn", "--epochs", "3", "--batch-size", "32", "--anchors", "60"]
    arguments += ["--variants", json.dumps(VARIANTS), "--device", "cpu", "--lr", "0.05", "--json"]
    arguments += ["--out", str(out), "--plot", str(picture)]
    assert main(arguments) == 0
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert result == json.loads(out.read_text())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert set(result["methods"]) == {"gated", "no_gate", "loss", "margin", "prob_margin"}
    assert result["examples"] == 300
    assert result["anchor_examples"] == 60
    assert result["wrong_labels"] == 60
    assert len(result["epochs"]) == 3
    assert 0 <= result["test_accuracy"] <= 1
    assert str(root) not in result["command"]
    for name in VARIANTS:
        report = result["monitors"][name]
        assert report["mean_observations"] == pytest.approx(3)
        assert report["history"]
        assert 0 <= report["group_is_true_class"] <= 1
    assert streams.err.count("epoch ") == 3


def test_noise_is_a_share_of_all_labels() -> None:
    labels = np.repeat(np.arange(10), 50)
    for noise in ("class-dependent", "next-class", "symmetric"):
        settings = DetectionSettings(data="", noise=noise, rate=0.2)
        assert make_noise(labels, settings).is_wrong.sum() == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": "[]"}, "JSON object"),
        ({"variants": '{"loss": {}}'}, "cannot use the names loss"),
        ({"rate": 0.0}, "rate"),
        ({"anchors": 5}, "anchors"),
    ],
)
def test_settings_are_checked_when_made(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DetectionSettings(data="", **changes)  # type: ignore[arg-type]


def test_watching_does_not_change_the_run_that_is_watched() -> None:
    images, labels = torch.randn(200, 1, 8, 8), torch.arange(200) % 10
    training, held_out = split_holdout(TensorDataset(images, labels), share=0.3)
    is_wrong = np.arange(200) % 7 == 0

    def weights(variants: dict[str, dict[str, str]]) -> tuple[torch.Tensor, dict[str, object]]:
        torch.manual_seed(5)
        model = digits_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        order = torch.Generator().manual_seed(1)
        batches = DataLoader(indexed(training), batch_size=20, shuffle=True, generator=order)
        monitors = {name: InfluenceMonitor(model, optimizer, anchors=held_out, **own) for name, own in variants.items()}
        judge = Judge(monitors, SignalTracker(200), labels.numpy(), is_wrong, np.asarray(training.indices))
        records = train(model, optimizer, batches, judge, epochs=2)
        return torch.nn.utils.parameters_to_vector(model.parameters()), records[-1]["methods"]

    alone, alone_found = weights({})
    watched, watched_found = weights({"a": {}, "b": {"gate": "none", "layers": "all"}})
    assert torch.equal(alone, watched)
    assert all(watched_found[name] == alone_found[name] for name in ("loss", "margin", "prob_margin"))
