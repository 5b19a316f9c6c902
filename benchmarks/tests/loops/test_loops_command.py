"""`sgoif-bench loops` from the command line: runs that can be interrupted, their file, table and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif_bench.cli import main as cli
from sgoif_bench.kinds import kind_of
from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.grid import KIND
from sgoif_bench.loops.measures import OTHERS
from sgoif_bench.loops.run import GRID, main
from sgoif_bench.loops.settings import LoopSettings
from sgoif_bench.loops.table import compared, render, rows

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
SMALL = ["--loops", "adam,lion", "--noises", "symmetric-20", "--seeds", "0,1", "--epochs", "1", "--limit", "250"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loops") / "found.jsonl"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_every_run_is_there_once_with_its_figures(results: Path) -> None:
    found = KIND.read([results])
    assert len({KIND.key_of(line) for line in found}) == len(found) == 4
    for line in found:
        assert {"label_score", "influence", *OTHERS, "labels_known", "accuracy"} == set(line["metrics"])
        assert line["identical"] is True
        assert (line["examples"], line["efforts"]["steps"]) == (250, 8)
        assert line["efforts"]["refreshes"] >= 1
        assert line["seconds"] > 0 < line["seconds_without"]


def test_what_is_there_is_not_computed_again(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results.read_bytes()
    assert main([*SMALL, "--out", str(results)]) == 0
    assert results.read_bytes() == before
    assert "4 runs asked for, 4 already" in capsys.readouterr().err
    settings = LoopSettings(loops="adam", noises="symmetric-20", seeds="0,1,2", epochs=1, limit=250)
    left = GRID.pending(settings.jobs(), {KIND.key_of(line): line for line in KIND.read([results])})
    assert [str(job) for job in left] == ["adam symmetric-20 seed 2"]


def test_the_same_seed_gives_the_same_figures(results: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    assert main([*SMALL, "--loops", "lion", "--seeds", "1", "--out", str(again)]) == 0
    (mine,) = KIND.read([again])
    (theirs,) = (line for line in KIND.read([results]) if KIND.key_of(line) == KIND.key_of(mine))
    assert mine["metrics"] == theirs["metrics"]


def line(loop: str, noise: str, label_score: float, same: bool = True, **others: float) -> dict[str, Any]:
    metrics = {"label_score": label_score, **dict.fromkeys(OTHERS, 0.1), **others}
    return {
        "loop": loop,
        "noise": noise,
        "metrics": metrics,
        "identical": same,
        "recipe": {"epochs": 3},
        "efforts": {"steps": 75},
    }


def test_the_table_compares_with_the_best_mean_of_the_others() -> None:
    two = [
        line("adam", "symmetric-20", 0.9, final_loss=0.99, mean_loss=0.8),
        line("adam", "symmetric-20", 0.8, same=False, final_loss=0.5, mean_loss=0.78),
        line("pytorch-mnist", "class-dependent-20", 0.5, logit_margin=0.25),
    ]
    assert compared(two[:2]).ahead == pytest.approx(6.0)
    first, second = rows(two, ["symmetric-20", "class-dependent-20"])
    assert first[1:] == ["3", "75", "–", "–", "–", "50.0", "25.0 logit margin", "+25.0", "yes"]
    assert second[1:] == ["3", "75", "85.0", "79.0 mean loss", "+6.0", "–", "–", "–", "1 of 2"]
    assert render(two).count("\n") == 3
    assert "−20.0" in render([line("adam", "symmetric-20", 0.7, mean_loss=0.9)])


def test_the_table_command_knows_the_file(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of([results]) == "loops"
    assert cli(["table", str(results)]) == 0
    assert "| MLP, Lion | 1 | 8 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loops", "magic"], "no loop magic; choose from pytorch-mnist"),
        (["--loops", ","], "--loops is empty"),
        (["--noises", "chaos"], "chaos"),
        (["--noises", "none"], "nothing to find"),
        (["--workers", "0"], "workers = 0"),
        (["--epochs", "0"], "epochs = 0"),
        (["--limit", "10"], "limit = 10"),
        (["--seeds", "x"], "--seeds takes"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "found.jsonl")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


def test_a_loop_whose_training_was_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: the weights of a monitored training that differ in one bit are not called identical."""
    import torch

    from sgoif_bench.loops import runner
    from sgoif_bench.loops.study import Study, Trained

    real = runner.train_function("adam")

    def train(study: Study) -> Trained:
        trained = real(study)
        if study.monitored:
            weight = next(trained.model.parameters())
            weight.data.view(-1)[0] = torch.nextafter(weight.data.view(-1)[0], torch.tensor(9.0))
        return trained

    monkeypatch.setattr(runner, "train_function", lambda name: train)
    out = tmp_path / "changed.jsonl"
    assert main([*SMALL, "--loops", "adam", "--seeds", "0", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["identical"] is False


def test_the_digits_are_all_there_in_the_published_order() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    digits = noisy_digits("symmetric-20", 3)
    assert np.array_equal(digits.right, labels)
    assert np.corrcoef(digits.images.numpy().ravel(), pixels.ravel())[0, 1] > 0.9999
    assert abs(digits.is_wrong.mean() - 0.2) < 0.001
    assert len(noisy_digits("symmetric-20", 3, 250).dataset()) == 250
