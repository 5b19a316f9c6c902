"""Tables of the page about scores and retraining."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import pstdev
from typing import Any

from filling.cells import RESULTS, read_lines, read_result, table
from sgoif.bench.fidelity.registry import METHODS, PEER, in_order, title_of

PAGE = "fidelity.md"
FILES = {"digits": "fidelity-digits.jsonl", "mnist": "fidelity-mnist.jsonl"}
CIFAR10 = {"cifar10": "fidelity-cifar10.jsonl"}
"""Made on a GPU, in a section of its own."""
AGAIN = {"cifar10": "fidelity-cifar10-again.jsonl"}
"""Seed 0 once more, with one setting and what it is compared with, judged on other halves."""
CNN = "fidelity-cnn.jsonl"
"""A network that nothing was chosen on, with layers of both kinds."""
OURS = "sgoif-factored-5-epochs"
"""The one setting of the summary."""
QUERIES = ("fidelity-queries.jsonl", "fidelity-cifar10-queries.jsonl")
"""More queries, more halves with one network each: how far the LDS of single queries can be told."""
LAYERS = "fidelity-cifar10-layers.json"
READINGS = "fidelity-readings.json"
"""Other readings of a run that could tell how far a query's scores are right."""
PARTS = ("signal", "sparsity", "coherence", "concentration")
PLAIN = {
    "doubt": "1 − largest p",
    "entropy": "entropy",
    "near zero": "−\\|margin\\|",
    "gradient of the head": "length of the gradient, head",
    "gradient": "all weights",
}
"""What anybody could look at instead of an expected error."""
CHECK = "fidelity-digits-check.jsonl"
"""Another seed, which no choice was made on."""
TITLES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}
Line = dict[str, Any]
Place = tuple[str, float]
Places = dict[Place, dict[str, list[Line]]]


def found(files: Mapping[str, str] = FILES) -> Places:
    """Lines by data set with share of wrong labels, and by method; of several of one cell the last one counts."""
    places: Places = {}
    for name, file in files.items():
        if not (RESULTS / file).is_file():
            continue
        last = {(line["wrong_share"], line["method"], line["seed"]): line for line in read_lines(file)}
        for line in last.values():
            places.setdefault((name, line["wrong_share"]), {}).setdefault(line["method"], []).append(line)
    return dict(sorted(places.items(), key=lambda item: (list(files).index(item[0][0]), item[0][1])))


def ran(lines: Sequence[Line]) -> list[Line]:
    """Those that have figures."""
    return [line for line in lines if line["error"] is None]


def shown_place(place: Place) -> str:
    """A data set for a person."""
    return f"{TITLES[place[0]]}, {100 * place[1]:g}% wrong"


def mean(values: Sequence[float | None], digits: int, scale: float = 1.0) -> str:
    """Mean over seeds."""
    known = [scale * value for value in values if value is not None]
    return f"{sum(known) / len(known):.{digits}f}" if known else "–"


def lds_cell(lines: Sequence[Line]) -> str:
    """Mean over seeds; of one seed with its interval."""
    known = ran(lines)
    if not known:
        return "could not run" if lines else "–"
    if len(known) > 1:
        return mean([line["metrics"]["lds"] for line in known], 3)
    metrics, answered = known[0]["metrics"], known[0].get("answered")
    few = f", {answered} queries" if answered else ""
    return f"{metrics['lds']:.3f} [{metrics['lds_low']:.3f}, {metrics['lds_high']:.3f}]{few}"


def best_of(lines: Iterable[Line]) -> float | None:
    """The highest score among these; what answered only some of the queries is not compared."""
    whole = [line for line in lines if line["error"] is None and "answered" not in line]
    return max((line["metrics"]["lds"] for line in whole), default=None)


def marked(lines: Sequence[Line], best: float | None) -> str:
    """A cell of scores, bold where it has the best one."""
    cell = lds_cell(lines)
    return f"**{cell}**" if any(line["metrics"]["lds"] == best for line in ran(lines)) else cell


def lds() -> str:
    """The linear datamodeling score of every method everywhere."""
    places = found()
    methods = in_order(method for by_method in places.values() for method in by_method)
    best = {place: best_of(line for lines in by.values() for line in lines) for place, by in places.items()}
    rows = [
        [title_of(method), *(marked(by.get(method, []), best[place]) for place, by in places.items())]
        for method in methods
    ]
    limits = [mean([line["ceiling"] for line in next(iter(by_method.values()))], 3) for by_method in places.values()]
    rows.append(["most that could be reached", *limits])
    return table(["method", *map(shown_place, places)], rows)


