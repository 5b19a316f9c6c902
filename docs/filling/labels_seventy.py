"""Wrong labels where most labels are wrong: the label score before and with the balanced loss."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import marked, read_lines, table
from filling.labels import CIFAR, NOISES, Results

CHECKED = "labels-cifar10-seventy.jsonl"


def seventy() -> str:
    """CIFAR-10, three seeds: the former score of the same runs, the released one, influence alone."""
    results = Results(CIFAR)
    rows = []
    for noise in (noise for noise in NOISES if noise.startswith("matrix-70")):
        former = [line["before"]["metrics"] for line in results.lines("sgoif", noise)]
        areas, first = (
            [
                [100 * metrics[metric] for metrics in former],
                *(results.values(name, noise, metric) for name in ("sgoif", "influence", "knn")),
            ]
            for metric in ("aupr", "p_at_1")
        )
        rows.append([NOISES[noise], *marked(areas), *marked(first)])
    names = ["before", "SG-OIF", "influence only", "nearest neighbours"]
    return table(["noise", *names, *(f"P@1%, {name}" for name in names)], rows)


def checked() -> str:
    """One seed, the training examples: what some held-out labels that somebody has checked add."""
    rows = []
    for line in read_lines(CHECKED):
        pair = line["methods"]["label_errors"], line["checked"]["label_errors"]
        cells = (f"{100 * found[metric]:.1f}" for metric in ("aupr", "p_at_1") for found in pair)
        rows.append([NOISES[line["name"].partition("-augmented-")[0]], *cells])
    return table(["noise", "SG-OIF", "40 checked", "P@1%, SG-OIF", "P@1%, 40 checked"], rows)


def small_seventy() -> str:
    """The same of runs on small sets, whole: the label score before and now, and the influence."""
    lines = read_lines("labels-small-seventy.jsonl")
    rows = []
    for which, title in (("digits", "digits"), ("mnist", "MNIST"), ("mnist-uneven", "MNIST, uneven classes")):
        own = [line for line in lines if line["set"] == which]
        for noise in (noise for noise in NOISES if any(line["noise"] == noise for line in own)):
            here = [line for line in own if line["noise"] == noise]
            whole, alone = ([x for x in here if x["method"] == name] for name in ("sgoif", "influence"))
            former = [100 * line["before"]["metrics"]["aupr"] for line in whole]
            now, influence = ([100 * line["metrics"]["aupr"] for line in some] for some in (whole, alone))
            rows.append([title, NOISES[noise], *marked([former, now, influence])])
    return table(["set", "noise", "before", "SG-OIF", "influence only"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "cifar10-seventy": seventy,
    "cifar10-checked": checked,
    "small-seventy": small_seventy,
}
