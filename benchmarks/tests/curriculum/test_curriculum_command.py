"""`sgoif-bench curriculum` from the command line: a grid that can be interrupted, its file, tables and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgoif.errors import SettingError
from sgoif_bench.cli import main as cli
from sgoif_bench.curriculum.grid import KIND
from sgoif_bench.curriculum.run import GRID, main
from sgoif_bench.curriculum.settings import CurriculumBenchSettings
from sgoif_bench.curriculum.table import CurriculumTableSettings
from sgoif_bench.kinds import kind_of
from sgoif_bench.tables.layout import build, render

SMALL = [
    *("--sets", "digits", "--noises", "symmetric-40,none", "--methods", "curriculum,plain,oracle", "--seeds", "0"),
    *("--epochs", "2", "--limit", "200", "--anchors", "40", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("grid") / "found.jsonl"
    assert main([*SMALL, "--tail", "none,5", "--out", str(out)]) == 0
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_cell_is_there_once_with_its_figures(results: Path) -> None:
    found = lines(results)
    assert len(found) == len({KIND.key_of(line) for line in found}) == 12
    for line in found:
        assert 0 <= line["metrics"]["accuracy"] <= 1
        assert len(line["epochs"]) == 2
        assert line["command"].startswith("python -m sgoif_bench.curriculum.run --sets digits")
        assert line["tested"] > 0
        expected = round(0.4 * line["examples"]) if line["noise"] == "symmetric-40" else 0
        assert line["wrong"] == expected
        if line["method"] == "plain":
            assert line["metrics"]["wrong_weight"] == pytest.approx(line["wrong"] / line["examples"])
        if line["method"] == "oracle":
            assert line["metrics"]["wrong_weight"] == 0
    tailed = [line for line in found if line["recipe"]["tail"] == 5]
    assert len(tailed) == 6
    for line in tailed:
        assert line["sizes"][0] == 5 * line["sizes"][9] or line["sizes"][0] > 4 * line["sizes"][9]
        assert line["minority"] == [7, 8, 9]
        assert line["metrics"]["minority_recall"] is not None
    whole = [line for line in found if line["recipe"]["tail"] is None]
    assert all(line["metrics"]["minority_recall"] is None for line in whole)


def test_what_is_there_is_not_computed_again(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results.read_bytes()
    assert main([*SMALL, "--tail", "none,5", "--out", str(results), "--json"]) == 0
    shown = capsys.readouterr()
    assert results.read_bytes() == before
    assert "12 results asked for, 12 already" in shown.err
    whole = json.loads(shown.out)
    assert len(whole["results"]) == 12
    assert whole["failed"] == []


def test_a_lost_line_is_made_up_for(results: Path, tmp_path: Path) -> None:
    some = tmp_path / "some.jsonl"
    kept = results.read_text(encoding="utf-8").splitlines(keepends=True)
    some.write_text("".join(kept[1:]) + kept[0][:40], encoding="utf-8")
    settings = CurriculumBenchSettings(
        noises="symmetric-40,none", methods="curriculum,plain,oracle", tail="none,5", epochs=2, limit=200, anchors=40
    )
    done = {KIND.key_of(line): line for line in KIND.read([some])}
    left = GRID.pending(settings.jobs(), done)
    assert [str(job) for job in left] == ["digits symmetric-40 curriculum seed 0"]
    assert len(GRID.asked_for(settings.jobs(), done)) == 11


def test_the_same_seed_gives_the_same_figures(results: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    assert main([*SMALL, "--noises", "symmetric-40", "--methods", "curriculum", "--out", str(again)]) == 0
    (mine,) = lines(again)
    (theirs,) = (line for line in lines(results) if KIND.key_of(line) == KIND.key_of(mine))
    assert [record["accuracy"] for record in mine["epochs"]] == [record["accuracy"] for record in theirs["epochs"]]


def test_settings_of_ours_make_other_cells_of_ours_alone() -> None:
    plain, asked = (
        CurriculumBenchSettings(noises="none", methods="curriculum,plain", epochs=2, **options).jobs()
        for options in ({}, {"floor": 0.2, "joined": 0.5})
    )
    ours, theirs = zip(plain, asked, strict=True)
    assert ours[0].key("curriculum") != ours[1].key("curriculum")
    assert ours[1].recipe["curriculum"] == {"joined": 0.5, "floor": 0.2}
    assert "curriculum" not in ours[0].recipe
    assert str(ours[1]) == "digits none curriculum joined=0.5 floor=0.2 seed 0"
    assert theirs[0].key("plain") == theirs[1].key("plain")


def test_table_shows_the_ceiling_but_never_as_the_best(results: Path) -> None:
    found = lines(results)
    for line in found:
        line["metrics"]["accuracy"] = {"oracle": 0.99, "curriculum": 0.9, "plain": 0.8}[line["method"]]
    text = render(found, CurriculumTableSettings())
    assert text.count("**90.0**") == 4
    assert "99.0" in text
    assert "**99.0**" not in text
    assert "digits, long tail 1:5, test accuracy" in text
    assert "no noise" in text
    (one, other) = build(found, CurriculumTableSettings(where=("noise=none",)))
    assert [row[0] for row in one.rows] == ["curriculum", "plain", "oracle"]
    assert other.title != one.title
    several = render(found, CurriculumTableSettings(metric="accuracy,wrong_weight", format="json"))
    assert len(json.loads(several)["tables"]) == 4


def test_table_command_knows_the_file(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of([results]) == "curriculum"
    assert cli(["table", str(results), "--metric", "accuracy_best"]) == 0
    assert "best epoch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "magic"], "no method magic"),
        (["--tail", "many"], "--tail takes none or numbers"),
        (["--tail", "0.5"], "must be more than 1"),
        (["--noises", "chaos"], "chaos"),
        (["--workers", "0"], "workers"),
        (["--model", "alexnet"], "no model"),
        (["--sets", "cifar10"], "--data ROOT is needed"),
        (["--sets", "stars"], "stars"),
        (["--joined", "1"], "joined = 1.0 must be a share"),
        (["--floor", "0"], "floor=0.0"),
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


def test_table_settings_are_checked(results: Path) -> None:
    with pytest.raises(SettingError, match="no metric"):
        CurriculumTableSettings(metric="beauty")
    with pytest.raises(SettingError, match="at once"):
        CurriculumTableSettings(rows="noise")
    with pytest.raises(SettingError, match="none of these results"):
        build(
            [line for line in lines(results) if line["method"] == "plain"], CurriculumTableSettings(metric="overhead")
        )
