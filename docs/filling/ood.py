"""Tables of the page about outliers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence

from filling.cells import RESULTS, Line, marked, read_lines, table
from sgoif.bench.ood import registry as detectors
from sgoif.bench.ood.protocol import TITLES

PAGE = "ood.md"


def outliers(name: str) -> str:
    """AUROC on every out-of-distribution set of a result file of `sgoif bench ood`, with what a method costs."""
    lines = read_lines(name)
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


def alone(runs: Mapping[str, str]) -> str:
    """What a score takes in units of a plain forward pass, and nothing else of result files of `sgoif bench ood`.

    `runs` are the files by the title of their column.
    """
    found = [{line["method"]: line["metrics"]["time_ratio"] for line in read_lines(name)} for name in runs.values()]
    rows = [
        [detectors.title_of(method), *(f"{run[method]:.2f}" for run in found)]
        for method in detectors.in_order(found[0])
    ]
    return table(["detector", *runs], rows)


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
    "ood-cifar10": lambda: outliers("ood-cifar10.jsonl"),
    "ood-cifar10-cost": lambda: alone(
        {"time": "ood-cifar10-cost.jsonl", "machine just started": "ood-cifar10-cost-started.jsonl"}
    ),
    "ood-cifar10-noisy": lambda: outliers("ood-cifar10-symmetric-20.jsonl"),
    "ood-cifar10-small-cnn": lambda: outliers("ood-cifar10-small-cnn.jsonl"),
    "streams-cifar10": lambda: streams("streams-cifar10.json"),
    "ood-mnist": lambda: outliers("ood-mnist.jsonl"),
    "streams-mnist": lambda: streams("streams-mnist.json"),
}
