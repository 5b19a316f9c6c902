"""The command line of the benchmarks as a tree, and the parser of every benchmark."""

from __future__ import annotations

import argparse
import functools
from typing import Any
from unittest import mock

import typer

from sgoif_bench.cli import BENCHMARKS, app


class Parsed(Exception):
    """Arguments were accepted; nothing was run."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its name."""
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


def command(name: str) -> Any:
    if name not in commands():
        raise ValueError(f"there is no command {name!r}; there are {', '.join(commands())}")
    return commands()[name]


def bench_parser(name: str, arguments: list[str]) -> None:
    """Parse with the parser of a benchmark; always leaves by an exception, `Parsed` if all is well."""
    real = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, given: Any = None, namespace: Any = None) -> Any:
        if given != ["--help"]:
            real(parser, given, namespace)
        raise Parsed(parser)

    found = command(name)
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse),
        found.make_context(name, list(arguments), allow_extra_args=True, ignore_unknown_options=True) as context,
    ):
        found.invoke(context)


def is_benchmark(name: str) -> bool:
    """Whether it has options of its own, as benchmarks have, and tables and pictures have not."""
    return name in BENCHMARKS
