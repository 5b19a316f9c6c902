"""Methods of a comparison by name: in order, by groups, and imported when they are first run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from sgoif.errors import SettingError
from sgoif_bench.journal import Line

FORMER = ", former"
"""Behind the name of a method whose results were written before it was changed."""


class Titled(Protocol):
    """Anything with a name for a table."""

    @property
    def title(self) -> str: ...


class Formed(Protocol):
    """A method that may have been changed since its first results."""

    @property
    def form(self) -> int: ...


def marked(methods: Mapping[str, Formed], line: Line) -> Line:
    """A result as it is shown: one of a former form of its method goes by a name of its own."""
    name = line["method"]
    if name not in methods or line.get("form", 1) == methods[name].form:
        return line
    return {**line, "method": f"{name}{FORMER}"}


def title_of(methods: Mapping[str, Titled], name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    now = name.removesuffix(FORMER)
    return f"{methods[now].title}{name[len(now) :]}" if now in methods else name


def in_order(methods: Mapping[str, Titled], names: Iterable[str]) -> list[str]:
    """Methods as the registry lists them, others behind."""
    listed = list(methods)
    return sorted(set(names), key=lambda name: (listed.index(name) if name in methods else len(listed), name))


def choose(
    methods: Mapping[str, Titled], groups: Mapping[str, Sequence[str]], wanted: str, what: str = "method"
) -> list[str]:
    """Methods from a list of names and groups as the user wrote it, in the order of the registry.

    `what` is the word for one of them; the option is called by its plural.
    """
    words = [word.strip() for word in wanted.split(",") if word.strip()]
    unknown = [word for word in words if word not in groups and word not in methods]
    if unknown or not words:
        found = f"there is no {what} {', '.join(unknown)}" if unknown else f"--{what}s is empty"
        raise SettingError(f"{found}; choose from {', '.join(methods)}, or the groups {', '.join(groups)}")
    chosen = {name for word in words for name in groups.get(word, [word])}
    return [name for name in methods if name in chosen]


def resolve(place: str) -> Any:
    """The function that `module:function` names."""
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)
