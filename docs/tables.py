"""Fill the tables of the benchmark pages from the result files.

A page marks the place of a table with

    <!-- table: NAME -->
    …
    <!-- end -->

and whatever stands between is replaced. `python docs/tables.py` rewrites the pages, `--check` only says which are out
of date; a test does that too, so no figure of a table is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sgoif.bench.labels.ours import ABLATIONS
from sgoif.bench.labels.registry import METHODS, choose, in_order, title_of
from sgoif.bench.ood import registry as detectors
from sgoif.bench.ood.protocol import TITLES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAGES = tuple(ROOT / "docs" / "benchmarks" / name for name in ("labels.md", "ood.md"))
MARK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Line = dict[str, Any]
NOISES = {
    "symmetric-20": "symmetric 20%",
    "symmetric-40": "symmetric 40%",
    "class-dependent-20": "class-dependent 20%",
    **{
        f"matrix-{rate}-sparsity-{sparsity}": f"matrix {rate}%, sparsity {sparsity}"
        for rate in (20, 40, 70)
        for sparsity in ("0", "0.2", "0.4", "0.6")
    },
    "human-aggregate": "CIFAR-10N aggregate, 9%",
    "human-random1": "CIFAR-10N random 1, 17%",
}
OURS = ("sgoif", "influence")


class Results:
    """The lines of a result file by method and noise."""

    def __init__(self, name: str) -> None:
        with (RESULTS / name).open(encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self._found: dict[tuple[str, str], list[Line]] = {}
        for line in sorted(lines, key=lambda line: line["seed"]):
            self._found.setdefault((line["method"], line["noise"]), []).append(line)

    def lines(self, method: str, noise: str) -> list[Line]:
        return self._found.get((method, noise), [])

    def values(self, method: str, noise: str, metric: str) -> list[float]:
        found = (line["metrics"][metric] for line in self.lines(method, noise))
        return [100 * value for value in found if value is not None]

    def methods(self) -> list[str]:
        return in_order(method for method, _ in self._found)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, the first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def number(values: Sequence[float], spread: bool = True, digits: int = 1) -> str:
    """Mean, and deviation where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if spread and len(values) > 1 else mean


def marked(cells: Sequence[Sequence[float]], digits: int = 1) -> list[str]:
    """Cells that are compared, the best in bold; those that print the same mean are as good."""
    means = [round(statistics.mean(values), digits) if values else None for values in cells]
    best = max((mean for mean in means if mean is not None), default=None)
    return [
        f"**{number(values, digits=digits)}**" if values and mean == best else number(values, digits=digits)
        for mean, values in zip(means, cells, strict=True)
    ]


def by_noise(results: Results, methods: Sequence[str], metric: str) -> str:
    """A row for every noise that all these methods were run on, and their means."""
    noises = [noise for noise in NOISES if all(results.values(method, noise, metric) for method in methods)]
    rows = []
    for noise in noises:
        seeds = max(len(results.values(method, noise, metric)) for method in methods)
        cells = [results.values(method, noise, metric) for method in methods]
        rows.append([f"{NOISES[noise]} ({seeds})", *marked(cells)])
    means = [[statistics.mean(statistics.mean(results.values(m, n, metric)) for n in noises)] for m in methods]
    rows.append(["mean", *marked(means)])
    return table(["noise (seeds)", *map(title_of, methods)], rows)


def simple(metric: str) -> str:
    """CIFAR-10, the methods that share a training."""
    return by_noise(Results("labels-cifar10.jsonl"), choose("simple"), metric)


def heavy() -> str:
    """CIFAR-10, the methods with a training of their own."""
    results = Results("labels-cifar10.jsonl")
    names = ["sgoif", *choose("heavy")]
    some = [noise for noise in NOISES if sum(bool(results.values(name, noise, "aupr")) for name in names) > 2]
    rows = []
    for noise in some:
        # one seed each, the same for all of a row
        seed = min(line["seed"] for line in results.lines(names[-1], noise) or results.lines("sgoif", noise))
        cells = [
            [100 * line["metrics"]["aupr"] for line in results.lines(name, noise) if line["seed"] == seed]
            for name in names
        ]
        rows.append([NOISES[noise], *marked(cells)])
    cost = [next(f"{line['trainings']:.1f}" for noise in some for line in results.lines(name, noise)) for name in names]
    return table(["noise", *map(title_of, names)], [*rows, ["trainings", *cost]])


def claims() -> str:
    """CIFAR-10, how far our own statements hold."""
    results = Results("labels-cifar10.jsonl")
    head = [
        "noise",
        "seed",
        "ECE",
        "noise rate (real)",
        "FDR at 0.1",
        "top 100 stated (real)",
        "suggested right",
        "found at",
    ]

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.0f}"

    rows = []
    for noise, title in {**NOISES, "none": "none injected"}.items():
        for line in results.lines("sgoif", noise):
            found = line["metrics"]
            real = line["wrong"] / line["examples"]
            selected = f"{round(found['flagged_share'] * line['examples'])} selected"
            rows.append(
                [
                    title,
                    str(line["seed"]),
                    f"{found['calibration_error']:.3f}",
                    f"{100 * found['noise_rate']:.1f} ({100 * real:.1f})",
                    selected if found["precision"] is None else f"{1 - found['precision']:.3f}",
                    f"{percent(found['top_100_stated'])} ({percent(found['top_100_real'])})",
                    percent(found["suggested_right"]),
                    percent(found["found_at_share"]),
                ]
            )
    return table(head, rows)


