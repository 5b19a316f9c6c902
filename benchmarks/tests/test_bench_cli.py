"""`sgoif-bench` as a person or a script meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench_paths import RESULTS, environment

from sgoif_bench.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["detection", "--data", "nowhere"], "cifar-10-batches-bin"),
        (["detection", "--data", "nowhere", "--variants", "{"], "JSON"),
        (["overhead", "--repeats", "0"], "repeats"),
        (["plot", "seeds"], "--out"),
        (["table"], "argument 'files'"),
        (["lables"], "lables"),
        (["table", "nowhere.jsonl"], "nowhere.jsonl"),
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


def test_a_table_of_deletions_has_one_form(capfd: pytest.CaptureFixture[str]) -> None:
    file = str(RESULTS / "unlearning-digits.jsonl")
    assert main(["table", file]) == 0
    assert "one Newton step" in capfd.readouterr().out
    assert main(["table", file, "--format", "latex"]) == 2
    assert "one form" in capfd.readouterr().err
    assert main(["table", file, "--rows", "seed"]) == 2
    assert "one form" in capfd.readouterr().err


def test_the_module_is_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sgoif-bench ")
    command = [sys.executable, "-m", "sgoif_bench", "labels", "--seeds", "x", "--sets", "digits"]
    done = subprocess.run(
        [*command, "--noises", "symmetric-20"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sgoif-bench labels: --seeds takes whole numbers from 0 up, separated by commas; got 'x'\n"


def test_a_benchmark_shows_its_name_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: sgoif-bench labels ")


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sgoif_bench.kinds.table_of", interrupted)
    assert main(["table", "r.jsonl"]) == 130


def test_help_does_not_wait_for_torch() -> None:
    program = "import sys, sgoif_bench.cli; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
