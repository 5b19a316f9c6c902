"""Figures of a result line, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif_bench.curriculum.measures import measure, minority, wrong_share
from sgoif_bench.curriculum.study import Epoch

WRONG = np.array([True, False, False, True])


def epoch(accuracy: float, recall: list[float], weights: list[float] | None = None) -> Epoch:
    return Epoch(accuracy, recall, None if weights is None else np.array(weights, dtype=np.float32))


def test_figures() -> None:
    epochs = [
        epoch(0.5, [0.1, 0.2, 0.3], [1, 1, 1, 1]),
        epoch(0.9, [0.4, 0.5, 0.6], [0.5, 1, 1, 0.5]),
        epoch(0.6, [0.7, 0.8, 0.9], [0, 1, 1, 0.5]),
        epoch(0.8, [0.9, 0.5, 0.7], [0, 2, 1, 1]),
    ]
    found = measure(epochs, WRONG, [30, 1, 10])
    metrics = found["metrics"]
    assert metrics["accuracy"] == 0.8
    assert metrics["accuracy_last"] == pytest.approx((0.9 + 0.6 + 0.8) / 3)
    assert metrics["accuracy_best"] == 0.9
    assert metrics["minority_recall"] == 0.5
    assert metrics["worst_recall"] == 0.5
    assert metrics["wrong_weight"] == 0.25
    assert [record["wrong_weight"] for record in found["epochs"]] == pytest.approx([0.5, 1 / 3, 0.2, 0.25])
    assert found["minority"] == [1]
    assert found["sizes"] == [30, 1, 10]


def test_balanced_classes_have_no_minority_and_unknown_weights_no_share() -> None:
    metrics = measure([epoch(0.5, [0.5, 0.5])], WRONG, [10, 11])["metrics"]
    assert metrics["minority_recall"] is None
    assert metrics["wrong_weight"] is None
    assert wrong_share(np.zeros(4, dtype=np.float32), WRONG) is None


def test_minority_is_a_third_of_the_classes() -> None:
    assert minority([50, 1, 30, 20, 2, 40, 3, 25, 60, 35]) == [1, 4, 6]
    assert minority([4, 1]) == [1]
    assert minority([7] * 10) == []
