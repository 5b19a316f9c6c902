"""Lines of result files as tables see them: their fields, which are chosen and which can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sgoif.errors import SettingError
from sgoif_bench.journal import Line

SETTING = ("set", "noise", "protocol")
"""What the results of different methods must have in common; a line has those that its benchmark knows."""


@dataclass(frozen=True)
class Metric:
    """A figure of a result line and how it is shown."""

    title: str
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = True
    is_cost: bool = False


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def field_of(line: Mapping[str, Any], name: str) -> Any:
    """What a line says about a field by which tables are laid out."""
    named = {"recipe": line.get("recipe_id"), "device": (line.get("machine") or {}).get("device")}
    fields = {key: line[key] for key in (*SETTING, "method", "seed", "shared", "inputs") if key in line}
    known = {**line["recipe"], **named, **fields}
    if name not in known:
        raise SettingError(f"results have no field {name!r}; choose from {', '.join(sorted(known))}, metric")
    return known[name]


def chosen(lines: Iterable[Line], conditions: Sequence[str]) -> list[Line]:
    """The lines that meet all conditions such as `noise=symmetric-20`; several values: `method=sgoif,aum`."""
    left = list(lines)
    for condition in conditions:
        name, equals, values = condition.partition("=")
        if not equals:
            raise SettingError(f"--where takes FIELD=VALUE, such as noise=symmetric-20; got {condition!r}")
        wanted = {word.lower() for word in (values.strip(), *words(values))}
        left = [line for line in left if str(field_of(line, name.strip())).lower() in wanted]
    if not left:
        raise SettingError(f"no result is left{' where ' + ' and '.join(conditions) if conditions else ''}")
    return left


def check_comparable(lines: Iterable[Line]) -> None:
    """Refuse to compare methods that were not trained by the same recipe, or to count one seed twice."""
    first: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        place = tuple(line[name] for name in SETTING if name in line)
        other = first.setdefault(place, line)
        if other["recipe_id"] != line["recipe_id"]:
            differ = [name for name in line["recipe"] if _get(line, name) != _get(other, name)] or ["recipe"]
            raise SettingError(
                f"the results for {' '.join(place)} come from different recipes (they differ in {', '.join(differ)});"
                f" choose with --where {differ[0]}=…, or in a table add --by {differ[0]}"
            )
        again = first.setdefault((*place, line["method"], line["seed"]), line)
        if again is not line:
            refuse_same_place(again, line)


def refuse_same_place(one: Line, other: Line) -> NoReturn:
    """Say of two results that fall into the same place what tells them apart."""
    fields = (*SETTING, "method", "shared", "inputs", *one["recipe"])
    differ = [name for name in fields if _get(one, name) != _get(other, name)]
    raise SettingError(
        f"two results with seed {one['seed']} fall into the same place; they differ in {', '.join(differ) or 'recipe'}:"
        f" put that into --rows, --columns or --by, or choose with --where {differ[0] if differ else 'recipe'}=…"
    )


def _get(line: Line, name: str) -> Any:
    return line["recipe"].get(name) if name in line["recipe"] else line.get(name)
