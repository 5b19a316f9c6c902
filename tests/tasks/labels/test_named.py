"""The noise rate by naming: on made-up examples whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgoif.tasks.labels.channel import Labels
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.named import LEAST_NAMED, MOST, by_naming, unlearned

CLASSES, COUNT = 10, 20_000
EVEN = (0.8 * np.eye(CLASSES) + 0.2 / CLASSES) / CLASSES
"""The joint of labels that are wrong anywhere."""


def examples(given: Labels, true: Labels, clear: np.ndarray[Any, Any]) -> Evidence:
    """The class of a clear image is plain to the model, that of another one might be the one after the next."""
    p = np.full((len(true), CLASSES), 0.01)
    rows = np.arange(len(true))
    p[rows, true] = np.where(clear, 0.9, 0.4)
    p[rows, (true + 2) % CLASSES] = np.where(clear, 0.01, 0.35)
    flat = np.zeros(len(true))
    return Evidence(rows, given, flat, flat, flat, flat, Rows(np.zeros((len(true), CLASSES))), Rows(p))


def run(
    rate: float, decoys: int, seed: int, partner: int | None = None, clear: float = 0.7
) -> tuple[Evidence, np.ndarray[Any, Any]]:
    """Labels that are wrong anywhere, or go to the class `partner` further; decoys go anywhere, to a right one too."""
    random = np.random.default_rng(seed)
    true = random.integers(CLASSES, size=COUNT)
    wrong = random.random(COUNT) < rate
    step = random.integers(1, CLASSES, size=COUNT) if partner is None else np.full(COUNT, partner)
    given = np.where(wrong, (true + step) % CLASSES, true)
    planted = np.arange(COUNT) < decoys
    given[planted] = (given[planted] + random.integers(1, CLASSES, size=decoys)) % CLASSES
    return examples(given, true, random.random(COUNT) < clear), planted


@pytest.mark.parametrize("partner", [None, 1])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.4])
def test_the_rate_is_that_of_the_labels(rate: float, partner: int | None) -> None:
    found = by_naming(*run(rate, 2000, seed=1, partner=partner), CLASSES, EVEN)
    assert found is not None
    assert found.rate == pytest.approx(rate, abs=0.04 * rate)
    assert found.trust == 1


def test_few_decoys_say_nothing() -> None:
    decoys = int(LEAST_NAMED / 0.7)
    assert by_naming(*run(0.2, decoys // 2, seed=2), CLASSES, EVEN) is None
    assert by_naming(*run(0.2, 2 * decoys, seed=2), CLASSES, EVEN) is not None


@pytest.mark.parametrize("share", [0.3, 0.4, 0.7])
def test_where_few_decoys_are_named_naming_is_believed_as_much(share: float) -> None:
    found = by_naming(*run(0.2, 4000, seed=3, clear=share), CLASSES, EVEN)
    assert found is not None
    assert found.trust == pytest.approx(min(1.0, share / MOST), abs=0.05)


def joint(flipped: float, classes: int) -> np.ndarray[Any, Any]:
    """So many classes lose this share of their examples to the next one."""
    counts = np.eye(CLASSES)
    for y in range(classes):
        counts[y, y] -= flipped
        counts[(y + 1) % CLASSES, y] += flipped
    return counts / CLASSES


@pytest.mark.parametrize(("flipped", "expected"), [(0.0, 1), (0.1, 1), (0.2, 1), (7 / 31, 0.5), (0.25, 0), (0.45, 0)])
def test_a_name_is_learned_where_a_class_often_has_it(flipped: float, expected: float) -> None:
    for classes in (1, 5, CLASSES):
        assert unlearned(joint(flipped, classes)) == pytest.approx(expected)


def test_names_that_are_wrong_anywhere_are_not_learned() -> None:
    assert unlearned(EVEN) == 1
