"""The harness itself: a short version of it, and that it notices what it looks for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fault_program import result_of

from sgoif.errors import SettingError
from sgoif_bench.faults import child
from sgoif_bench.faults.cases import RAN, Case, tried
from sgoif_bench.faults.inspection import PHASES, Seen, look
from sgoif_bench.faults.kills import _shrunk
from sgoif_bench.faults.run import failed, main, run_sound, summary
from sgoif_bench.faults.settings import FaultSettings

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"), pytest.mark.slow]
KILLS = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = ("--kills", str(KILLS), "--epochs", "4", "--no-inputs")
    return result_of(tmp_path_factory.mktemp("faults"), *options)


def test_killed_audits_lose_nothing(whole: dict[str, Any]) -> None:
    kills = [kill for run in whole["runs"] for kill in run["kills"]]
    assert len(kills) == KILLS
    assert [run for run in whole["runs"] if not run_sound(run)] == []
    assert {run["rows"] for run in whole["runs"]} == {120}
    assert {kill["phase"] for kill in kills} <= set(PHASES)


def test_finished_kills_are_not_repeated(whole: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    out.write_text(json.dumps(whole))
    assert main(["--kills", str(KILLS), "--no-inputs", "--out", str(out)]) == failed(whole["summary"])
    assert json.loads(out.read_text())["runs"] == whole["runs"]
    out.write_text("[]")
    assert main(["--kills", "1", "--no-inputs", "--out", str(out)]) == 2
    assert out.read_text() == "[]"


def test_a_partial_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"settings": {')
    (tmp_path / "checkpoint.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "issues.csv").write_text("path,label\na,b\nc")
    (tmp_path / "report.html").write_text("<html>")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "images.json").write_text("{}")
    (tmp_path / ".live.json.x.part").write_text("{")
    seen = look(tmp_path)
    wrong = {problem.partition(":")[0] for problem in seen.problems}
    assert wrong == {"run.json", "checkpoint.npz", "issues.csv", "report.html", "cache"}
    assert seen.unfinished == 1
    assert look(tmp_path / "nothing") == Seen("starting", 0, 0, 0, 0, [])


def test_going_back_is_noticed() -> None:
    before, after = Seen("training", 7, 0, 5, 0, []), Seen("reading images", 3, 0, 2, 0, [])
    assert len(_shrunk(before, after)) == 2
    assert _shrunk(after, before) == []


def test_a_case_that_goes_wrong_is_noticed(tmp_path: Path) -> None:
    def touches(folder: Path) -> list[str]:
        (folder / RAN).touch()
        return ["info"]

    found = tried(Case("x", touches, 2, "never said"), tmp_path)
    assert not found["ok"]
    assert [problem[:12] for problem in found["wrong"]] == ["exit code 0 ", "'never said'", "something in"]

    def breaks(folder: Path) -> None:
        raise ZeroDivisionError

    found = tried(Case("x", lambda folder: ["info"], 0, "", breaks), tmp_path)
    assert found["exit_code"] == child.CRASHED
    assert "a stack trace" in found["wrong"]


def test_a_kill_ends_the_whole_group(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"

    def act() -> int:
        process = subprocess.Popen(["sleep", "60"])
        note.write_text(str(process.pid))
        return process.wait()

    running = child.forked(act, tmp_path / "log")
    while running.wait(0) is None and not (note.exists() and note.read_text()):
        pass
    assert running.kill().code == -9
    status = Path(f"/proc/{note.read_text()}/stat")
    assert not status.exists() or status.read_text().split()[2] in "ZX"


def test_a_summary_counts_what_went_wrong() -> None:
    kill = {"phase": "training", "unfinished": 1, "interpreter": "forked", "problems": ["run.json: cut"]}
    run = {"kills": [kill], "finished": True, "same_table": True, "left_over": 0, "problems": []}
    found = summary({"runs": [run], "inputs": [{"ok": True}]})
    assert (found["kills"], found["partial_files"], found["audits_sound"]) == (1, 1, 0)
    assert failed(found)
    assert not failed(summary({"runs": [{**run, "kills": []}], "inputs": [{"ok": True}]}))


@pytest.mark.parametrize("given", [{"kills": -1}, {"fuzz_minutes": -1.0}, {"epochs": 0}, {"kills": 0, "inputs": False}])
def test_settings_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        FaultSettings(**given)
