"""Tables of the page about outliers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from filling.cells import Line, marked, read_lines, read_result, table
from sgoif.bench.ood import registry as detectors
from sgoif.bench.ood.protocol import TITLES

PAGE = "ood.md"
BESIDE = ("sentinel", "msp", "energy-knn")
"""Post-hoc detectors that stand beside those which train in their own way."""


def outliers(name: str) -> str:
    """AUROC on every out-of-distribution set of a result file of `sgoif bench ood`, with what a method costs."""
    of = by_method(read_lines(name))
    rows = [
        [*cells, f"{statistics.median(line['metrics']['time_ratio'] for line in of[method]):.2f}"]
        for method, cells in compared(of).items()
    ]
    return table([*head_of(of), "time"], rows)


def trained(name: str, beside: str, methods: Sequence[str]) -> str:
    """The same of methods that train in their own way, with what is left of accuracy, after some of another file."""
    others = [line for line in read_lines(beside) if line["method"] in methods]
    of = by_method([*others, *read_lines(name)])
    rows = []
    for method, cells in compared(of).items():
        accuracy = [line["metrics"]["accuracy"] for line in of[method] if line["metrics"]["accuracy"] is not None]
        right = f"{100 * statistics.mean(accuracy):.1f}" if accuracy else "–"
        epochs = of[method][0]["recipe"]["epochs"]
        passes = epochs * statistics.mean(line["trainings"] for line in of[method])
        rows.append([*cells, right, str(epochs), f"{passes:.0f}", str(len(of[method]))])
    return table([*head_of(of), "accuracy", "epochs", "passes", "seeds"], rows)


def by_method(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines by method, in the order of the registry."""
    methods = detectors.in_order(line["method"] for line in lines)
    return {method: [line for line in lines if line["method"] == method] for method in methods}


def head_of(of: Mapping[str, Sequence[Line]]) -> list[str]:
    """What `compared` shows."""
    sets = next(iter(of.values()))[0]["ood"]
    return ["detector", *(f"{TITLES[ood]} ({found['group']})" for ood, found in sets.items()), "mean", "FPR95"]


def compared(of: Mapping[str, Sequence[Line]]) -> dict[str, list[str]]:
    """Of every method its title, AUROC on every set and their mean, the best in bold, and FPR95."""
    sets = list(next(iter(of.values()))[0]["ood"])

    def cells(lines: Sequence[Line]) -> list[list[float]]:
        found = [[100 * line["ood"][ood]["auroc"] for line in lines] for ood in sets]
        return [*found, [statistics.mean(values) for values in zip(*found, strict=True)]]

    # Two digits, since the best lie close to 100.
    columns = [marked(column, digits=2) for column in zip(*map(cells, of.values()), strict=True)]
    return {
        method: [detectors.title_of(method), *(column[number] for column in columns), number_of(lines, "fpr95")]
        for number, (method, lines) in enumerate(of.items())
    }


def alone(runs: Mapping[str, str]) -> str:
    """What a score takes in units of a plain forward pass, and nothing else of result files of `sgoif bench ood`.

    `runs` are the files by the title of their row.
    """
    found = {
        title: {line["method"]: line["metrics"]["time_ratio"] for line in read_lines(name)}
        for title, name in runs.items()
    }
    methods = detectors.in_order(next(iter(found.values())))
    rows = [[title, *(f"{run[method]:.2f}" for method in methods)] for title, run in found.items()]
    return table(["run", *map(detectors.title_of, methods)], rows)


def streams(name: str) -> str:
    """False alarms and delays of a result file of `sgoif bench streams`."""
    result = read_result(name)
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
        {
            "before, 1": "ood-cifar10-cost-started.jsonl",
            "before, 2": "ood-cifar10-cost.jsonl",
            "before, 3": "ood-cifar10-cost-again.jsonl",
            **{f"recorded, {number}": f"ood-cifar10-cost-recorded-{number}.jsonl" for number in range(1, 4)},
            **{f"warm, {number}": f"ood-cifar10-cost-warm-{number}.jsonl" for number in range(1, 7)},
            **{f"in place, {number}": f"ood-cifar10-cost-in-place-{number}.jsonl" for number in range(1, 9)},
        }
    ),
    "ood-cifar10-trained": lambda: trained("ood-cifar10-trained.jsonl", "ood-cifar10.jsonl", BESIDE),
    "ood-cifar10-noisy": lambda: outliers("ood-cifar10-symmetric-20.jsonl"),
    "ood-cifar10-small-cnn": lambda: outliers("ood-cifar10-small-cnn.jsonl"),
    "streams-cifar10": lambda: streams("streams-cifar10.json"),
    "ood-mnist": lambda: outliers("ood-mnist.jsonl"),
    "ood-mnist-10000": lambda: outliers("ood-mnist-10000.jsonl"),
    "ood-mnist-trained": lambda: trained("ood-mnist-trained.jsonl", "ood-mnist.jsonl", BESIDE),
    "streams-mnist": lambda: streams("streams-mnist.json"),
}
