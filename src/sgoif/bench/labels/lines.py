"""What a line of a result file says: its figures, its fields, and which lines can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sgoif.bench.labels.grid import Line
from sgoif.bench.labels.registry import title_of
from sgoif.errors import SettingError


@dataclass(frozen=True)
class Metric:
    """A figure of a result line and how it is shown."""

    title: str
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = True
    is_cost: bool = False


METRICS: Mapping[str, Metric] = {
    "aupr": Metric("AUPR"),
    "auroc": Metric("AUROC"),
    "p_at_1": Metric("P@1%"),
    "recall_at_1": Metric("R@1%"),
    "recall_at_5": Metric("R@5%"),
    "recall_at_10": Metric("R@10%"),
    "precision": Metric("precision of the flags"),
    "recall": Metric("recall of the flags"),
    "f1": Metric("F1 of the flags"),
    "flagged_share": Metric("flagged, % of all"),
    "top_kendall": Metric("top-1% Kendall τ between epochs", scale=1, digits=3),
    "calibration_error": Metric("expected calibration error", 1, 3, higher_is_better=False),
    "suggested_right": Metric("right label suggested, % of the wrong"),
    "noise_rate_error": Metric("error of the noise rate, points", higher_is_better=False),
    "test_accuracy": Metric("test accuracy after removal, %"),
    "curvature_products_per_step": Metric("curvature products per step", 1, 2, higher_is_better=False),
    "seconds": Metric("seconds", 1, 1, higher_is_better=False, is_cost=True),
    "trainings": Metric("trainings", 1, 2, higher_is_better=False, is_cost=True),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    places: dict[str, Callable[[], Any]] = {
        "seconds": lambda: line.get("seconds"),
        "trainings": lambda: line.get("trainings"),
        "memory": lambda: (line.get("memory") or {}).get("peak_bytes"),
        "test_accuracy": lambda: (line.get("removal") or {}).get("test_accuracy"),
    }
    found = places[metric]() if metric in places else line["metrics"].get(metric)
    return None if found is None else float(found)


def field_of(line: Mapping[str, Any], name: str) -> Any:
    """What a line says about a field by which tables are laid out."""
    named = {"recipe": line.get("recipe_id"), "device": (line.get("machine") or {}).get("device")}
    known = {**line["recipe"], **named, **{key: line[key] for key in ("set", "noise", "method", "seed", "shared")}}
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
        place = line["set"], line["noise"]
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
    fields = ("set", "noise", "method", "shared", *one["recipe"])
    differ = [name for name in fields if _get(one, name) != _get(other, name)]
    raise SettingError(
        f"two results with seed {one['seed']} fall into the same place; they differ in {', '.join(differ) or 'recipe'}:"
        f" put that into --rows, --columns or --by, or choose with --where {differ[0] if differ else 'recipe'}=…"
    )


def _get(line: Line, name: str) -> Any:
    return line["recipe"].get(name) if name in line["recipe"] else line.get(name)


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of(value)
    if name == "metric":
        return METRICS[value].title
    if isinstance(value, bool) or value is None:
        return f"{name}: {'none' if value is None else 'yes' if value else 'no'}"
    return str(value) if name in ("set", "noise") else f"{name} {value}"
