"""Classes of few images, which a run can hardly judge: what is left out of the list, and what is said about the rest.

A class without a held-out image cannot be compared with anything, and to a model that could not learn it every image
of it looks wrong. Such labels are as likely wrong as any: what is believed of all stands in the place of a high
probability, and none is listed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sgoif.core.score_table import Array, ScoreTable
from sgoif.images.text import few, plural
from sgoif.tasks.labels.findings import LEAST_OF_CLASS

MOST = 0.5
"""Share of the labels of a class from which on a list names suspiciously many of them."""


def unjudged(labels: Array, held: Array, classes: int) -> Array:
    """Classes of which no image is held out."""
    return np.flatnonzero(np.bincount(labels[held], minlength=classes) == 0)


def without_verdict(table: ScoreTable, classes: Array, rate: float) -> ScoreTable:
    """The table, in which labels of these classes are not listed and as likely wrong as labels are on the whole."""
    hidden = np.isin(table["given_label"], classes)
    columns: dict[str, Any] = {name: table[name] for name in table.columns}
    columns["is_label_issue"] = table["is_label_issue"] & ~hidden
    columns["predicted_label"] = np.where(hidden, table["given_label"], table["predicted_label"])
    columns["probability_wrong"] = np.where(hidden, rate, table["probability_wrong"])
    columns["label_score"] = np.where(hidden, 1 - rate, table["label_score"])
    return ScoreTable(columns)


def notes(table: ScoreTable, labels: Array, held: Array, class_names: Sequence[str]) -> list[str]:
    """What to know about small classes; `table` is that without verdicts on those that cannot be judged."""
    classes = len(class_names)
    sizes, judges = (np.bincount(some, minlength=classes) for some in (labels, labels[held]))
    listed = np.bincount(table["given_label"][table["is_label_issue"]], minlength=classes)
    found = []
    if alone := unjudged(labels, held, classes).tolist():
        found.append(
            f"labels of {few(class_names[y] for y in alone)} are not judged, since of so few images none can be held"
            " out: look at these yourself"
        )
    for y in np.flatnonzero((judges > 0) & (judges < LEAST_OF_CLASS) & (listed > MOST * sizes)).tolist():
        found.append(
            f"{listed[y]:,} of {plural(sizes[y], 'label')} of {few([class_names[y]])} are listed: so few images may not"
            " be enough to learn the class, and then most of these labels are right"
        )
    return found
