"""`sgoif sentinel fit`: the same sentinel as in Python, in a file that knows its model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentinel_cases import CLASSES, MODEL, OWN, World, rows, trained, write, write_classes

from sgoif.cli import main
from sgoif.commands.sentinel.archive import load_sentinel
from sgoif.commands.sentinel.settings import OpenSettings
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import ModelError, StateError
from sgoif.tasks import Sentinel

Captured = pytest.CaptureFixture[str]


def fitted(capfd: Captured, *words: str | Path) -> tuple[dict[str, Any], str]:
    """What `fit --json` printed, and what it said on the way."""
    capfd.readouterr()
    assert main(["sentinel", "fit", *map(str, words), "--json"]) == 0
    streams = capfd.readouterr()
    return json.loads(streams.out), streams.err


def opened(path: Path, **changes: Any) -> Sentinel:
    settings = OpenSettings(path, model=OWN[1], device="cpu", **changes)
    return load_sentinel(settings, say=print).sentinel


def test_the_sentinel_is_that_of_python(world: World) -> None:
    model = trained(world.normalise)

    def batches(count: int, seed: int) -> list[Any]:
        images, labels = rows(count, seed)
        order = np.argsort(labels, kind="stable")  # a folder is read class by class
        x = world.normalise(torch.from_numpy(images[order])[:, None])
        return [(x, torch.from_numpy(labels[order]))]

    expected = Sentinel.fit(model, batches(300, 0), calibration=batches(150, 1))
    got = opened(world.sentinel)
    torch.testing.assert_close(got.calibration, expected.calibration)
    x = world.normalise(torch.from_numpy(rows(20, 2)[0])[:, None])
    torch.testing.assert_close(got.score(x), expected.score(x))


def test_the_file_needs_no_pickle_and_python_reads_it_too(world: World) -> None:
    with np.load(world.sentinel, allow_pickle=False) as archive:
        about = json.loads(archive["meta"].tobytes())["values"]["about"]
    assert about["model"] == "sentinel_nets:small"
    assert (about["image_size"], about["channels"], about["class_names"]) == (8, 1, list(CLASSES))
    assert about["mean"] == pytest.approx(list(world.normalise.mean))
    assert len(Sentinel.load(world.sentinel, trained(world.normalise)).calibration) == 150


def test_every_fifth_image_is_kept_back_and_the_reader_is_warned(world: World, here: Path, capfd: Captured) -> None:
    told, messages = fitted(capfd, world.train, *MODEL, "--weights", world.weights)
    assert (told["images"], told["calibration"], told["calibrated_on"]) == (240, 60, "one image in five")
    assert "p-values are too small" in messages
    assert Path(told["sentinel"]) == here / "sentinel.npz"
    assert told["agreement"] > 0.9
    assert os.listdir(here) == ["sentinel.npz"]
    assert main(["sentinel", "score", str(world.held), *OWN, "--out", "out"]) == 0
    assert "calibrated on one image in five" in (here / "out" / "strangest.html").read_text()


def test_classes_in_another_order_are_noticed_and_can_be_named(world: World, here: Path, capfd: Captured) -> None:
    words = [*MODEL, "--weights", world.weights, "--calibration", world.held, "--no-gate"]
    renamed = here / "renamed"
    shutil.copytree(world.train, renamed)
    (renamed / "high").rename(renamed / "upper")  # now the last by the alphabet
    told, messages = fitted(capfd, renamed, *words)
    assert told["agreement"] < 0.5
    assert "--classes FILE" in messages
    (here / "names.txt").write_text("upper\nlow\nmiddle\n")
    told, messages = fitted(capfd, renamed, *words, "--classes", "names.txt")
    assert told["agreement"] > 0.9
    assert "agrees" not in messages
    description = load_sentinel(OpenSettings(here / "sentinel.npz", OWN[1]), say=print).description
    assert description.class_names == ["upper", "low", "middle"]


def test_images_without_classes(world: World, here: Path, capfd: Captured) -> None:
    for number, image in enumerate(rows(120, 3)[0]):
        write(here / "flat" / f"{number}.png", image)
    (here / "flat" / "broken.png").write_bytes(b"no image")
    words = ["flat", *MODEL, "--weights", str(world.weights)]
    assert main(["sentinel", "fit", *words]) == 2
    assert "--ignore-labels" in capfd.readouterr().err
    assert main(["sentinel", "fit", *words, "--ignore-labels"]) == 2
    assert "--classes" in capfd.readouterr().err
    told, messages = fitted(capfd, *words, "--ignore-labels", "--classes", "3")
    assert (told["images"], told["calibration"], told["skipped"], told["agreement"]) == (96, 24, 1, None)
    assert "left out 'broken.png'" in messages


def test_colour_for_a_model_of_grey_images_and_a_given_normalisation(world: World, here: Path, capfd: Captured) -> None:
    images, labels = rows(300, 0)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        write(here / "colour" / CLASSES[label] / f"{number:03d}.png", np.stack([image, image // 2, image], -1))
    words = ["colour", *MODEL, "--weights", str(world.weights), "--calibration", str(world.held)]
    assert main(["sentinel", "fit", *words]) == 2
    assert "does not fit the model" in capfd.readouterr().err
    told, _ = fitted(capfd, *words, "--mean", "0.4", "--spread", "0.2")
    assert (told["channels"], told["mean"], told["spread"]) == (1, pytest.approx([0.4]), pytest.approx([0.2]))
    told, _ = fitted(capfd, *words, "--channels", "1")
    assert told["agreement"] > 0.9


class TestWeights:
    def test_found_beside_the_sentinel_when_they_have_moved(self, world: World, tmp_path: Path) -> None:
        moved, gone = tmp_path / "moved", tmp_path / "gone"
        state = tmp_path / "first"
        for folder in (moved, gone, state):
            folder.mkdir()
        weights = shutil.copy(world.weights, state / "w.safetensors")
        words = [str(world.train), *MODEL, "--weights", str(weights), "--calibration", str(world.held)]
        assert main(["sentinel", "fit", *words, "--out", str(state / "s.npz")]) == 0
        for folder in (moved, gone):
            shutil.copy(state / "s.npz", folder)
        shutil.move(state / "w.safetensors", moved)
        torch.testing.assert_close(opened(moved / "s.npz").calibration, opened(world.sentinel).calibration)
        with pytest.raises(ModelError, match=r"neither at .* nor beside it.*--weights"):
            opened(gone / "s.npz")
        assert len(opened(gone / "s.npz", weights=moved / "w.safetensors").calibration) == 150

    def test_other_weights_are_refused(self, world: World, tmp_path: Path) -> None:
        from safetensors.torch import load_file, save_file

        changed = load_file(world.weights)
        changed["3.bias"] = changed["3.bias"] + 1e-3
        save_file(changed, tmp_path / "changed.safetensors")
        with pytest.raises(StateError, match="fitted to other weights"):
            opened(world.sentinel, weights=tmp_path / "changed.safetensors")


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short audit; its data are gone."""
    folder = tmp_path_factory.mktemp("audited")
    data = write_classes(folder / "data", 180, 4)
    assert main(["audit", str(data), *MODEL, "--epochs", "4", "--out", str(folder / "run"), "--json"]) == 0
    shutil.rmtree(data)
    return folder / "run"