def costs() -> str:
    """What an answer takes beside the one training run: a line for every method, a column for every data set."""
    places = found()
    rows = []
    for method in in_order(method for by_method in places.values() for method in by_method):
        lines = [next(iter(ran(by_method.get(method, []))), None) for by_method in places.values()]
        if not any(lines):
            continue
        memory = " / ".join(f"{line['memory']['peak_bytes'] / 2**20:.0f}" if line else "–" for line in lines)
        further = mean([line["trainings"] for line in lines if line], 0)
        rows.append([title_of(method), *map(added, lines), memory, further])
    return table(["method", *map(shown_place, places), "peak MiB", "further networks"], rows)


def added(line: Line | None) -> str:
    """Seconds, and in brackets the same in units of the training run."""
    return f"{line['seconds']:.2f} ({line['seconds'] / line['training_seconds']:.1f})" if line else "–"


def cost(files: Mapping[str, str]) -> str:
    """The same, one data set after the other, seed by seed."""
    rows = []
    for place, by_method in found(files).items():
        for method in in_order(by_method):
            timed = [line for line in ran(by_method[method]) if line["seconds"] is not None]
            lines = [line for line in timed if "answered" not in line]
            if not lines:
                continue
            lines.sort(key=lambda line: line["seed"])
            seconds = [line["seconds"] for line in lines]
            share = [line["seconds"] / line["training_seconds"] for line in lines]
            per_query = [1000 * line["seconds_per_query"] for line in lines]
            memory = [line["memory"]["peak_bytes"] / 2**20 for line in lines]
            extra = [line["trainings"] for line in lines]
            rows.append(
                [
                    shown_place(place),
                    title_of(method),
                    by_seed(seconds, 2),
                    by_seed(share, 1),
                    by_seed(per_query, 1),
                    by_seed(memory, 0),
                    mean(extra, 0),
                ]
            )
    head = ["data", "method", "seconds added", "in trainings", "ms a query", "peak MiB", "further networks"]
    return table(head, rows)


def asked(files: Sequence[str] = QUERIES) -> Places:
    """The studies of these files, by default those with many halves: by place and method, in the order of seeds."""
    places: Places = {}
    for file in files:
        if (RESULTS / file).is_file():
            last = {(line["set"], line["wrong_share"], line["method"], line["seed"]): line for line in read_lines(file)}
            for line in last.values():
                places.setdefault((line["set"], line["wrong_share"]), {}).setdefault(line["method"], []).append(line)
    for by_method in places.values():
        for lines in by_method.values():
            lines.sort(key=lambda line: line["seed"])
    return dict(sorted(places.items(), key=lambda item: (list(TITLES).index(item[0][0]), item[0][1])))


def by_seed(values: Sequence[float | None], digits: int) -> str:
    """One figure for every seed that has one."""
    return " / ".join(f"{value:.{digits}f}" for value in values if value is not None) or "–"


def many(files: Sequence[str] = QUERIES) -> str:
    """Score and cost of the studies of these files, seed by seed, in units of EK-FAC's where it ran beside."""
    rows = []
    for place, by_method in asked(files).items():
        rival = {line["seed"]: line["seconds"] for line in ran(by_method.get("ekfac", []))}
        for method in in_order(by_method):
            lines = ran(by_method[method])
            scores = by_seed([line["metrics"]["lds"] for line in lines], 3)
            timed = [line for line in lines if line["seconds"] is not None]
            seconds = by_seed([line["seconds"] for line in timed], 2)
            shares = by_seed([line["seconds"] / rival[line["seed"]] for line in timed if line["seed"] in rival], 2)
            rows.append([shown_place(place), title_of(method), scores, seconds, shares])
    return table(["data", "method", "LDS", "seconds added", "of EK-FAC's"], rows)


def beside(by_method: Mapping[str, Sequence[Line]], ours: str, rival: str) -> tuple[str, str, str]:
    """The LDS of both, seed by seed, and the time of the one over that of the other where both were timed."""
    own, theirs = ({line["seed"]: line for line in ran(by_method.get(name, []))} for name in (ours, rival))
    seeds = sorted(own.keys() & theirs.keys())
    scores = [by_seed([lines[seed]["metrics"]["lds"] for seed in seeds], 3) for lines in (own, theirs)]
    timed = [seed for seed in seeds if own[seed]["seconds"] is not None and theirs[seed]["seconds"] is not None]
    return scores[0], scores[1], by_seed([own[seed]["seconds"] / theirs[seed]["seconds"] for seed in timed], 3)


