"""Tables of the page about scores and retraining: what is removed and what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from filling.cells import RESULTS, read_lines, table
from filling.fidelity import FILES, TITLES, found, mean, ran, shown_place
from sgoif.bench.fidelity.registry import in_order, title_of

BRITTLE = {"digits": "fidelity-digits-brittle.jsonl", "mnist": "fidelity-mnist-changes.jsonl"}
GROUPS = {"digits": FILES["digits"], "mnist": BRITTLE["mnist"]}
Line = dict[str, Any]


def lines_of(file: str, part: str) -> dict[str, Line]:
    """What ran, by method, of the lines that have this figure; of several the last one counts."""
    if not (RESULTS / file).is_file():
        return {}
    known = [line for line in read_lines(file) if line["error"] is None and line["metrics"].get(part)]
    return {line["method"]: line for line in known}


def flips(part: Line) -> str:
    """How many predictions flip, and how far margins fall."""
    return f"{round(part['flipped'] * part['queries'])} ({part['margin_change']:.1f})"


def brittle() -> str:
    """Predictions that flip when what helps a query most is removed."""
    studies = {name: lines for name, file in BRITTLE.items() if (lines := lines_of(file, "brittle"))}
    if not studies:
        return "Not run yet.\n"
    some = {name: next(iter(lines.values())) for name, lines in studies.items()}
    turns = [(name, turn) for name in studies for turn in range(len(some[name]["metrics"]["brittle"]))]
    rows = [
        [
            title_of(method),
            *(
                flips(studies[name][method]["metrics"]["brittle"][turn]) if method in studies[name] else "–"
                for name, turn in turns
            ),
        ]
        for method in in_order(method for lines in studies.values() for method in lines)
    ]
    rows.append(["removed at random", *(flips(some[name]["brittle_at_random"][turn]) for name, turn in turns)])

    def head(name: str, turn: int) -> str:
        part = some[name]["metrics"]["brittle"][turn]
        return f"{TITLES[name]}, {part['removed']} of {some[name]['examples']:,} removed, of {part['queries']}"

    return table(["method", *(head(*pair) for pair in turns)], rows)


def groups() -> str:
    """Groups of similar examples that are left out."""
    studies = {name: lines for name, file in GROUPS.items() if (lines := lines_of(file, "left_out"))}
    if not studies:
        return "Not run yet.\n"
    parts = {
        name: {method: next(iter(line["metrics"]["left_out"].values())) for method, line in lines.items()}
        for name, lines in studies.items()
    }
    rows = [
        [
            title_of(method),
            *(
                f"{part[method]['spearman']:.2f} [{part[method]['low']:.2f}, {part[method]['high']:.2f}]"
                if method in part
                else "–"
                for part in parts.values()
            ),
        ]
        for method in in_order(method for lines in studies.values() for method in lines)
    ]
    limits = [f"{next(iter(part.values()))['ceiling']:.2f}" for part in parts.values()]
    rows.append(["most that could be reached", *limits])
    return table(["method", *(TITLES[name] for name in studies)], rows)


def wrong_labels() -> str:
    """How well harm to the queries finds wrong labels."""
    places = {place: by_method for place, by_method in found().items() if place[1]}
    rows = []
    for method in in_order(method for by_method in places.values() for method in by_method):
        cells = []
        for by_method in places.values():
            lines = ran(by_method.get(method, []))
            cells += [mean([line["metrics"][f"wrong_{part}"] for line in lines], 1, 100) for part in ("aupr", "auroc")]
        rows.append([title_of(method), *cells])
    return table(["method", *(f"{shown_place(p)}, {part}" for p in places for part in ("AUPR", "AUROC"))], rows)


TABLES: dict[str, Callable[[], str]] = {
    "fidelity-brittle": brittle,
    "fidelity-groups": groups,
    "fidelity-wrong": wrong_labels,
}
