"""Labels by features of shards: the judgement of the rows themselves, in one part or several, by one process or two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch.distributed as dist
from shard_cases import PART_ROWS, command, finished, tables

from sgoif.cli import main
from sgoif.distributed.launch import _free_port
from sgoif.sharded import dealing, judge_features
from sgoif.sharded.feature_files import FeatureFolder, read_rows
from sgoif.sharded.merging import merged
from sgoif.tasks.crossfit import CrossFit


def issues(out: Path) -> list[dict[str, Any]]:
    return pyarrow.parquet.read_table(out / "issues.parquet").to_pylist()


def is_wrong(row: dict[str, Any]) -> bool:
    return int(row["key"][-5:]) % 12 == 5


def test_wrong_labels_come_first_and_every_image_once(alone: Any) -> None:
    rows, summary = issues(alone.judged.out), alone.judged.summary
    assert sorted(row["key"] for row in rows) == [f"train/{number:05}" for number in range(240)]
    assert [row["probability_wrong"] for row in rows] == sorted((r["probability_wrong"] for r in rows), reverse=True)
    assert sum(map(is_wrong, rows[:20])) >= 15
    assert all(row["predicted_label"] == str(int(row["key"][-5:]) % 3) for row in rows[:10] if is_wrong(row))
    assert {row["part"] for row in rows} == {0, 1}
    assert (summary["images"], summary["parts"], summary["classes"], summary["skipped"]) == (240, 2, 3, 0)
    lines = (alone.judged.out / "issues.csv").read_text().splitlines()
    assert len(lines) == 241
    assert lines[1].startswith(f"{rows[0]['key']},{rows[0]['shard']},")


def test_a_part_is_judged_as_its_rows_are(alone: Any) -> None:
    parts: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for row in (row for table in tables(alone.features).values() for row in table):
        parts[row["lot"] * 2 >> 64].append(row)
    mine = sorted(parts[0], key=lambda row: row["lot"])
    labels = np.array([int(row["label"]) for row in mine])
    table = CrossFit(np.array([row["features"] for row in mine]), labels, ["0", "1", "2"]).findings().table()
    expected = dict(zip((row["key"] for row in mine), table["probability_wrong"].tolist(), strict=True))
    found = {row["key"]: row["probability_wrong"] for row in issues(alone.judged.out) if row["part"] == 0}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_two_processes_judge_as_one_does(alone: Any, tmp_path: Path) -> None:
    words = ["judge", str(alone.features), "--out", str(tmp_path), "--part-rows", str(PART_ROWS), "--device", "cpu"]
    port = _free_port()
    (told, _), (silent, _) = finished(*(command(*words, "--json", rank=rank, port=port) for rank in (0, 1)))
    assert silent == ""
    assert json.loads(told)["images"] == 240
    for name in ("issues.csv", "skipped.csv", "summary.json", "plan.json"):
        assert (tmp_path / name).read_bytes() == (alone.judged.out / name).read_bytes()
    assert issues(tmp_path) == issues(alone.judged.out)
    assert not list(tmp_path.glob("parts/rows-*"))


def test_what_is_done_is_not_done_again(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (alone.judged.out / "issues.csv").read_bytes()
    (alone.judged.out / "issues.csv").unlink()
    monkeypatch.setattr("sgoif.sharded.judging.CrossFit", None)
    judge_features(alone.features, alone.judged.out, part_rows=PART_ROWS)
    assert (alone.judged.out / "issues.csv").read_bytes() == before
    with pytest.raises(ValueError, match="with other settings"):
        judge_features(alone.features, alone.judged.out, part_rows=PART_ROWS, seed=1)


def test_rows_are_dealt_alike_however_they_are_bundled(
    alone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []
    for rows in (50, 10_000):
        monkeypatch.setattr(dealing, "ROWS_DEALT", rows)
        deal = dealing.Deal(FeatureFolder(alone.features), 144, 30, tmp_path / str(rows))
        for rank in range(3):
            deal.copy(rank, 3)
        parts = [read_rows(deal.pieces(part), 144) for part in range(deal.parts)]
        seen.append([(part.key, part.label, part.features.tobytes()) for part in parts])
        assert len(parts) == 8
        deal.clear()
        assert not list((tmp_path / str(rows)).iterdir())
    assert seen[0] == seen[1]
    assert sorted(key for keys, _, _ in seen[0] for key in keys) == [f"train/{number:05}" for number in range(240)]
    assert max(len(keys) for keys, _, _ in seen[0]) < 50


@pytest.mark.parametrize("held", [1, 7, 40, 10_000])
def test_tables_are_merged_as_if_they_were_one(held: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for number, size in enumerate((0, 1, 50, 33, 90)):
        p = np.sort(rng.integers(0, 20, size) / 20)[::-1].astype(np.float32)
        paths.append(tmp_path / f"{number}.parquet")
        table = pyarrow.table({"probability_wrong": p, "at": np.arange(size), "part": np.full(size, number)})
        pyarrow.parquet.write_table(table, paths[-1], row_group_size=16)
    found = [row for table in merged(paths, held) for row in table.to_pylist()]
    p = [row["probability_wrong"] for row in found]
    assert p == sorted(p, reverse=True)
    assert len({(row["part"], row["at"]) for row in found}) == len(found) == 174


def test_names_of_classes_and_mistakes_in_them(alone: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "names.json"
    words = ["judge", str(alone.features), "--out", str(tmp_path / "out"), "--class-names", str(names)]
    for content, told in (
        ('["cat", "dog"]', "the label '2' has no name"),
        ("{}", "holds no list"),
        ("[", "not a JSON"),
    ):
        names.write_text(content)
        assert main(words) == 2
        assert told in capsys.readouterr().err
    names.write_text('["[red]dog", "=1+1", "owl"]')
    assert main([*words[:3], str(tmp_path / "named"), *words[4:], "--part-rows", "1000"]) == 0
    assert "[red]dog" in capsys.readouterr().out
    assert re.search(r",'=1\+1,", (tmp_path / "named" / "issues.csv").read_text())
    assert {row["given_label"] for row in issues(tmp_path / "named")} == {"=1+1", "[red]dog", "owl"}


@pytest.mark.parametrize("rows", [1, 6])
def test_parts_that_are_too_small_are_named(alone: Any, rows: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"part \d+ of \d+ .*--part-rows"):
        judge_features(alone.features, tmp_path, part_rows=rows)


def test_a_folder_without_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sgoif features SHARDS --out"):
        judge_features(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
