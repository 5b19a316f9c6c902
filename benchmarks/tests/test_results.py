"""Every committed result file is read by what reads such files, whatever its command was called when it was written."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from bench_paths import RESULTS

from sgoif_bench.cli import main
from sgoif_bench.faults.run import show
from sgoif_bench.growth import slopes
from sgoif_bench.kinds import MARKS, OTHERWISE, kind_of

KINDS = (OTHERWISE, *MARKS)
SUMMARIES = {
    "curriculum-again", "curriculum-limits", "curriculum-robust", "curriculum-robust-once", "labels-cifar10-seventy",
    "labels-small-seventy", "poisoning-groups",
}  # fmt: skip
"""Lines put together from several results, which only a page or a note on a decision cites."""
GRIDS = [
    path
    for path in sorted(RESULTS.glob("*.jsonl"))
    if path.stem.partition("-")[0] in KINDS and path.stem not in SUMMARIES
]


def named(start: str) -> list[Path]:
    return sorted(RESULTS.glob(f"{start}*.json"))


def test_there_are_results() -> None:
    assert len(GRIDS) > 35
    assert {(RESULTS / f"{name}.jsonl").is_file() for name in SUMMARIES} == {True}


def test_every_file_holds_objects() -> None:
    for path in RESULTS.iterdir():
        text = path.read_text(encoding="utf-8")
        found = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        assert found, path.name
        assert all(isinstance(item, dict) and item for item in found), path.name


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_is_read_as_what_its_name_says(path: Path, tmp_path: Path) -> None:
    told: list[str] = []
    kind = path.stem.partition("-")[0]
    assert kind_of([path]) == kind
    read = import_module(f"sgoif_bench.{kind}.grid").KIND.read
    found = read([path], told.append)
    assert found
    assert told == []
    renamed = tmp_path / path.name
    renamed.write_text(path.read_text(encoding="utf-8").replace("sgoif bench", "sgoif-bench"), encoding="utf-8")
    assert [line["metrics"] for line in read([renamed], told.append)] == [line["metrics"] for line in found]


@pytest.mark.parametrize("path", named("detection"), ids=lambda path: path.stem)
def test_a_detection_is_drawn(path: Path, tmp_path: Path) -> None:
    assert main(["plot", "run", str(path), "--out", str(tmp_path / "a.png")]) == 0


def test_costs_and_faults_are_shown() -> None:
    measured = [found for found in map(json.loads, map(Path.read_text, named("overhead"))) if "settings" in found]
    assert len(measured) >= 8
    assert all(row["time_ratio"] > 0.9 for found in measured for row in found["layers"].values())
    assert all("kills" in show(json.loads(path.read_text())) for path in named("faults"))
    for path in named("scaling"):
        assert slopes(json.loads(path.read_text())["sweeps"])
