"""The command line as a tree: every command, and the parser of every benchmark."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import typer

from sgoif.cli.app import app


class Parsed(Exception):
    """Arguments were accepted; nothing was run."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


@functools.cache
def tree() -> Any:
    return typer.main.get_command(app)


def walk(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every group and command with what one types for it."""
    command = command or tree()
    yield " ".join(("sgoif", *path)), command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*path, name))


def follow(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that these words lead to, and the words that are left for it."""
    command, rest = tree(), list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            raise ValueError(f"there is no command {rest[0]!r}; there are {', '.join(command.commands)}")
        command = command.commands[rest.pop(0)]
    return command, rest


def bench_parser(name: str, arguments: list[str]) -> None:
    """Parse with the parser of a benchmark; always leaves by an exception, `Parsed` if all is well."""
    real = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, given: Any = None, namespace: Any = None) -> Any:
        if given != ["--help"]:
            real(parser, given, namespace)
        raise Parsed(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse):
        command, _ = follow(["bench", name])
        with command.make_context(name, list(arguments), allow_extra_args=True, ignore_unknown_options=True) as context:
            command.invoke(context)
