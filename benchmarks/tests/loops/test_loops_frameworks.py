"""Loops that a framework or a compiler drives train as they do without the monitor; every loop has such a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_cases import check_unchanged

from sgoif_bench.loops import registry
from sgoif_bench.loops.registry import LOOPS, Loop
from sgoif_bench.loops.run import main

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
FRAMEWORKS = {"lightning": "lightning", "trainer": "transformers", "accelerate": "accelerate"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_training_is_unchanged_in_a_framework(name: str) -> None:
    package = FRAMEWORKS[name]
    assert LOOPS[name].needs == package
    pytest.importorskip(package, reason=f"the framework is not installed: pip install {package}")
    check_unchanged(name)


def test_training_is_unchanged_in_a_compiled_model() -> None:
    check_unchanged("compile")


def test_a_loop_whose_framework_is_missing_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.LOOPS, "magic", Loop("magic", "magic:train", "magic", 1, needs="no_such_package"))
    small = ["--noises", "symmetric-20", "--seeds", "0", "--epochs", "1", "--limit", "250", "--json"]
    assert main(["--loops", "adam,magic", *small, "--out", str(tmp_path / "found.jsonl")]) == 0
    shown = capsys.readouterr()
    whole = json.loads(shown.out)
    assert whole["left_out"] == {"magic": "no_such_package"}
    assert [line["loop"] for line in whole["results"]] == ["adam"]
    assert "the loop magic is left out: it needs no_such_package" in shown.err


def test_every_loop_is_in_one_of_these_files(request: pytest.FixtureRequest) -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in request.path.parent.glob("test_loops_*.py"))
    assert [name for name in LOOPS if f'"{name}"' not in texts] == []
