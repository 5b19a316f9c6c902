"""What methods that find wrong labels cost, on the page about them."""

from __future__ import annotations

from collections.abc import Callable

from pages.cells import read_result, table
from sgoif_bench.labels.costs import rows

PAGE = "labels.md"
OTHER_FORMS = [
    "influence",
    "coteaching-known",
    "mentornet-loss",
    "mentornet-predefined",
    "tracin-self",
    "tracin-voices",
    "fastif-sum",
    "probability-margin",
    "forgetting",
    "data-maps",
    "loss",
    "simifeat-vote",
]
"""Methods that cost what another of the same paper does, or what all do that only look on."""


def what_methods_cost() -> str:
    """A row for each method, other forms of the same one left out."""
    return table(("method", "time", "memory", "FLOPs"), rows(read_result("labels-costs.json"), OTHER_FORMS))


TABLES: dict[str, Callable[[], str]] = {"labels-costs": what_methods_cost}