def large() -> Places:
    """CIFAR-10, of a seed that was judged twice the later lines last."""
    places = found(CIFAR10)
    for place, by_method in found(AGAIN).items():
        for method, lines in by_method.items():
            places.setdefault(place, {}).setdefault(method, []).extend(lines)
    return places


def summary() -> str:
    """What was asked, and the figures that answer it, with one setting on all data."""
    cifar, places, trusted = large(), found(), asked()
    if not cifar or not trusted:
        return "Not run yet.\n"
    shown = sorted(trusted, key=lambda place: (-list(TITLES).index(place[0]), -place[1]))
    columns = []
    for place in shown:
        scores = beside(cifar.get(place, trusted[place]), OURS, "ekfac")
        own, trak, share = beside({**places, **cifar}.get(place, {}), OURS, "trak-1")
        trust = [
            by_seed([line["metrics"].get(part) for line in ran(trusted[place].get(method, []))], 2)
            for part in ("error_spearman", "confidence_spearman")
            for method in (OURS, "sgoif-monitor")
        ]
        columns.append([*scores, f"{trak} ({own})", share, *trust])
    asked_for = [
        ("LDS of SG-OIF", "at least EK-FAC's"),
        ("LDS of EK-FAC", ""),
        ("time over EK-FAC's", "0.1 or less"),
        ("LDS of TRAK, one network (of SG-OIF beside it)", "no more than SG-OIF's"),
        ("time over TRAK's", "0.1 or less"),
        ("expected error with the real one", "0.5"),
        ("the same, a user's monitor", "0.5"),
        ("confidence with a query's own LDS", "0.5"),
        ("the same, a user's monitor", "0.5"),
    ]
    rows = [[*line, *(column[number] for column in columns)] for number, line in enumerate(asked_for)]
    return table(["figure", "wanted", *map(shown_place, shown)], rows)


def layers() -> str:
    """What single layers and other settings say on CIFAR-10."""
    if not (RESULTS / LAYERS).is_file():
        return "Not run yet.\n"
    whole = read_result(LAYERS)
    single = {f"{name} alone": part for name, part in whole["layers"].items()}
    united = {f"{name}, each brought to unit length": part for name, part in whole["unit_length"].items()}
    again = whole.get("seed_1", {}).get("lds", {})
    rows = [
        [name, str(part["queries"]), interval(part), interval(again.get(name))]
        for name, part in {**whole["lds"], **united, **single}.items()
    ]
    return table(["watched", "queries", "LDS, seed 0", "LDS, seed 1"], rows)


def interval(part: Line | None) -> str:
    """A score with the ends of its interval."""
    return f"{part['lds']:.3f} [{part['low']:.3f}, {part['high']:.3f}]" if part else "–"


def confidence() -> str:
    """Whether the stated confidence goes with a query's own LDS, and how far it could be seen to."""
    rows = []
    for place, by_method in asked().items():
        for method in in_order(by_method):
            figures = [line["metrics"] for line in ran(by_method[method]) if "signal_spearman" in line["metrics"]]
            if not figures:
                continue
            own = [metrics["confidence_spearman"] for metrics in figures]
            most = [metrics["lds_reliability"] ** 0.5 for metrics in figures]
            told = by_seed([value / limit if limit else None for value, limit in zip(own, most, strict=True)], 2)
            apart = [pstdev(line["lds_by_query"]) * limit for line, limit in zip(figures, most, strict=True)]
            parts = [by_seed([metrics[f"{part}_spearman"] for metrics in figures], 2) for part in PARTS]
            cells = [by_seed(own, 2), by_seed(most, 2), told, by_seed(apart, 2), *parts]
            rows.append([shown_place(place), title_of(method), *cells])
    head = ["data", "method", "confidence", "most that could be seen", "of that", "queries differ by"]
    return table([*head, *(f"{part} alone" for part in PARTS)], rows)


def readings() -> str:
    """What other readings of a run say about a query's own LDS, seed by seed."""
    if not (RESULTS / READINGS).is_file():
        return "Not run yet.\n"
    whole = read_result(READINGS)
    cells: dict[tuple[Place, str], list[Line]] = {}
    for row in whole["rows"]:
        cells.setdefault(((row["set"], row["wrong_share"]), row["method"]), []).append(row)
    rows = [
        [
            shown_place(place),
            title_of(method),
            by_seed([line["confidence"] for line in lines], 2),
            *(by_seed([line["spearman"].get(name) for line in lines], 2) for name in whole["readings"]),
        ]
        for (place, method), lines in cells.items()
    ]
    return table(["data", "method", "confidence", *whole["readings"]], rows)


