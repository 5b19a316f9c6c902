"""`--help` is complete: every command, option and argument says what it is for."""

from __future__ import annotations

from typing import Any

import pytest
from command_tree import walk

from sgoif.cli import main
from sgoif.cli.app import PANELS

COMMANDS = list(walk())
LEAST = 10


def unexplained(path: str, command: Any) -> list[str]:
    """What has no help text, or one too short to help."""
    wrong = [] if len((command.help or "").strip()) >= LEAST else [path]
    return wrong + [f"{path} {item.name}" for item in command.params if len(getattr(item, "help", None) or "") < LEAST]


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=found[0]) for found in COMMANDS])
def test_a_command_and_all_it_takes_is_explained(path: str, command: Any) -> None:
    assert unexplained(path, command) == []


def test_a_missing_help_text_is_noticed() -> None:
    import typer

    made = typer.Typer()

    @made.command()
    def naked(number: int = 3) -> None:
        pass

    assert unexplained("naked", typer.main.get_command(made)) == ["naked", "naked number"]


def test_every_command_can_print_json() -> None:
    commands = [(path, command) for path, command in COMMANDS if not hasattr(command, "commands")]
    assert len(commands) > 15
    assert [path for path, command in commands if not any("--json" in item.opts for item in command.params)] == []


def test_the_first_help_groups_all_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(panel) for panel in PANELS]
    assert places == sorted(places)
    assert " Commands " not in text, "a command is in no panel: name it in sgoif.cli.app.PANELS"
    for panel, commands in PANELS.items():
        section = text[text.index(panel) :].split("╰", 1)[0]
        assert all(f"│ {command} " in section for command in commands)
    assert "--install-completion" in text
