"""`sgoif-bench controller`: monitors of a base beside one training, their file, tables and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgoif_bench.cli import main as cli
from sgoif_bench.controller.grid import KIND
from sgoif_bench.controller.run import ControllerSettings, main
from sgoif_bench.controller.table import interval, render
from sgoif_bench.controller.variants import FULL, VARIANTS, settings_of
from sgoif_bench.kinds import kind_of

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
SMALL = ["--bases", "small", "--noises", "symmetric-20", "--seeds", "0", "--epochs", "2", "--limit", "240"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("controller") / "found.jsonl"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_every_variant_has_a_line_and_all_watched_one_training(results: Path) -> None:
    found = {line["method"]: line for line in KIND.read([results])}
    assert set(found) == set(VARIANTS["small"])
    assert len({line["seconds_together"] for line in found.values()}) == 1
    for line in found.values():
        assert 0 <= line["metrics"]["aupr"] <= 1
        assert line["command"].startswith("python -m sgoif_bench.controller.run")
        assert {"versions", "machine", "recipe", "seed"} <= line.keys()
    assert found["without-gate"]["confidence_mean"] == 1 > found[FULL]["confidence_mean"]
    assert found["without-replacement"]["replaced"] == 0


def test_what_is_there_is_not_computed_again(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results.read_bytes()
    assert main([*SMALL, "--out", str(results)]) == 0
    assert results.read_bytes() == before
    assert "already in" in capsys.readouterr().err


def test_what_is_missing_is_computed_beside_its_base_again(results: Path, tmp_path: Path) -> None:
    lines = results.read_text().splitlines(keepends=True)
    kept = tmp_path / "found.jsonl"
    kept.write_text("".join(line for line in lines if '"method": "without-gate"' not in line))
    assert main([*SMALL, "--out", str(kept)]) == 0
    assert {line["method"] for line in KIND.read([kept])} == set(VARIANTS["small"])


def test_the_table_command_knows_the_file(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of([results]) == "controller"
    assert cli(["table", str(results)]) == 0
    assert "| without-gate |" in capsys.readouterr().out


def test_every_variant_is_a_monitor_that_can_be_made_and_differs_from_its_base() -> None:
    for base, variants in VARIANTS.items():
        assert next(iter(variants)) == FULL
        made = {
            name: (settings_of(base, variant, 100, 0), variant.sign, variant.proxy_power)
            for name, variant in variants.items()
        }
        assert len({repr(found) for found in made.values()}) == len(made)


def line(method: str, seed: int, aupr: float) -> dict[str, Any]:
    place = {"base": "default", "set": "digits", "noise": "symmetric-20", "seed": seed, "method": method}
    return {**place, "metrics": {"aupr": aupr}, "label_score": aupr / 2}


def test_gains_are_differences_seed_by_seed_with_students_interval() -> None:
    lines = [line(FULL, 0, 0.5), line(FULL, 1, 0.9), line("without-gate", 0, 0.4), line("without-gate", 1, 0.7)]
    assert "| without-gate | −15.0 ± 63.5 | −15.0 ± 63.5 |" in render(lines)
    assert "| full | 35.0 | 35.0 |" in render(lines, "label_score")
    assert interval([2.0]) == (2.0, None)
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.30 / 3**0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bases", "large"], "there is no base 'large'"),
        (["--variants", "without-everything"], "there is no variant 'without-everything'"),
        (["--noises", "none"], "cannot be judged here"),
        (["--workers", "0"], "workers = 0"),
        (["--sets", "mnist", "--data", "nowhere"], "--data nowhere is not a folder"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *arguments, "--out", str(tmp_path / "found.jsonl")]) == 2
    assert message in capsys.readouterr().err


def test_jobs_come_set_by_set() -> None:
    jobs = ControllerSettings(sets="digits,mnist", seeds="0,1", noises="symmetric-20").jobs()
    assert [job.set for job in jobs] == ["digits"] * 6 + ["mnist"] * 6
    assert {job.family for job in jobs} == set(VARIANTS)


def test_variants_are_chosen_in_every_base_that_has_them() -> None:
    chosen = ControllerSettings(variants="full,groups", seeds="0", noises="symmetric-20").jobs()
    assert {job.family: job.methods for job in chosen} == {
        "default": ("full",),
        "small": ("full",),
        "printed": ("full", "groups"),
    }
    assert [job.family for job in ControllerSettings(variants="groups", seeds="0", noises="symmetric-20").jobs()] == [
        "printed"
    ]
