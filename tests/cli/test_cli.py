"""`sgoif` as a person or a script meets it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from warm_processes import COMMAND, python, sgoif

from sgoif.cli import main


def _environment() -> dict[str, str]:
    source = str(Path(__file__).resolve().parents[2] / "src")
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}


def test_demo_repeats_with_its_seed_and_shows_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = []
    for name in ("first", "second"):
        assert main(["demo", "--epochs", "2", "--seed", "3", "--out", str(tmp_path / name)]) == 0
        found.append(json.loads((tmp_path / name / "demo.json").read_text())["methods"])
    assert found[0] == found[1]
    streams = capfd.readouterr()
    assert "influence without the gate" in streams.out
    assert "AUPR" in streams.out


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_demo_prints_one_object_in_which_gated_influence_is_ahead(tmp_path: Path, seed: int) -> None:
    done = sgoif("demo", "--json", "--epochs", "24", "--seed", str(seed), "--out", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert set(printed) == {"seconds", "methods"}
    assert set(printed["methods"]) == {"influence", "influence_no_gate", "loss", "margin"}
    for metrics in printed["methods"].values():
        assert set(metrics) == {"p_at_1", "aupr", "auroc"}
        assert all(0 <= value <= 1 for value in metrics.values())
    saved = json.loads((tmp_path / "results" / "demo.json").read_text())
    assert [record["epoch"] for record in saved["epochs"]] == list(range(1, 25))
    assert saved["monitors"]["influence"]["history"]
    assert saved["methods"]["influence"]["aupr"] == printed["methods"]["influence"]["aupr"]
    found = {name: metrics["aupr"] for name, metrics in printed["methods"].items()}
    assert found["influence"] > max(found["loss"], found["margin"]) + 0.05
    assert found["influence"] > found["influence_no_gate"]
    assert saved["methods"]["influence"]["p_at_1"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--epochs", "0"], "epochs"),
        (["demo", "--epochs", "many"], "--epochs"),
        (["demo", "--noise-rate", "0.9"], "noise rate"),
        (["demo", "--seed", "-1"], "seed"),
        (["demo", "--colour"], "--colour"),
        (["dmeo"], "dmeo"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""


def test_a_place_that_cannot_be_written_is_noticed_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    start = time.perf_counter()
    assert main(["demo", "--epochs", "10000", "--out", str(occupied)]) == 2
    assert time.perf_counter() - start < 60
    assert "cannot be written" in capfd.readouterr().err


def test_version_and_info(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("sgoif ")
    assert main(["info", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert {"versions", "machine", "cuda_devices"} <= set(facts)
    assert main(["info"]) == 0
    assert "torch" in capfd.readouterr().out


def test_a_missing_extra_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sgoif.cli.find_spec", lambda name: None if name == "typer" else object())
    assert main(["info"]) == 2
    assert "pip install 'sgoif[cli]'" in capfd.readouterr().err


def test_importing_the_package_is_light() -> None:
    heavy = ["typer", "rich", "sklearn", "matplotlib", "pandas", "pyarrow", "scipy", "torchvision"]
    code = f"import sys, sgoif; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_leaves_with_130(tmp_path: Path) -> None:
    running = python(COMMAND, "demo", "--epochs", "10000", "--out", "results", cwd=tmp_path)
    try:
        assert "training" in running.stderr.readline()
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=60)
    finally:
        running.kill()
    # Python ends by the signal itself where compiled code was running a string when it came; a shell says 130 of both.
    assert running.returncode in (130, -signal.SIGINT), rest
    assert "Traceback" not in rest


def test_an_interrupt_that_was_swallowed_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from sgoif.commands.demo import demo

    load_digits = demo.load_digits

    def swallowing() -> object:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        return load_digits()

    monkeypatch.setattr(demo, "load_digits", swallowing)
    assert main(["demo", "--epochs", "50", "--out", str(tmp_path)]) == 130
    assert "Traceback" not in capfd.readouterr().err


def apply_in(folder: Path, environment: dict[str, str], redirect: str = "") -> subprocess.CompletedProcess[bytes]:
    """`sgoif apply --dry-run`, which prints an arrow and the names of classes."""
    x, y = np.zeros((6, 8, 8), np.uint8), np.array(["é", "ö"] * 3)
    np.savez(folder / "a.npz", x=x, y=y)
    header, row = "path,decision,given_label,new_label", "train/0,relabel,é,ö"
    (folder / "d.csv").write_text(f"{header}\n{row}\n", encoding="utf-8")
    line = f"exec '{sys.executable}' -m sgoif apply d.csv --to clean --source a.npz --dry-run {redirect}"
    environment = _environment() | environment
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, timeout=240, env=environment, check=False
    )


def test_a_locale_without_the_letters_escapes_them(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = apply_in(tmp_path, plain)
    assert done.returncode == 0, done.stderr
    assert rb"1  '\xe9' \u2192 '\xf6'" in done.stdout


@pytest.mark.parametrize("closed", ["1>&-", "2>&-"])
def test_a_closed_stream_is_no_reason_to_stop(tmp_path: Path, closed: str) -> None:
    done = apply_in(tmp_path, {"PYTHONIOENCODING": "utf-8"}, closed)
    assert done.returncode == 0, done.stderr
    assert (b"would write" in done.stdout) == (closed == "2>&-")
    assert ("1  'é' → 'ö'".encode() in done.stdout) == (closed == "2>&-")
    assert b"reading images" not in done.stdout
