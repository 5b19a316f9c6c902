"""Tables of the page about wrong labels."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from filling.cells import Line, marked, number, read_lines, table
from sgoif.bench.labels.ours import ABLATIONS
from sgoif.bench.labels.registry import METHODS, choose, in_order, title_of

PAGE = "labels.md"
CIFAR = "labels-cifar10.jsonl"
SEED = 3
"""Of the methods that were run with one seed."""
FLIPS = "class-dependent-20"
TWO_NOISES = ("symmetric-20", FLIPS)
THREE_NOISES = (*TWO_NOISES, "matrix-40-sparsity-0.6")
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
    return by_noise(Results(CIFAR), choose("simple"), metric)


def heavy() -> str:
    """CIFAR-10, the methods with a training of their own, one seed; their mean where a rival has every row."""
    results = Results(CIFAR)
    names = ["sgoif", *choose("heavy")]
    values = {
        (name, noise): [100 * line["metrics"]["aupr"] for line in results.lines(name, noise) if line["seed"] == SEED]
        for name in names
        for noise in NOISES
    }
    some = [noise for noise in NOISES if any(values[name, noise] for name in names[1:])]
    rows = [[NOISES[noise], *marked([values[name, noise] for name in names])] for noise in some]
    columns = [[values[name, noise] for noise in some] for name in names]
    means = [[statistics.mean(value for (value,) in column)] if all(column) else [] for column in columns]
    own = columns[0]
    leads = [[ours[0] - area for ours, found in zip(own, column, strict=True) for area in found] for column in columns]
    runs = {name: [line for noise in some for line in results.lines(name, noise)] for name in names}
    cost = [f"{statistics.mean(line['trainings'] for line in lines):.1f}" if lines else "–" for lines in runs.values()]
    mean = [["mean", *marked(means)]] if any(means[1:]) else []
    return table(["noise", *map(title_of, names)], [*rows, *mean, *_summed_up(leads), ["trainings", *cost]])


def _summed_up(leads: Sequence[Sequence[float]]) -> list[list[str]]:
    """By how much ours, in the first column, is ahead of each rival where both were run: on average, and at worst."""
    titles = {"SG-OIF ahead by, mean": statistics.mean, "at worst": min}
    return [
        [title, "", *(signed(summed(some)) if some else "–" for some in leads[1:])] for title, summed in titles.items()
    ]


def signed(points: float) -> str:
    """A difference as it is printed."""
    return f"{points:+.2f}".replace("-", "−")


def removal(file: str) -> str:
    """Test accuracy after training without what a method suspects, mean over seeds."""
    results = Results(file)
    rows = []
    for noise in (noise for noise in NOISES if any(results.lines(name, noise) for name in results.methods())):
        lines = {name: results.lines(name, noise) for name in results.methods() if results.lines(name, noise)}
        found = {name: [line["removal"] for line in some] for name, some in lines.items()}
        wrong = next(iter(lines.values()))[0]["wrong"]
        accuracies = marked([[100 * again["test_accuracy"] for again in some] for some in found.values()])
        for (name, some), accuracy in zip(found.items(), accuracies, strict=True):
            title = title_of(name) if some[0]["share"] else "nothing"
            counts = [statistics.mean(again[count] for again in some) for count in ("removed", "wrong_left")]
            rows.append([NOISES[noise], title, *(f"{count:.0f}" for count in counts), str(wrong), accuracy])
    return table(["noise", "left out by", "left out", "wrong left", "wrong before", "test accuracy"], rows)


def all_methods(file: str, noises: Sequence[str] = TWO_NOISES) -> str:
    """Every method on a few kinds of noise."""
    results = Results(file)
    names = [name for name in results.methods() if name in METHODS]
    columns = [marked([results.values(name, noise, "aupr") for name in names]) for noise in noises]
    rows = []
    for name, *cells in zip(names, *columns, strict=True):
        line = next(line for noise in noises for line in results.lines(name, noise))
        rows.append([title_of(name), *cells, f"{line['trainings']:.2f}"])
    return table(["method", *(NOISES[noise] for noise in noises), "trainings"], rows)


def ablations(file: str) -> str:
    """What each part of ours is worth."""
    results = Results(file)
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
        both = [results.values(which, noise, "aupr") for which in (name, alone) for noise in TWO_NOISES]
        lines = results.lines(alone, FLIPS)
        kendall = statistics.mean(line["metrics"]["top_kendall"] for line in lines)
        products = statistics.mean(
            line["metrics"]["curvature_products_per_step"] for line in results.lines(name, FLIPS)
        )
        title = "nothing" if name == "sgoif" else title_of(name).removeprefix("SG-OIF, ")
        first = number(results.values(alone, FLIPS, "p_at_1"), spread=False)
        recall = " / ".join(number(results.values(alone, FLIPS, f"recall_at_{k}"), spread=False) for k in (1, 5, 10))
        rows.append([title, *map(number, both), first, recall, f"{kendall:.2f}", f"{products:.2f}"])
    return table([*head, "P@1%, flips", "R@1/5/10%, flips", "Kendall τ", "curvature products a step"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-aupr": lambda: simple("aupr"),
    "cifar10-p-at-1": lambda: simple("p_at_1"),
    "cifar10-heavy": heavy,
    "digits": lambda: all_methods("labels-digits.jsonl"),
    "cifar10-removal": lambda: removal("labels-cifar10-removal.jsonl"),
    "digits-removal": lambda: removal("labels-digits-removal.jsonl"),
    "mnist": lambda: all_methods("labels-mnist-small.jsonl", THREE_NOISES),
    "mnist-whole": lambda: all_methods("labels-mnist.jsonl", THREE_NOISES),
    "digits-ablations": lambda: ablations("labels-digits-ablations.jsonl"),
    "mnist-ablations": lambda: ablations("labels-mnist-small-ablations.jsonl"),
    "cifar10-ablations": lambda: ablations("labels-cifar10-ablations.jsonl"),
}
