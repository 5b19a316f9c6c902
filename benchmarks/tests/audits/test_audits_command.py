"""`sgoif-bench audits`: its lines, its file, the ways it asks for, its table and mistakes."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sgoif.audit.choice import CHOICE
from sgoif.core.serialization import save_state
from sgoif.errors import SgoifError
from sgoif_bench.audits import run, runner
from sgoif_bench.audits.grid import KIND
from sgoif_bench.audits.process import Measured
from sgoif_bench.cli import main as cli
from sgoif_bench.kinds import kind_of

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
pytest.importorskip("PIL.Image")
WRONG = 14
"""Labels of 90 that are wrong."""


class Audit:
    """Stands for the process: ranks images by the number of their class, and takes as long as its features ask for."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], Mapping[str, str]]] = []
        self.images: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Measured:
        folder, out, kept = Path(arguments[0]), Path(arguments[2]), Path(environment["SGOIF_CACHE"])
        self.calls.append((list(arguments[3:]), environment))
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
        self.images.append(names)
        out.mkdir()
        with (out / "issues.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "is_label_issue", "probability_wrong"])
            rows.writerows([name, name.startswith("000"), 0.1] for name in names)
        summary = {"classes": 10, "skipped": 0, "noise_rate": {"estimate": 0.1}, "stopped": "done"}
        (out / "summary.json").write_text(json.dumps({**summary, "plan": {"model": "net"}}))
        if not {"--from-scratch", "--finetune"} & set(arguments):
            save_state(out / CHOICE, {"method": "frozen", "agreement": {"frozen": 0.9, "scratch": 0.8}})
        seconds = 1.0 if kept.is_dir() else 4.0
        kept.mkdir(exist_ok=True)
        return Measured(seconds, 2 * seconds, {"start": seconds})


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Audit:
    found = Audit()
    monkeypatch.setattr(runner, "run_audit", found)
    monkeypatch.chdir(tmp_path)
    return found


def ask(out: Path, *further: str) -> int:
    small = ["--limit", "90", "--noises", "symmetric-15", "--device", "cpu", "--threads", "3"]
    return run.main([*small, "--scratch", "kept", "--out", str(out), *further])


def test_lines_are_complete_and_are_not_made_again(
    audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.jsonl"
    assert ask(out, "--seeds", "1") == 0
    automatic, scratch = KIND.read([out])
    assert [automatic["way"], scratch["way"]] == ["automatic", "from-scratch"]
    assert [given for given, _ in audit.calls] == [
        ["--seed", "1", "--device", "cpu"],
        ["--seed", "1", "--device", "cpu", "--from-scratch"],
    ]
    assert audit.images[0] == audit.images[1]
    assert {environment["OMP_NUM_THREADS"] for _, environment in audit.calls} == {"3"}
    for line in (automatic, scratch):
        assert (line["examples"], line["wrong"], line["classes"], line["seed"]) == (90, WRONG, 10, 1)
        assert (line["seconds"], line["cpu_seconds"], line["stages"]) == (4.0, 8.0, {"start": 4.0})
        assert line["machine"]["torch_threads"] == 3
        assert {"limit": 90, "threads": 3, "device": "cpu", "backbone": "lite0"}.items() <= line["recipe"].items()
        assert {"command", "versions", "metrics", "list", "noise_rate"} <= line.keys()
    assert (automatic["chosen"], scratch["chosen"]) == ("frozen", None)
    assert not list((tmp_path / "kept").iterdir())
    before = out.read_bytes()
    assert ask(out, "--seeds", "1") == 0
    assert out.read_bytes() == before
    assert len(audit.calls) == 2
    assert kind_of([out]) == "audits"
    capsys.readouterr()
    assert cli(["table", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    aupr = f"{100 * automatic['metrics']['aupr']:.1f}"
    assert shown == f"| digits symmetric-15 | {aupr} | {aupr} | +0.0 | frozen | 1.00 |"


def test_kept_features_are_those_of_the_audit_before(audit: Audit, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert ask(out, "--ways", "automatic-warm") == 0
    (warm,) = KIND.read([out])
    assert (warm["way"], warm["seconds"], len(audit.calls)) == ("automatic-warm", 1.0, 2)
    assert ask(out, "--ways", "automatic,automatic-warm,finetuned") == 0
    assert {line["way"]: line["seconds"] for line in KIND.read([out])} == {
        "automatic-warm": 1.0,
        "automatic": 4.0,
        "finetuned": 4.0,
    }
    assert len(audit.calls) == 4


def test_an_audit_that_fails_leaves_no_line_and_the_others_go_on(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: Sequence[str], environment: Mapping[str, str]) -> Measured:
        if "--from-scratch" not in arguments:
            raise SgoifError("`sgoif audit` ended with exit code 2: no disk")
        return audit(arguments, environment)

    monkeypatch.setattr(runner, "run_audit", fail)
    assert ask(tmp_path / "found.jsonl") == 1
    assert (
        "FAILED digits symmetric-15 automatic seed 0: `sgoif audit` ended with exit code 2" in capsys.readouterr().err
    )
    assert [line["way"] for line in KIND.read([tmp_path / "found.jsonl"])] == ["from-scratch"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sets", "nonsense"], "no data set"),
        (["--ways", "nonsense"], "no way nonsense"),
        (["--noises", "nonsense"], "unknown"),
        (["--threads", "0"], "--threads 0"),
        (["--jobs", "0"], "--jobs 0"),
        (["--sets", "photos"], "--data ROOT"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    arguments: list[str], complaint: str, audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tmp_path / "found.jsonl", *arguments) == 2
    assert complaint in capsys.readouterr().err
    assert not audit.calls


def test_a_package_that_is_missing_is_named_first(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(name: str) -> Any:
        return None if name == "rich" else find_spec(name)

    monkeypatch.setattr(runner, "find_spec", without)
    assert ask(tmp_path / "found.jsonl") == 2
    assert "sgoif[cli]" in capsys.readouterr().err
    assert not audit.calls


@pytest.mark.slow
def test_a_real_audit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask(tmp_path / "found.jsonl", "--ways", "from-scratch", "--limit", "300") == 0
    (line,) = KIND.read([tmp_path / "found.jsonl"])
    assert line["metrics"]["aupr"] > 1.5 * line["wrong"] / line["examples"]
    assert {"start", "reading", "training", "judging", "page"} <= line["stages"].keys()
    assert line["network"].startswith("resnet7")
