"""`--help` is complete: every command, option and argument says what it is for."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from cli_parts import Parsed, bench_parser, walk

from sgoif.cli import main
from sgoif.cli.app import PANELS

COMMANDS = list(walk())
BENCHMARKS = [(path, command) for path, command in COMMANDS if command.context_settings.get("ignore_unknown_options")]
LEAST = 10


def unexplained(path: str, command: Any) -> list[str]:
    """What has no help text, or one too short to help."""
    wrong = [] if len((command.help or "").strip()) >= LEAST else [path]
    return wrong + [f"{path} {item.name}" for item in command.params if len(getattr(item, "help", None) or "") < LEAST]


def parser_of(name: str) -> argparse.ArgumentParser:
    with pytest.raises(Parsed) as caught:
        bench_parser(name, ["--help"])
    return caught.value.parser


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=found[0]) for found in COMMANDS])
def test_a_command_and_all_it_takes_is_explained(path: str, command: Any) -> None:
    assert unexplained(path, command) == []


@pytest.mark.parametrize("command", [pytest.param(command, id=path) for path, command in BENCHMARKS])
def test_a_benchmark_and_all_its_options_are_explained(command: Any) -> None:
    parser = parser_of(command.name)
    assert len(parser.description or "") >= LEAST
    assert [action.dest for action in parser._actions if len(action.help or "") < 5] == []
    assert "--json" in parser.format_help()  # a stray % in a help text would raise here


def test_all_benchmarks_were_looked_at() -> None:
    assert {command.name for _, command in BENCHMARKS} >= {"overhead", "labels", "ood", "unlearning", "poisoning"}
    assert len(COMMANDS) > 25


def test_a_missing_help_text_is_noticed() -> None:
    import typer

    made = typer.Typer()

    @made.command()
    def naked(number: int = 3) -> None:
        pass

    assert unexplained("naked", typer.main.get_command(made)) == ["naked", "naked number"]


def test_every_command_can_print_json() -> None:
    def prints(command: Any) -> bool:
        if command.context_settings.get("ignore_unknown_options"):
            return "--json" in parser_of(command.name)._option_string_actions
        return any("--json" in item.opts for item in command.params)

    assert [path for path, command in COMMANDS if not hasattr(command, "commands") and not prints(command)] == []


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
