"""The ways an audit can be asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sgoif_bench import methods


@dataclass(frozen=True)
class Way:
    """Options of `sgoif audit`."""

    title: str
    """As it stands in a table."""
    options: tuple[str, ...] = ()
    after: str | None = None
    """The way that has to come before it and whose features it finds kept."""


WAYS: dict[str, Way] = {
    "automatic": Way("automatic"),
    "automatic-warm": Way("automatic, features kept", after="automatic"),
    "from-scratch": Way("from scratch", ("--from-scratch",)),
    "finetuned": Way("fine-tuned", ("--finetune",)),
}


def choose(wanted: str) -> list[str]:
    """Ways from names and the group `all`, in order of the registry."""
    return methods.choose(WAYS, {"all": list(WAYS)}, wanted, "way")


def by_family(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Ways that are audited one after the other, by the name of the first."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        family = WAYS[name].after or name
        found[family] = (*found.get(family, ()), name)
    return found
