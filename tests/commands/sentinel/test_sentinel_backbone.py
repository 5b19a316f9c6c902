"""`sgoif sentinel --backbone`: a pretrained network with a head of its own, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from backbone_cases import NAME, SIDE, filters, offer
from sentinel_cases import MODEL, World, columns, write

from sgoif.cli import main
from sgoif.core.serialization import load_state, save_state

OPTIONS = ["--backbone", NAME, "--device", "cpu"]


def told(capfd: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["sentinel", *map(str, words), "--json"]) == 0, capfd.readouterr().err
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def refused(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capfd.readouterr()
    assert main(["sentinel", *map(str, words)]) == 2
    return " ".join(capfd.readouterr().err.split())


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)


@pytest.fixture
def fitted(world: World, here: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    told(capfd, "fit", world.train, *OPTIONS, "--calibration", world.held)
    return here / "sentinel.npz"


def test_images_that_belong_are_told_from_others(
    world: World, fitted: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, image in enumerate(columns(60)):
        write(here / "columns" / f"{number}.png", image)
    others = told(capfd, "score", here / "columns", *OPTIONS)
    usual = told(capfd, "score", world.held, *OPTIONS, "--out", here / "usual")
    assert others["strange"] > 50
    assert usual["strange"] < 15


def test_the_file_says_what_is_needed_to_use_it(world: World, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary = told(capfd, "fit", world.train, *OPTIONS, "--calibration", world.held)
    assert (summary["model"], summary["weights"], summary["image_size"]) == (NAME, None, SIDE)
    assert summary["channels"] == 3
    assert summary["mean"] == pytest.approx([0.5] * 3)
    assert summary["agreement"] > 0.95
    state = load_state(here / "sentinel.npz")
    assert state["head_weight"].shape == (3, filters().width)


def test_without_a_calibration_the_head_does_not_see_what_is_kept_back(
    world: World, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = told(capfd, "fit", world.train, *OPTIONS, "--calibration", world.held, "--out", "whole.npz")
    part = told(capfd, "fit", world.train, *OPTIONS, "--out", "part.npz")
    assert (whole["images"], part["images"], part["calibration"]) == (300, 240, 60)
    assert "not learned from" in part["calibrated_on"]
    heads = [load_state(here / name)["head_weight"] for name in ("whole.npz", "part.npz")]
    assert not torch.allclose(*heads)
    assert "should be" not in str(told(capfd, "score", world.held, *OPTIONS, "--sentinel", "part.npz"))


def test_weights_that_must_be_fetched_are_named_by_the_user_alone(
    world: World, fitted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(capfd, "score", world.held)
    assert "timm:filters" in message
    assert "name it yourself with --backbone" in message


def test_other_weights_are_refused(
    world: World, fitted: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, seed=1)
    assert "fitted to other weights" in refused(capfd, "score", world.held, *OPTIONS)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "resnet9"], "leave away --model"),
        (["--mean", "0.5", "--spread", "0.2"], "leave away --mean, --spread"),
        (["--ignore-labels"], "learns its head from labels"),
        (["--image-size", "32"], "works at 24 pixels"),
    ],
)
def test_what_does_not_go_with_a_backbone_is_said(
    world: World, here: Path, capfd: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert complaint in refused(capfd, "fit", world.train, *OPTIONS, *words)
    assert not (here / "sentinel.npz").exists()


def test_no_backbone_is_refused_by_name(world: World, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "names no network" in refused(capfd, "fit", world.train, "--backbone", "none")
    assert "is not known. There are: lite0" in refused(capfd, "fit", world.train, "--backbone", "lite9")


def test_models_and_backbones_are_not_mixed_up(
    world: World, fitted: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "fitted to a backbone; leave --model" in refused(capfd, "score", world.held, *MODEL, "--sentinel", fitted)
    assert "fitted to a model; leave --backbone" in refused(
        capfd, "score", world.held, *OPTIONS, "--sentinel", world.sentinel
    )


def test_a_damaged_head_is_noticed(world: World, fitted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = load_state(fitted)
    for damage in (
        {"head_weight": state["head_weight"][:2]},
        {"head_weight": state["head_weight"][:, :5]},
        {"head_bias": "x"},
    ):
        save_state(fitted, {**state, **damage})
        assert "is damaged" in refused(capfd, "score", world.held, *OPTIONS)
