"""`sgoif-bench pretrained`: its lines, its file, what is left to another machine, its table and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pretrained_cases import backbone

from sgoif.errors import SettingError
from sgoif_bench.cli import main as cli
from sgoif_bench.kinds import kind_of
from sgoif_bench.pretrained import kept, run
from sgoif_bench.pretrained.grid import KIND, measure
from sgoif_bench.pretrained.registry import choose

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
SMALL = ["--sets", "digits", "--limit", "90", "--noises", "symmetric-15", "--views", "features"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "load_backbone", lambda name: backbone() if name == "lite0" else None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(out: Path, *further: str) -> int:
    return run.main([*SMALL, "--scratch", "kept", "--out", str(out), *further])


def test_lines_are_complete_and_are_not_made_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cleanlab")
    out = place / "found.jsonl"
    assert ask(out, "--methods", "frozen", "--seeds", "1") == 0
    lines = KIND.read([out])
    assert {line["method"] for line in lines} == set(choose("frozen"))
    assert {line["seed"] for line in lines} == {1}
    for line in lines:
        assert set(line["metrics"]) == {"aupr", "auroc", "p_at_100"}
        assert all(0 <= value <= 1 for value in line["metrics"].values())
        assert line["seconds"] == pytest.approx(sum(line["parts"].values()))
        assert set(line["parts"]) == {"reading", "features", "method"}
        assert line["parts"]["features"] > 0
        assert (line["examples"], line["classes"], line["wrong"]) == (90, 10, 14)
        assert {"command", "versions", "machine", "recipe"} <= line.keys()
        assert line["recipe"]["size"] == 12
    before = out.read_bytes()
    assert ask(out, "--methods", "frozen", "--seeds", "1") == 0
    assert out.read_bytes() == before
    assert "10 results asked for, 10 already" in capsys.readouterr().err
    assert kind_of([out]) == "pretrained"
    assert cli(["table", str(out), "--metric", "seconds"]) == 0
    assert "SimiFeat, vote" in capsys.readouterr().out


def test_what_cleanlab_scores_may_be_trained_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cleanlab")
    out, methods = place / "found.jsonl", ("--methods", "cleanlab-finetuned-margin", "--epochs", "1")
    with monkeypatch.context() as patch:
        patch.setattr(kept, "find_spec", lambda name: None)
        assert ask(out, *methods) == 0
    assert out.read_bytes() == b""
    (file,) = (place / "kept").glob("digits-cleanlab-finetuned-*.npz")
    with np.load(file) as content:
        seconds = float(content["seconds"])
    capsys.readouterr()
    assert ask(out, *methods) == 0
    (line,) = KIND.read([out])
    assert "fold" not in capsys.readouterr().err
    assert line["parts"]["method"] >= seconds
    assert line["parts"]["features"] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sets", "nonsense"], "no data set"),
        (["--methods", "nonsense"], "no method nonsense"),
        (["--noises", "nonsense"], "unknown"),
        (["--size", "13"], "12"),
        (["--backbone", "none"], "no network"),
        (["--sets", "photos"], "--data ROOT"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    arguments: list[str], complaint: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--limit", "90", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_scores_have_to_be_finite_and_as_many_as_labels() -> None:
    wrong = np.array([True, False, False])
    found = measure(wrong, np.array([2.0, 1.0, 0.0]))
    assert found == {"aupr": 1.0, "auroc": 1.0, "p_at_100": pytest.approx(1 / 3)}
    assert set(measure(np.zeros(3, dtype=bool), np.zeros(3)).values()) == {None}
    for scores in (np.zeros(2), np.array([0.0, np.nan, 1.0])):
        with pytest.raises(SettingError, match="finite scores"):
            measure(wrong, scores)
