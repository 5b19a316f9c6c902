"""The command line as a tree."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import typer

from sgoif.cli.app import app


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
