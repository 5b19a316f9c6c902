"""`sgoif-bench findings`, `findings-speed` and `findings-scale`, on generated images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sgoif.errors import SgoifError
from sgoif.images import parts
from sgoif_bench.cli import main as cli
from sgoif_bench.findings import run, scale, speed
from sgoif_bench.findings.grid import KIND
from sgoif_bench.kinds import kind_of

ASKED = ["--limit", "420", "--scratch", "kept"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("findings")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run.main([*ASKED, "--out", "found.jsonl"]) == 0
        assert not list((place / "kept").iterdir())
    return place / "found.jsonl"


def test_what_is_planted_is_found_and_a_clean_folder_is_left_alone(results: Path) -> None:
    lines = {line["kind"]: line for line in KIND.read([results])}
    for kind in (
        "unreadable",
        "misnamed",
        "dark",
        "bright",
        "blurry",
        "aspect",
        "size",
        "copies",
        "twin-names",
    ):
        assert lines[kind]["metrics"]["recall"] == 1, kind
        assert lines[kind]["metrics"]["precision"] == 1, kind
    for line in lines.values():
        assert line["metrics"]["alarms"] <= 1, line["kind"]
        assert (line["set"], line["seed"], line["clean_images"]) == ("generated", 0, 420)
        assert {"command", "versions", "machine", "recipe"} <= line.keys()
    assert "off-topic" not in lines


def test_what_is_there_is_not_computed_again(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(results.parent)
    before = results.read_bytes()
    assert run.main([*ASKED, "--out", "found.jsonl"]) == 0
    assert results.read_bytes() == before
    assert "| dark | 100 / 100 / 0.00 |" in capsys.readouterr().out
    assert kind_of([results]) == "findings"
    assert cli(["table", str(results)]) == 0
    assert "| dark | 100 / 100 / 0.00 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sets", "moon"], "no set 'moon'"),
        (["--rate", "0.5"], "--rate 0.5"),
        (["--kinds", "off-topic"], "--backbone"),
        (["--sets", "photos"], "--data ROOT"),
        (["--jobs", "0"], "--jobs 0"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*options, "--out", str(tmp_path / "found.jsonl")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells the peak of a process")
def test_programs_are_timed_in_processes_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    asked = ["--images", "100", "--repeats", "1", "--no-datalab", "--scratch", str(tmp_path / "kept")]
    assert speed.main([*asked, "--out", str(out)]) == 0
    whole = json.loads(out.read_text())
    assert whole["images"] == 100
    assert list(whole["runs"]) == ["sgoif"]
    (found,) = whole["runs"]["sgoif"]
    assert found["cpu_seconds"] > 0
    assert 2**24 < found["peak_bytes"] < 2**31
    assert {"dark", "copies", "near-copies"} <= found["found"].keys()
    assert "images per CPU second" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells the peak of a process")
def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(SgoifError, match="ended with exit code 1: ValueError: wet"):
        speed.timed(sys.executable, "def look(folder):\n    raise ValueError('wet')\n", tmp_path, tmp_path / "answer")


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells the peak of a process")
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "START", "fork")
    monkeypatch.setattr(parts, "MOST_IMAGES", 32)
    out = tmp_path / "scale.json"
    asked = ["--sets", "generated,digits", "--images", "240", "--scratch", str(tmp_path / "kept")]
    assert scale.main([*asked, "--out", str(out)]) == 0
    whole = json.loads(out.read_text())
    assert whole["images"] == 240
    assert whole["same_findings"]
    assert whole["killed"]["read"] >= 120
    assert whole["resumed"]["first_told"] in (64, 96, 128)
    for found in (whole["whole"], whole["resumed"]):
        assert {"copies", "near-copies", "dark"} <= set(found["looked"])
        assert sum(found["seconds"].values()) < found["whole_seconds"]
        assert 2**24 < found["peak_bytes"] < 2**31
    assert not list((tmp_path / "kept").iterdir())
