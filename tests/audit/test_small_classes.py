"""Labels of classes with few images: none that cannot be judged is listed, and what is listed in bulk is doubted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from sgoif.audit.small_classes import notes, unjudged, without_verdict
from sgoif.core.score_table import ScoreTable
from sgoif.reports.label_report import pairs_of

LABELS = np.array([0] * 40 + [1] * 6 + [2])
HELD = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 40, 41])
NAMES = ["cat", "dog", "owl"]


def table(listed: list[int]) -> ScoreTable:
    issue = np.isin(np.arange(len(LABELS)), listed)
    p = np.where(issue, 0.99, 0.01)
    columns = {"given_label": LABELS, "is_label_issue": issue, "probability_wrong": p, "label_score": 1 - p}
    return ScoreTable({**columns, "predicted_label": np.where(issue, 0, LABELS)})


def test_a_class_without_a_held_out_image_is_as_likely_wrong_as_any() -> None:
    alone = unjudged(LABELS, HELD, 3)
    assert alone.tolist() == [2]
    before = table([3, 46])
    after = without_verdict(before, alone, 0.1)
    assert np.flatnonzero(after["is_label_issue"]).tolist() == [3]
    assert after["probability_wrong"][46] == 0.1
    assert after["label_score"][46] == 0.9
    assert after["predicted_label"][46] == 2
    for name in before.columns:
        np.testing.assert_array_equal(after[name][:46], before[name][:46])
    assert before["is_label_issue"][46], "the table that was given stays as it was"
    assert notes(after, LABELS, HELD, NAMES) == [
        "labels of 'owl' are not judged, since of so few images none can be held out: look at these yourself"
    ]


def test_the_page_does_not_call_labels_mixed_up_that_were_not_judged() -> None:
    given, true, number = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 0, 1]), np.arange(6.0)
    errors: Any = SimpleNamespace(confused=lambda: (given, true, number))
    assert pairs_of(errors, [2]).true.tolist() == [0, 1, 0, 1, 2, 2]
    assert pairs_of(errors, []).true.tolist() == true.tolist()


def test_a_small_class_that_is_listed_as_a_whole_is_doubted_and_a_large_one_is_not() -> None:
    said = notes(without_verdict(table([*range(30), 40, 41, 42, 43]), np.array([2]), 0.1), LABELS, HELD, NAMES)
    assert [note.split(":")[0] for note in said[1:]] == ["4 of 6 labels of 'dog' are listed"]
    assert len(notes(without_verdict(table([40, 41, 42]), np.array([2]), 0.1), LABELS, HELD, NAMES)) == 1
