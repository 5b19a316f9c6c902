"""The table of the README: one row out of each page's own table, so that both say the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pages import curriculum, engine, fidelity, labels, ood, poisoning, unlearning
from pages.cells import table

PAGE = "../../README.md"


@dataclass(frozen=True)
class Figure:
    """What is measured, and where it stands in the table of a page."""

    what: str
    page: str
    table: Callable[[], str]
    row: Sequence[str]
    """The first cells of the row."""
    ours: int
    """Column of SG-OIF's figure."""
    rival: int
    name: str | int
    """Whose figure stands beside it, or the column that names it; empty where the cell itself does."""


FIGURES = (
    Figure(
        "wrong labels of CIFAR-10 found, 17 noises, AUPR",
        "labels.md",
        labels.TABLES["labels-best-rivals"],
        ("CIFAR-10, mean",),
        1,
        3,
        "best of 16 each time",
    ),
    Figure(
        "accuracy with 20% flipped labels, CIFAR-10",
        "curriculum.md",
        curriculum.TABLES["curriculum-accuracy"],
        ("CIFAR-10, class-dependent 20%",),
        5,
        4,
        "Co-teaching",
    ),
    Figure(
        "images that do not belong, CIFAR-10, AUROC",
        "ood.md",
        ood.TABLES["ood"],
        ("CIFAR-10, ResNet-18", "SG-OIF sentinel"),
        4,
        4,
        1,
    ),
    Figure(
        "the same after 20% wrong labels", "ood.md", ood.TABLES["ood"], ("20% wrong labels", "SG-OIF sentinel"), 4, 4, 1
    ),
    Figure(
        "poison found from ten victims, MNIST, AUPR",
        "poisoning.md",
        poisoning.TABLES["poisoning"],
        ("MNIST, blended trigger 1%",),
        3,
        4,
        "",
    ),
    Figure(
        "the same, nothing known",
        "poisoning.md",
        poisoning.TABLES["poisoning"],
        ("MNIST, blended trigger 1%",),
        6,
        7,
        "",
    ),
    Figure(
        "retraining predicted, CIFAR-10, LDS, two seeds",
        "fidelity.md",
        fidelity.TABLES["fidelity"],
        ("CIFAR-10, ResNet-9",),
        1,
        2,
        "EK-FAC",
    ),
    Figure(
        "groups deleted from the head, mean / least % of the way",
        "unlearning.md",
        unlearning.TABLES["unlearning"],
        ("digits (3)", "group of 10 to 50"),
        5,
        3,
        "influence step",
    ),
    Figure(
        "time of training, head watched, H200, three runs",
        "engine.md",
        engine.TABLES["engine-cost"],
        ("H200, ResNet-18, batch 512", "head"),
        2,
        4,
        "goal",
    ),
)
HEAD = ("what", "SG-OIF", "beside it", "page")


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table."""
    return [[cell.strip().strip("*") for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def row(figure: Figure) -> list[str]:
    """One line of the README. A rival that has a row of its own is the first below ours."""
    rows = rows_of(figure.table())
    places = [place for place, cells in enumerate(rows) if cells[: len(figure.row)] == list(figure.row)]
    if len(places) != 1:
        raise SystemExit(f"{figure.page} has {len(places)} rows that begin with {', '.join(figure.row)}; expected one")
    own = rows[places[0]]
    other = rows[places[0] + 1] if isinstance(figure.name, int) else own
    name = other[figure.name] if isinstance(figure.name, int) else figure.name
    link = f"[{figure.page.removesuffix('.md')}](docs/benchmarks/{figure.page})"
    return [figure.what, own[figure.ours], f"{other[figure.rival]} {name}".strip(), link]


def figures() -> str:
    """One figure of every page."""
    return table(HEAD, [row(figure) for figure in FIGURES])


TABLES: dict[str, Callable[[], str]] = {"readme": figures}
