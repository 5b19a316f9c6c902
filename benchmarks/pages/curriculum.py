"""The table of the page about training despite wrong labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pages.cells import Line, marked, read_lines, table

PAGE = "curriculum.md"
PLAIN, OURS, OURS_ROBUST, TWICE = "plain", "curriculum", "curriculum-robust", "curriculum-twice"
TWICE_ROBUST, SCE, SCE_TWICE, COTEACHING = "curriculum-twice-robust", "sce", "sce-twice", "coteaching"
METHODS = {
    PLAIN: "plain",
    SCE: "SCE",
    SCE_TWICE: "SCE, twice",
    COTEACHING: "Co-teaching",
    OURS: "SG-OIF",
    OURS_ROBUST: "SG-OIF, robust",
    TWICE_ROBUST: "robust, twice",
}
FIRST_OF = {OURS: TWICE, OURS_ROBUST: TWICE_ROBUST, SCE: SCE_TWICE}
"""Methods whose accuracy is also that of the first training of another."""
NOISES = {
    "none": "no noise",
    "class-dependent-20": "class-dependent 20%",
    "symmetric-40": "symmetric 40%",
    "symmetric-60": "symmetric 60%",
    "human-aggregate": "people, majority, 9%",
    "human-random1": "people, single, 17%",
    "instance-30": "by image 30%",
    "matrix-40-sparsity-0.6": "matrix 40%",
}


class Row(NamedTuple):
    """One setting of the page."""

    images: str
    file: str
    noise: str
    held_out: bool = False
    model: str | None = None
    tail: float | None = None


ROWS = (
    *(Row("CIFAR-10", "cifar10", noise) for noise in ("class-dependent-20", "symmetric-40", "human-aggregate", "none")),
    Row("CIFAR-10", "cifar10-others", "human-random1"),
    *(Row("CIFAR-10", "cifar10-others", noise, held_out=True) for noise in ("symmetric-60", "instance-30")),
    Row("CIFAR-10, long tail", "cifar10", "class-dependent-20", tail=50.0),
    *(Row("Fashion-MNIST", "fashion-mnist", noise) for noise in ("class-dependent-20", "symmetric-40", "none")),
    *(Row("MNIST", "mnist", noise) for noise in ("class-dependent-20", "symmetric-40", "none")),
    *(
        Row("MNIST", "mnist-others", noise, held_out=True, model="mlp")
        for noise in ("matrix-40-sparsity-0.6", "instance-30")
    ),
    *(Row("digits", "digits", noise) for noise in ("class-dependent-20", "symmetric-40", "none")),
)


def accuracies() -> str:
    """Test accuracy after the last epoch, mean over seeds: a row for each setting, a column for each method."""
    rows = []
    for row in ROWS:
        lines = [line for line in read_lines(f"curriculum-{row.file}.jsonl") if _belongs(line, row)]
        values = [_values(lines, method) for method in METHODS]
        counts = sorted({len(found) for found in values if found})
        cells = marked([[sum(found) / len(found)] if found else [] for found in values])
        seeds = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        selection = "held-out" if row.held_out else "dev"
        rows.append([f"{row.images}, {NOISES[row.noise]}", *cells, seeds, selection])
    return table(["images, noise", *METHODS.values(), "seeds", "selection"], rows)


def _belongs(line: Line, row: Row) -> bool:
    recipe = line["recipe"]
    return (
        line["noise"] == row.noise
        and recipe["tail"] == row.tail
        and row.model in (None, recipe["model"])
        and "curriculum" not in recipe  # settings other than the defaults
    )


def _values(lines: Sequence[Line], method: str) -> list[float]:
    """Percent by seed; of the first of two trainings where the method has no lines of its own."""
    own = [line["metrics"]["accuracy"] for line in lines if line["method"] == method]
    if not own and method in FIRST_OF:
        own = [line["details"]["first_accuracy"] for line in lines if line["method"] == FIRST_OF[method]]
    return [100 * value for value in own]


TABLES: dict[str, Callable[[], str]] = {"curriculum-accuracy": accuracies}
