"""A noise and a method of the user's own, named as `module:function`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif_bench.cli import main
from sgoif_bench.labels.datasets import load
from sgoif_bench.labels.noises import make_noise, parse
from sgoif_bench.labels.registry import choose, in_order, is_rival, title_of

MODULE = "parts_of_a_user"
QUICK = ("--sets", "digits", "--limit", "300", "--epochs", "2", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of a noise and a rival, and of some that are wrong."""
    text = """
import torch.nn.functional as F
from torch import from_numpy
from sgoif_bench.labels.problem import Outcome

def every_tenth(data, seed):
    labels, first = data.labels, seed % 10
    labels[first::10] = (labels[first::10] + 1) % len(data.classes)
    return labels

def last_loss(problem, tell):
    model = problem.fit(problem.new_model(), problem.batches())
    logits = problem.predict(model).cpu()
    return Outcome(F.cross_entropy(logits, from_numpy(problem.labels), reduction="none").double().numpy())

def too_few(data, seed):
    return data.labels[:-1]

def other_classes(data, seed):
    return data.labels + 1

def fails(data, seed):
    raise ValueError("no luck")

def only_scores(problem, tell):
    return problem.labels

number = 3
"""
    (tmp_path / f"{MODULE}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def test_both_join_the_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise, method = f"{MODULE}:every_tenth", f"{MODULE}:last_loss"
    command = ["labels", "--noises", noise, "--methods", f"{method},loss", *QUICK, "--out", "mine.jsonl"]
    assert main(command) == 0
    lines = [json.loads(line) for line in (folder / "mine.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {line["method"]: line for line in lines}
    assert found.keys() == {"loss", method}
    assert {line["noise"] for line in lines} == {noise}
    assert all(line["wrong"] == 30 for line in lines)
    assert found[method]["metrics"]["auroc"] > 0.6
    capsys.readouterr()
    assert main([*command, "--workers", "2"]) == 0
    assert len((folder / "mine.jsonl").read_text(encoding="utf-8").splitlines()) == 2, "nothing is done twice"
    assert main(["table", "mine.jsonl", "--metric", "aupr"]) == 0
    assert r"last\_loss" in capsys.readouterr().out


def test_the_labels_that_a_noise_is_given_are_a_copy(folder: Path) -> None:
    data = load("digits", None)
    before = data.labels.copy()
    noisy = make_noise(f"{MODULE}:every_tenth", data, 3)
    assert np.array_equal(data.labels, before)
    assert np.array_equal(np.flatnonzero(noisy.is_wrong), np.arange(3, len(before), 10))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few", r"shape \(1437,\) and values from 0 to 9; expected 1438 whole numbers from 0 to 9"),
        ("other_classes", r"values from 1 to 10; expected 1438 whole numbers from 0 to 9"),
        ("fails", r"calling it with \(data, seed\) failed: ValueError: no luck"),
    ],
)
def test_what_is_no_noise(folder: Path, name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_noise(f"{MODULE}:{name}", load("digits", None), 0)


def test_names_that_lead_nowhere(folder: Path) -> None:
    with pytest.raises(SettingError, match=r"noise 'nowhere:noise': the module 'nowhere' cannot be imported"):
        parse("nowhere:noise")
    with pytest.raises(SettingError, match=r"method .* has no 'missing'"):
        choose(f"sgoif,{MODULE}:missing")
    with pytest.raises(SettingError, match="is a int, not a function"):
        choose(f"{MODULE}:number")


def test_an_outcome_is_told_from_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", "--methods", f"{MODULE}:only_scores", *QUICK, "--out", "mine.jsonl"]) != 0
    assert "returned a ndarray; expected a sgoif_bench.labels.problem.Outcome" in capsys.readouterr().err


def test_own_methods_are_rivals_and_stand_last(folder: Path) -> None:
    own = f"{MODULE}:last_loss"
    assert choose(f"{own},knn,sgoif,{own}") == ["sgoif", "knn", own]
    assert choose(own) == [own]
    assert in_order([own, "knn", "sgoif"]) == ["sgoif", "knn", own]
    assert is_rival(own)
    assert title_of(own) == own
