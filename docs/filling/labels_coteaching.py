"""Co-teaching by the epochs over which it lets large losses go: the authors' ten, or their share of all epochs."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import Line, marked, read_lines, table
from filling.labels import CIFAR, NOISES

HURRIED = "labels-coteaching-hurried.jsonl"
SETS = {
    "cifar10": ("CIFAR-10", CIFAR),
    "mnist": ("MNIST, 2,000 images", "labels-mnist-small.jsonl"),
    "digits": ("digits", "labels-digits-coteaching.jsonl"),
}


def hurried() -> str:
    """A row for each set and noise, with the seeds that both were run with, or a dash for what is to be run."""
    lines = read_lines(HURRIED)
    rows = []
    for name, (title, file) in SETS.items():
        patient = {_run(line): line for line in read_lines(file) if line["method"] == "coteaching"}
        for noise in NOISES:
            here = [line for line in lines if (line["set"], line["noise"]) == (name, noise)]
            both = [line for line in here if _run(line) in patient]
            if here:
                pair = (both or here), [patient[_run(line)] for line in both]
                cells = marked([[100 * line["metrics"]["aupr"] for line in some] for some in pair])
                rows.append([title, NOISES[noise], f"{here[0]['details']['gradual_epochs']:g}", *cells])
    return table(["set", "noise", "5% of the epochs are", "T_k 5% of the epochs", "T_k ten epochs"], rows)


def _run(line: Line) -> tuple[str, int]:
    return line["noise"], line["seed"]


TABLES: dict[str, Callable[[], str]] = {"coteaching-hurried": hurried}