class TestRun:
    def test_a_finished_audit_brings_everything(self, run: Path, here: Path, world: World, capfd: Captured) -> None:
        told, messages = fitted(capfd, "--run", run, *OWN)
        summary = json.loads((run / "summary.json").read_text())
        assert (told["images"], told["calibration"]) == (summary["trained_on"], summary["held_out"])
        assert told["calibrated_on"] == "the images that the audit held out"
        assert told["agreement"] > 0.5
        assert "p-values" not in messages
        assert Path(told["weights"]) == run / "checkpoint.npz"
        assert main(["sentinel", "score", str(world.held), *OWN, "--json"]) == 0

    def test_its_model_can_be_fitted_to_other_images(
        self, run: Path, here: Path, world: World, capfd: Captured
    ) -> None:
        told, messages = fitted(capfd, world.train, "--run", run, *OWN)
        assert (told["images"], told["calibration"]) == (240, 60)
        assert "p-values are too small" in messages
        shutil.copytree(world.train / "low", here / "strange" / "unheard")
        shutil.copytree(world.train / "high", here / "strange" / "high")
        assert main(["sentinel", "fit", "strange", "--run", str(run), *OWN]) == 2
        assert "the model has no class 'unheard'" in capfd.readouterr().err

    def test_parts_of_another_run_are_refused(self, run: Path, here: Path, capfd: Captured) -> None:
        part = here / "part"
        shutil.copytree(run, part)
        path = part / "checkpoint.npz"
        state = load_state(path)
        save_state(path, {**state, "run": {**state["run"], "data": "of another folder"}})
        assert main(["sentinel", "fit", "--run", "part", *OWN]) == 2
        assert "checkpoint.npz belongs to another run: data differ" in capfd.readouterr().err
        shutil.copy(run / "checkpoint.npz", part)
        pixels = part / "cache" / "pixels.npy"
        pixels.write_bytes(pixels.read_bytes()[:-500] + bytes(500))
        assert main(["sentinel", "fit", "--run", "part", *OWN]) == 2
        assert "pixels.npy' has been changed or damaged" in capfd.readouterr().err

    def test_what_is_missing_is_named(self, run: Path, here: Path, capfd: Captured) -> None:
        part = here / "part"
        shutil.copytree(run, part)
        shutil.rmtree(part / "cache")
        assert main(["sentinel", "fit", "--run", "part"]) == 2
        assert "--resume" in capfd.readouterr().err
        (part / "checkpoint.npz").unlink()
        assert main(["sentinel", "fit", "--run", "part"]) == 2
        assert "checkpoint.npz is gone" in capfd.readouterr().err
        (part / "summary.json").unlink()
        assert main(["sentinel", "fit", "--run", "part"]) == 2
        assert "not finished" in capfd.readouterr().err
        (part / "run.json").unlink()
        assert main(["sentinel", "fit", "--run", "part"]) == 2
        assert "not a run directory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to learn from"),
        (["DATA"], "there is no model"),
        (["DATA", "--model", "resnet7"], "random weights"),
        (["DATA", "--model", "resnet99"], "resnet9-small"),
        (["DATA", *MODEL, "--weights", "none.safetensors"], "no such file"),
        (["DATA", *MODEL, "--weights", "WEIGHTS", "--classes", "5"], "3.weight"),
        (["DATA", *MODEL, "--weights", "WEIGHTS", "--limit", "50"], "--calibration"),
        (["DATA", *MODEL, "--mean", "125", "--spread", "60"], "Divide"),
        (["DATA", *MODEL, "--mean", "0.5"], "go together"),
        (["DATA", *MODEL, "--mean", "half", "--spread", "1"], "numbers with commas"),
        (["DATA", *MODEL, "--mean", "0,0", "--spread", "1,1"], "every channel"),
        (["DATA", *MODEL, "--channels", "2"], "--channels 2"),
        (["DATA", *MODEL, "--image-size", "4"], "--image-size 4"),
        (["DATA", *MODEL, "--batch-size", "0"], "--batch-size 0"),
        (["DATA", *MODEL, "--device", "abacus"], "--device abacus"),
        (["DATA", *MODEL, "--classes", "1"], "from 2 to"),
        (["DATA", *MODEL, "--classes", "names.txt"], "one a line"),
        (["nowhere", *MODEL], "does not exist"),
        (["DATA", "--run", "run", "--classes", "3"], "leave away --classes"),
        (["--run", "nowhere"], "not a run directory"),
        (["DATA", *MODEL, "--out", "DATA"], "is a folder"),
        (["DATA", *MODEL, "--out", "WEIGHTS"], "not a sentinel"),
        (["DATA", *MODEL, "--out", "WEIGHTS/s.npz"], "cannot write"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(
    options: list[str], message: str, world: World, here: Path, capfd: Captured
) -> None:
    before = world.weights.read_bytes()
    words = [o.replace("DATA", str(world.train)).replace("WEIGHTS", str(world.weights)) for o in options]
    assert main(["sentinel", "fit", *words]) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""
    assert world.weights.read_bytes() == before
    assert not (here / "sentinel.npz").exists()
