"""Tables of the page about scores and retraining: examples left out alone, labels that are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from filling.cells import RESULTS, read_lines, table
from filling.fidelity import TITLES, mean
from sgoif.bench.fidelity.registry import in_order, title_of

FILES = {"digits": "fidelity-digits-changes.jsonl", "mnist": "fidelity-mnist-changes.jsonl"}
NETWORKS = {"linear": "softmax regression", "mlp": "network"}
Place = tuple[str, str, float]
"""Data set, network, and share of wrong labels."""
Line = dict[str, Any]
CEILING = "most that could be reached"


def found() -> dict[Place, dict[str, Line]]:
    """What ran, by place and method; of several lines of one cell the last one counts."""
    places: dict[Place, dict[str, Line]] = {}
    for name, file in FILES.items():
        for line in read_lines(file) if (RESULTS / file).is_file() else []:
            if line["error"] is None and "alone" in line["metrics"]:
                places.setdefault((name, line["recipe"]["model"], line["wrong_share"]), {})[line["method"]] = line
    order = {place: (list(FILES).index(place[0]), list(NETWORKS).index(place[1]), place[2]) for place in places}
    return dict(sorted(places.items(), key=lambda item: order[item[0]]))


def shown(place: Place) -> str:
    """A network with its share of wrong labels, for a person."""
    return f"{TITLES[place[0]]}, {NETWORKS[place[1]]}, {100 * place[2]:g}% wrong"


def methods_of(places: Mapping[Place, Mapping[str, Line]]) -> list[str]:
    """All methods, in the order of the registry."""
    return in_order(method for by_method in places.values() for method in by_method)


def interval(part: Mapping[str, Any]) -> str:
    """A correlation with its interval."""
    return f"{part['spearman']:.2f} [{part['low']:.2f}, {part['high']:.2f}]"


def alone() -> str:
    """Examples that are left out one by one."""
    places = found()
    if not places:
        return "Not run yet.\n"
    best = {
        place: max(line["metrics"]["alone"]["spearman"] for line in by_method.values())
        for place, by_method in places.items()
    }
    rows = []
    for method in methods_of(places):
        cells = []
        for place, by_method in places.items():
            part = by_method[method]["metrics"]["alone"] if method in by_method else None
            cell = interval(part) if part else "–"
            cells.append(f"**{cell}**" if part and part["spearman"] == best[place] else cell)
        rows.append([title_of(method), *cells])
    limits = [mean([next(iter(by_method.values()))["metrics"]["alone"]["ceiling"]], 2) for by_method in places.values()]
    rows.append([CEILING, *limits])
    return table(["method", *map(shown, places)], rows)


def relabelled() -> str:
    """New labels, predicted from both labels, in brackets from the given one."""
    places = found()
    if not places:
        return "Not run yet.\n"
    sizes = [
        (place, size)
        for place, by_method in places.items()
        for size in next(iter(by_method.values()))["metrics"].get("relabelled", {})
    ]

    def parts(place: Place, size: str) -> dict[str, Any]:
        return {method: line["metrics"]["relabelled"][size] for method, line in places[place].items()}

    best = {pair: max(part["spearman"] for part in parts(*pair).values()) for pair in sizes}
    rows = []
    for method in methods_of(places):
        cells = []
        for pair in sizes:
            part = parts(*pair).get(method)
            if part is None:
                cells.append("–")
                continue
            both = part["predicted_from"] == "both labels"
            given = part["given_label_spearman"] if both else part["spearman"]
            cell = f"{part['spearman']:.2f}" if both else "–"
            cells.append(f"{f'**{cell}**' if part['spearman'] == best[pair] else cell} ({given:.2f})")
        rows.append([title_of(method), *cells])
    limits = [mean([next(iter(parts(*pair).values()))["ceiling"]], 2) for pair in sizes]
    rows.append([CEILING, *limits])
    head = [f"{shown(place)}, {size} {'label' if size == '1' else 'labels'}" for place, size in sizes]
    return table(["method", *head], rows)


TABLES: dict[str, Callable[[], str]] = {"fidelity-alone": alone, "fidelity-relabelled": relabelled}
