"""The report about a curriculum, by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sgoif.tasks.curriculum.summary import MOST_ROWS, changes, summarise

ENTRY: dict[str, Any] = {
    "noise_rate": 0.25, "trust": 1.0, "caution": 0.5, "newly_down": 2, "back": 1, "moved": 0.1, "seconds": 0.5,
}  # fmt: skip


def test_figures() -> None:
    weights, labels = np.array([0.25, 1.0, 1.75, 1.0, 9.0]), np.array([0, 0, 1, 1, -1])
    report = summarise(weights, labels, 3, [ENTRY, ENTRY], epochs=4.0)
    assert report.examples == 4  # the last was never seen
    assert report.weighed_down == 1
    assert report.mean == 1
    assert (report.smallest, report.largest) == (0.25, 1.75)
    assert report.effective_size == pytest.approx(16 / (0.0625 + 1 + 3.0625 + 1))
    assert report.seconds == 1
    assert report.noise_rate == 0.25
    assert [(row.label, row.examples, row.weighed_down) for row in report.classes] == [(0, 2, 1), (1, 2, 0), (2, 0, 0)]
    assert [row.before for row in report.classes] == [0.5, 0.5, 0]
    assert [row.after for row in report.classes] == pytest.approx([0.3125, 0.6875, 0])
    json.dumps(report.to_dict())
    text = str(report)
    assert "1 of 4 examples" in text
    assert "2 newly, 1 came back" in text
    assert "31.25%" in text


def test_before_anything_is_known() -> None:
    report = summarise(np.ones(0), np.zeros(0, dtype=np.int64), 2, [], epochs=0.0)
    assert report.noise_rate is None
    assert report.effective_size == 0
    assert "warming up" in str(report)


def test_of_many_classes_those_that_changed_most_are_shown() -> None:
    labels = np.arange(100)
    weights = np.ones(100)
    weights[77] = 0.1
    report = summarise(weights, labels, 100, [ENTRY], epochs=2.0)
    assert report.shown()[0].label == 77
    assert len(report.shown()) == MOST_ROWS
    assert len(str(report).splitlines()) == MOST_ROWS + 4


def test_changes_between_two_judgements() -> None:
    found = changes(np.array([1.0, 0.4, 0.2, 1.0]), np.array([0.3, 0.6, 0.2, 1.2]))
    assert found == {"weighed_down": 2, "newly_down": 1, "back": 1, "moved": pytest.approx(0.275)}
