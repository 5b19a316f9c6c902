"""`sgoif audit` and `sgoif apply` as a person or a script meets them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from audit_cases import make_folder

from sgoif.cli import audit as command
from sgoif.cli import main

QUICK = ["--model", "tiny_nets:tiny", "--device", "cpu", "--epochs", "2"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_is_one_object_and_everything_else_is_a_message(
    photos: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(photos), *QUICK, "--json"]) == 0
    streams = capfd.readouterr()
    printed = json.loads(streams.out)
    assert printed["images"] == 180
    assert Path(printed["report"]) == here / "sgoif-audit-photos" / "report.html"
    assert Path(printed["issues"]).is_file()
    written = json.loads((here / "sgoif-audit-photos" / "summary.json").read_text())
    assert {key: printed[key] for key in written} == written
    assert "training tiny_nets:tiny" in streams.err


def test_a_person_gets_a_sentence_and_the_worst_images(
    photos: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(photos), *QUICK, "--out", "results"]) == 0
    streams = capfd.readouterr()
    assert "of 180 labels look wrong" in " ".join(streams.out.split())
    assert "suggested" in streams.out
    assert "report.html" in streams.err


def test_a_label_that_the_model_would_give_too_has_no_other_suggested() -> None:
    rows = pd.DataFrame({"path": ["a.png", "b.png"], "given_label": ["cat", "cat"], "predicted_label": ["dog", "cat"]})
    table = rows.assign(probability_wrong=[0.9, 0.1])
    rate = {"estimate": 0.1, "low": 0.0, "high": 0.2, "told": True}
    summary = {"images": 2, "selected": 1, "fdr": 0.1, "noise_rate": rate}
    result: Any = SimpleNamespace(summary=summary, table=table)
    listing: Any = command._worst(result)
    assert [cell.plain for cell in listing.columns[2].cells] == ["dog", "–"]


def test_a_model_that_learned_nothing_is_named_and_states_no_share(
    photos: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(photos), *QUICK, "--learning-rate", "1e-12", "--out", "run"]) == 0
    streams = capfd.readouterr()
    sentence = " ".join(streams.out.split())
    assert sentence.startswith("It cannot be told how many of 180 labels are wrong")
    assert "none is surely" in sentence
    assert "are worth a look" in sentence
    assert "--weights" in " ".join(streams.err.split())
    written = json.loads((here / "run" / "summary.json").read_text())
    assert written["noise_rate"]["told"] is False
    assert written["noise_rate"]["low"] == 0
    assert written["noise_rate"]["high"] > 0.5
    assert written["expected_precision"] == {}
    assert json.loads((here / "run" / "live.json").read_text())["estimate"] is None


def test_names_cannot_speak_to_the_terminal(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    classes = ("[bold red]a[/]", "\x1b[31mred", "b\nc")
    make_folder(here / "data", classes=classes, per_class=12)
    assert main(["audit", "data", *QUICK]) == 0
    out = capfd.readouterr().out
    assert "\x1b[31m" not in out
    assert "[bold red]a[/]" in out or "\\x1b[31mred" in out


def test_resuming_needs_a_word_and_the_same_settings(
    photos: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(photos), *QUICK, "--out", "run"]) == 0
    capfd.readouterr()
    assert main(["audit", str(photos), *QUICK, "--out", "run"]) == 2
    assert "--resume" in capfd.readouterr().err
    assert main(["audit", str(photos), *QUICK, "--out", "run", "--resume", "--seed", "4"]) == 2
    assert "seed was 0, now 4" in capfd.readouterr().err
    assert main(["audit", str(photos), *QUICK, "--out", "run", "--resume", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["images"] == 180


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "0"], "epochs"),
        (["--epochs", "many"], "--epochs"),
        (["--fdr", "2"], "fdr"),
        (["--device", "abacus"], "device"),
        (["--model", "nothing"], "resnet9"),
        (["--model", "no_module_of_this_name:make"], "cannot be imported"),
        (["--weights", "none.safetensors"], "no such file"),
        (["--finetune", "--from-scratch"], "--from-scratch does without"),
        (["--finetune", "--backbone", "none"], "--backbone none does without"),
        (["--finetune", "--model", "resnet9"], "--model does without"),
        (["--holdout", "0.9"], "holdout"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(
    options: list[str], message: str, photos: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(photos), *options]) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""


def test_decisions_are_applied_to_a_copy(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = make_folder(here / "data", per_class=4, wrong=0)
    first, second = sorted((data / "bars").glob("*.png"))[:2]
    with (here / "decisions.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["path", "decision", "given_label", "new_label", "source"])
        writer.writerow([f"bars/{first.name}", "relabel", "bars", "dots", str(data)])
        writer.writerow([f"bars/{second.name}", "drop", "bars", "", str(data)])
    assert main(["apply", "decisions.csv", "--to", "clean", "--dry-run", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert (printed["dry_run"], printed["dropped"], printed["kept"]) == (True, 1, 10)
    assert printed["relabelled"] == [{"from": "bars", "to": "dots", "count": 1}]
    assert not (here / "clean").exists()
    assert main(["apply", "decisions.csv", "--to", "clean"]) == 0
    assert "relabelled" in capfd.readouterr().out
    assert (here / "clean" / "dots" / first.name).is_file()
    assert not (here / "clean" / "bars" / second.name).exists()
    assert main(["apply", "nowhere.csv", "--to", "other"]) == 2