def digits() -> str:
    """All methods on digits."""
    results = Results("labels-digits.jsonl")
    noises = ("symmetric-20", "class-dependent-20")
    names = [name for name in results.methods() if name in METHODS]
    columns = [marked([results.values(name, noise, "aupr") for name in names]) for noise in noises]
    rows = []
    for name, *cells in zip(names, *columns, strict=True):
        line = next(line for noise in noises for line in results.lines(name, noise))
        rows.append([title_of(name), *cells, f"{line['trainings']:.2f}"])
    return table(["method", "symmetric 20%", "class-dependent 20%", "trainings"], rows)


def digits_ablations() -> str:
    """What each part of ours is worth on digits."""
    results = Results("labels-digits-ablations.jsonl")
    head = [
        "left out or changed",
        "label score, symmetric 20%",
        "flips 20%",
        "influence alone, symmetric 20%",
        "flips 20%",
    ]
    rows = []
    for name in ("sgoif", *ABLATIONS):
        alone = "influence" if name == "sgoif" else f"{name}-influence"
        both = [
            results.values(which, noise, "aupr")
            for which in (name, alone)
            for noise in ("symmetric-20", "class-dependent-20")
        ]
        lines = results.lines(alone, "class-dependent-20")
        kendall = statistics.mean(line["metrics"]["top_kendall"] for line in lines)
        products = statistics.mean(
            line["metrics"]["curvature_products_per_step"] for line in results.lines(name, "class-dependent-20")
        )
        title = "nothing" if name == "sgoif" else title_of(name).removeprefix("SG-OIF, ")
        first = number(results.values(alone, "class-dependent-20", "p_at_1"), spread=False)
        rows.append([title, *map(number, both), first, f"{kendall:.2f}", f"{products:.2f}"])
    return table([*head, "P@1%, flips", "Kendall τ", "curvature products a step"], rows)


def outliers(name: str) -> str:
    """AUROC on every out-of-distribution set of a result file of `sgoif bench ood`, with what a method costs."""
    with (RESULTS / name).open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    sets = list(lines[0]["ood"])
    of = {method: [line for line in lines if line["method"] == method] for method in {x["method"] for x in lines}}

    def cells(method: str) -> list[list[float]]:
        found = [[100 * line["ood"][ood]["auroc"] for line in of[method]] for ood in sets]
        return [*found, [statistics.mean(values) for values in zip(*found, strict=True)]]

    by_method = {method: cells(method) for method in detectors.in_order(of)}
    # Two digits, since the best lie close to 100.
    columns = [marked(column, digits=2) for column in zip(*by_method.values(), strict=True)]
    rows = []
    for number, method in enumerate(by_method):
        fpr = number_of(of[method], "fpr95")
        cost = statistics.median(line["metrics"]["time_ratio"] for line in of[method])
        rows.append([detectors.title_of(method), *(column[number] for column in columns), fpr, f"{cost:.2f}"])
    head = [f"{TITLES[ood]} ({lines[0]['ood'][ood]['group']})" for ood in sets]
    return table(["detector", *head, "mean", "FPR95", "time"], rows)


def streams(name: str) -> str:
    """False alarms and delays of a result file of `sgoif bench streams`."""
    result = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    settings, unchanged = result["settings"], result["unchanged"]
    share = f"{100 * settings['share']:.0f}% {TITLES[settings['outliers']]}"
    kinds = {f"{share} {when}": found for when, found in result["mixed"].items()}
    kinds[f"blur growing to {settings['blur']:g} pixels over {settings['length']} inputs"] = result["drifting"]
    rows = [["unchanged", str(unchanged["streams"]), str(unchanged["false_alarms"]), "–", "–"]]
    for kind, found in kinds.items():
        delays = f"{found['median_delay']:g}", f"{found['longest_delay']:g}"
        rows.append([kind, str(found["streams"]), str(found["found"]), *delays])
    return table(["stream", "streams", "alarms", "median delay", "longest"], rows)


def number_of(lines: Sequence[Line], metric: str) -> str:
    """Mean over the sets and seeds of one of their figures."""
    return f"{100 * statistics.mean(figures[metric] for line in lines for figures in line['ood'].values()):.1f}"


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-aupr": lambda: simple("aupr"),
    "cifar10-p-at-1": lambda: simple("p_at_1"),
    "cifar10-heavy": heavy,
    "cifar10-claims": claims,
    "digits": digits,
    "digits-ablations": digits_ablations,
    "ood-mnist": lambda: outliers("ood-mnist.jsonl"),
    "streams-mnist": lambda: streams("streams-mnist.json"),
}


def filled(text: str) -> str:
    """The page with every table as the result files have it."""

    def replace(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise SystemExit(f"there is no table {match[2]!r}; choose from {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[match[2]]()}{match[3]}"

    return MARK.sub(replace, text)


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'rewritten'}: {', '.join(stale)}", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