def expected_errors() -> str:
    """Whether the stated error goes with the real one, beside what anybody could look at instead."""
    rows = []
    for place, by_method in asked().items():
        for method in in_order(by_method):
            figures = [line["metrics"] for line in ran(by_method[method]) if "error_spearman" in line["metrics"]]
            if figures:
                naive = [
                    [metrics.get("error_plain_spearman", {}).get(reading) for metrics in figures] for reading in PLAIN
                ]
                parts = ("error_spearman", "error_margin_spearman")
                own = [[metrics[part] for metrics in figures] for part in parts]
                rows.append([shown_place(place), title_of(method), *(by_seed(cell, 2) for cell in [*own, *naive])])
    return table(["data", "method", "expected error", "margin", *PLAIN.values()], rows)


def absent() -> str:
    """Libraries that could not run, and why."""
    rows = [
        [shown_place(place), title_of(method), line["error"].replace("|", "\\|")]
        for place, by_method in found({**FILES, **CIFAR10}).items()
        for method in in_order(by_method)
        for line in by_method[method]
        if line["error"] is not None and METHODS[method].kind == PEER
    ]
    return table(["data", "method", "error"], rows) if rows else "All libraries ran on all of these settings.\n"


def few() -> str:
    """Libraries that answered only some of the queries in the time they had, beside others on the same queries."""
    rivals = ("ekfac", "sgoif-head")
    rows = [
        [
            title_of(method),
            f"{line['answered']} of {line['queries']}",
            lds_cell([{**line, "answered": None}]),
            *(f"{line['metrics']['same_queries'][rival]:.3f}" for rival in rivals),
            f"{line['seconds_per_query']:.2f}",
            f"{line['memory']['peak_bytes'] / 2**30:.0f}",
        ]
        for by_method in found(CIFAR10).values()
        for method in in_order(by_method)
        for line in ran(by_method[method])
        if "answered" in line
    ]
    beside_it = [f"{title_of(rival)}, the same queries" for rival in rivals]
    head = ["method", "queries answered", "LDS", *beside_it, "seconds a query", "peak GiB"]
    return table(head, rows) if rows else "All libraries that ran answered all queries.\n"


def compared(file: str, shown: Callable[[float, int], str]) -> str:
    """The LDS of every method of a file, a column for every share of wrong labels and seed."""
    if not (RESULTS / file).is_file():
        return "Not run yet.\n"
    last = {(line["wrong_share"], line["seed"], line["method"]): line for line in read_lines(file)}
    places = sorted({(share, seed) for share, seed, _ in last})
    best = {place: best_of(line for key, line in last.items() if key[:2] == place) for place in places}
    rows = []
    for method in in_order(method for _, _, method in last):
        own = {place: [last[*place, method]] if (*place, method) in last else [] for place in places}
        rows.append([title_of(method), *(marked(lines, best[place]) for place, lines in own.items())])
    limits = [mean([next(line["ceiling"] for key, line in last.items() if key[:2] == place)], 3) for place in places]
    rows.append(["most that could be reached", *limits])
    return table(["method", *(shown(share, seed) for share, seed in places)], rows)


def check() -> str:
    """The main methods on networks, queries and wrong labels that no choice was made on."""
    return compared(CHECK, lambda share, seed: f"{100 * share:g}% wrong, seed {seed}")


def cifar10() -> str:
    """Score and cost on CIFAR-10, once they are known."""
    file = CIFAR10["cifar10"]
    known = (RESULTS / file).is_file()
    return "\n".join([compared(file, lambda _, seed: f"seed {seed}"), cost(CIFAR10)]) if known else "Not run yet.\n"


TABLES: dict[str, Callable[[], str]] = {
    "fidelity-summary": summary,
    "fidelity-cifar10": cifar10,
    "fidelity-check": check,
    "fidelity-lds": lds,
    "fidelity-cost": costs,
    "fidelity-confidence": confidence,
    "fidelity-readings": readings,
    "fidelity-errors": expected_errors,
    "fidelity-many": many,
    "fidelity-again": partial(many, tuple(AGAIN.values())),
    "fidelity-cnn": partial(many, (CNN,)),
    "fidelity-layers": layers,
    "fidelity-absent": absent,
    "fidelity-few": few,
}
