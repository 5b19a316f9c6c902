"""Methods of a comparison by name: in order, by groups, and imported when they are first run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from sgoif.errors import SettingError


class Titled(Protocol):
    """Anything with a name for a table."""

    @property
    def title(self) -> str: ...


def title_of(methods: Mapping[str, Titled], name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    return methods[name].title if name in methods else name


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
