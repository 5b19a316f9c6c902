"""`--help` is complete: every benchmark, option and argument says what it is for."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from bench_cli_parts import Parsed, bench_parser, commands, is_benchmark

LEAST = 10


def parser_of(name: str) -> argparse.ArgumentParser:
    with pytest.raises(Parsed) as caught:
        bench_parser(name, ["--help"])
    return caught.value.parser


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in commands().items()])
def test_a_command_and_all_it_takes_is_explained(command: Any) -> None:
    assert len((command.help or "").strip()) >= LEAST
    assert [item.name for item in command.params if len(getattr(item, "help", None) or "") < LEAST] == []


@pytest.mark.parametrize("name", [name for name in commands() if is_benchmark(name)])
def test_a_benchmark_and_all_its_options_are_explained(name: str) -> None:
    parser = parser_of(name)
    assert parser.prog == f"sgoif-bench {name}"
    assert len(parser.description or "") >= LEAST
    assert [action.dest for action in parser._actions if len(action.help or "") < 5] == []
    assert "--json" in parser.format_help()  # a stray % in a help text would raise here


@pytest.mark.parametrize("name", [name for name in commands() if not is_benchmark(name)])
def test_what_reads_result_files_can_print_json(name: str) -> None:
    assert any("--json" in item.opts for item in commands()[name].params)


def test_all_benchmarks_were_looked_at() -> None:
    assert set(commands()) >= {"overhead", "labels", "ood", "unlearning", "poisoning", "table", "plot"}
    assert len(commands()) >= 16
