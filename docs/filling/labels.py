"""Tables of the page about wrong labels."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from filling.cells import Line, marked, number, read_lines, table
from sgoif.bench.labels.ours import ABLATIONS
from sgoif.bench.labels.registry import METHODS, choose, in_order, title_of

PAGE = "labels.md"
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


class Results:
    """The lines of a result file by method and noise."""

    def __init__(self, name: str) -> None:
        self._found: dict[tuple[str, str], list[Line]] = {}
        for line in sorted(read_lines(name), key=lambda line: line["seed"]):
            self._found.setdefault((line["method"], line["noise"]), []).append(line)

    def lines(self, method: str, noise: str) -> list[Line]:
        return self._found.get((method, noise), [])

    def values(self, method: str, noise: str, metric: str) -> list[float]:
        found = (line["metrics"][metric] for line in self.lines(method, noise))
        return [100 * value for value in found if value is not None]

    def methods(self) -> list[str]:
        return in_order(method for method, _ in self._found)


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
            # Where nothing is wrong, how many were selected says more than that all of them are right.
            none_wrong = found["precision"] is None or not line["wrong"]
            rows.append(
                [
                    title,
                    str(line["seed"]),
                    f"{found['calibration_error']:.3f}",
                    f"{100 * found['noise_rate']:.1f} ({100 * real:.1f})",
                    selected if none_wrong else f"{1 - found['precision']:.3f}",
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


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-aupr": lambda: simple("aupr"),
    "cifar10-p-at-1": lambda: simple("p_at_1"),
    "cifar10-heavy": heavy,
    "cifar10-claims": claims,
    "digits": digits,
    "digits-ablations": digits_ablations,
}
