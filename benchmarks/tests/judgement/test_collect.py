"""The runs of the corpus: their names, their images, and a small one from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sgoif.errors import SettingError
from sgoif.scoring.ledger import SUMS, Ledger
from sgoif_bench.judgement import collect, runs
from sgoif_bench.judgement.archive import load
from sgoif_bench.judgement.data import ARRAYS, PHOTOS, drawn, read_set
from sgoif_bench.judgement.runs import RUNS, Run, chosen
from sgoif_bench.labels.datasets import NAMES
from sgoif_bench.labels.noises import parse


def test_the_corpus_is_what_it_is_said_to_be() -> None:
    assert len(RUNS) >= 80
    assert len({run.name for run in RUNS}) == len(RUNS)
    assert {run.set for run in RUNS} <= {*NAMES, *ARRAYS, PHOTOS}
    assert len({run.set for run in RUNS}) >= 8
    for run in RUNS:
        assert run.model in collect.MODELS
        if not run.noise.startswith("next-"):
            parse(run.noise)


def test_runs_are_chosen_by_name() -> None:
    assert chosen("ALL") == list(RUNS)
    assert {run.set for run in chosen("^svhn")} == {"svhn"}
    with pytest.raises(SettingError, match="names none of"):
        chosen("nonsense")
    with pytest.raises(SettingError, match="no regular expression"):
        chosen("(")


@pytest.mark.parametrize(
    ("examples", "classes", "wanted"), [(50_000, 10, 2000), (10_000, 10, 500), (50_000, 300, 3000)]
)
def test_how_many_are_held_out(examples: int, classes: int, wanted: int) -> None:
    assert collect.held_out(examples, classes) == wanted
    assert collect.held_out(1000, classes) == 250


def test_some_of_the_images_are_drawn_with_noise(tmp_path: Path) -> None:
    (tmp_path / "ood").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / ARRAYS["svhn"], x=pixels, y=(np.arange(60) % 5).astype(np.uint8))
    read_set.cache_clear()
    data, noisy = drawn(Run("svhn", "next-40", size=50, seed=1), tmp_path)
    assert data.images.shape == (50, 3, 32, 32)
    assert np.array_equal(data.images[7].permute(1, 2, 0).numpy(), pixels[data.rows[7]])
    assert noisy.is_wrong.mean() == pytest.approx(0.4)
    assert set(((noisy.labels - data.labels) % 5).tolist()) == {0, 1}
    assert np.array_equal(drawn(Run("svhn", "none", size=50, seed=1), tmp_path)[0].rows, data.rows)


def test_photos_are_read_from_folders_of_classes(tmp_path: Path) -> None:
    for name, grey in (("dark", 10), ("bright", 240)):
        (tmp_path / PHOTOS / name).mkdir(parents=True)
        Image.new("RGB", (90, 70), (grey, grey, grey)).save(tmp_path / PHOTOS / name / "a.jpg")
    read_set.cache_clear()
    data = read_set(PHOTOS, tmp_path)
    assert data.images.shape == (2, 3, 64, 64)
    assert data.labels.tolist() == [0, 1]
    assert data.images[0].float().mean() > 200 > data.images[1].float().mean()
    with pytest.raises(SettingError, match="is not a folder"):
        read_set(PHOTOS, tmp_path / "nowhere")
    with pytest.raises(SettingError, match="'nonsense' is unknown"):
        read_set("nonsense", tmp_path)


def test_halves_share_no_observation() -> None:
    ledger, halves = Ledger(1, 2, torch.device("cpu"), 2), collect.Halves(2)
    for epoch, score in ((1, 1.0), (2, 4.0), (3, 3.0)):
        ledger.sums[0, SUMS.index("score")] += score
        ledger.sums[0, SUMS.index("weight")] += 1
        halves.note(ledger, epoch)
    means = halves.means(np.array([0, 1]))
    assert means[0].tolist() == [4.0, 2.0]
    assert np.isnan(means[1]).all()


def test_a_run_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Run("digits", "symmetric-20", size=300, model="mlp", epochs=3, batch_size=32, learning_rate=0.1)
    missing = Run("photos", "none", epochs=1)
    monkeypatch.setattr(runs, "RUNS", (missing, small))
    folders = ["--data", str(tmp_path), "--evidence", str(tmp_path / "kept")]
    asked = [*folders, "--runs", "ALL", "--device", "cpu", "--json"]
    assert collect.main(asked) == 0
    first = json.loads(capsys.readouterr().out)
    assert list(first["failures"]) == [missing.name]
    assert "is not a folder" in first["failures"][missing.name]
    assert [run["name"] for run in first["runs"]] == [small.name]
    known = load(tmp_path / "kept" / f"{small.name}.npz")
    assert known["about"]["rate"] == pytest.approx((known["true"] != known["given"]).mean())
    assert len(known["anchors"]) == pytest.approx(75, abs=5)
    trained = known["training"]
    assert len(trained) + len(known["anchors"]) == 300
    assert np.isfinite(known["halves"]).all()
    assert np.corrcoef(known["halves"].T)[0, 1] > 0.3
    wrong = (known["true"] != known["given"])[trained.index]
    assert known["signal_loss"][wrong].mean() > known["signal_loss"][~wrong].mean()
    assert collect.main(asked) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []
