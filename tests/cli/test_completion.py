"""Shell completion answers what a shell asks, and does not wait for heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sgoif.cli import main

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What completion offers after these words; in this process, as a shell would ask the program."""

    def ask(words: str, shell: str = "bash") -> str:
        monkeypatch.setenv("_SGOIF_COMPLETE", f"complete_{shell}")
        if shell == "bash":
            monkeypatch.setenv("COMP_WORDS", words)
            monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        else:
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
        assert main([]) == 0
        return capfd.readouterr().out

    return ask


def test_bash_completes_commands_and_options(asked: Callable[..., str]) -> None:
    assert asked("sgoif au").split() == ["audit"]
    assert asked("sgoif sentinel fit --im").split() == ["--image-size", "--image-column"]
    assert asked("sgoif b").split() == []


def test_zsh_completes_with_explanations(asked: Callable[..., str]) -> None:
    text = asked("sgoif unlearn ", "zsh")
    assert '"verify":' in text
    assert '"request":' in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_can_be_shown(
    shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert main(["--show-completion", shell]) == 0
    text = capfd.readouterr().out
    assert "_SGOIF_COMPLETE" in text
    assert f"complete_{shell}" in text


BARE = """
import sys, types
package = types.ModuleType("sgoif")
package.__path__, package.__version__ = [sys.argv[1]], "0"
sys.modules["sgoif"] = package
import sgoif.cli.app
heavy, inner = (set(words.split(",")) for words in sys.argv[2:])
print(sorted(name for name in sys.modules if name.partition(".")[0] in heavy or name in inner))
"""


def test_the_command_line_itself_imports_neither_torch_nor_numpy() -> None:
    """The package is put in place without its `__init__`, so that only what the commands import counts."""
    heavy = "torch,numpy,matplotlib,pandas,pyarrow,sklearn,scipy,PIL,lightning,transformers"
    inner = "sgoif.monitor,sgoif.audit.audit,sgoif.commands.sentinel.fitting,sgoif.tasks"
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(SOURCES / "sgoif"), heavy, inner],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_an_answer_does_not_wait_for_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, sgoif.cli.app; print('torch' in sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "False", done.stderr
