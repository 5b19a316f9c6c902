"""Whether noise follows looks: on made-up examples of which it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Rows
from sgoif.tasks.labels.lookalike import follows_looks, lookalike

CLASSES, COUNT, RATE = 6, 6000, 0.2


def examples(partner: np.ndarray[Any, Any] | None, seed: int = 0) -> tuple[Rows, Labels, Array, Array]:
    """Classes 0 and 1, 2 and 3, 4 and 5 look alike; a fifth of the labels goes to `partner` of the class, or anywhere.

    Returns probabilities, labels, suspicion and the joint of given and true labels.
    """
    random = np.random.default_rng(seed)
    true = random.integers(CLASSES, size=COUNT)
    wrong = random.random(COUNT) < RATE
    anywhere = (true + random.integers(1, CLASSES, size=COUNT)) % CLASSES
    given = np.where(wrong, anywhere if partner is None else partner[true], true)
    doubt = np.where(random.random(COUNT) < 0.3, 0.3, 0.0)
    seen = np.zeros((COUNT, CLASSES))
    seen[np.arange(COUNT), true] = 1 - doubt
    seen[np.arange(COUNT), true ^ 1] += doubt
    joint = np.zeros((CLASSES, CLASSES))
    np.add.at(joint, (given, true), 1 / COUNT)
    channel = joint.T / joint.T.sum(1, keepdims=True)
    return Rows(seen @ channel), given.astype(np.int64), wrong + 0.01 * random.random(COUNT), joint


def test_noise_between_classes_that_look_alike_is_told_from_other_noise() -> None:
    classes = np.arange(CLASSES)
    alike, elsewhere = (lookalike(*examples(partner), RATE) for partner in (classes ^ 1, (classes + 2) % CLASSES))
    anywhere = lookalike(*examples(None), RATE)
    assert alike > 0.9
    assert elsewhere < 0
    assert abs(anywhere) < 0.35


def test_looks_that_cannot_be_compared_are_no_evidence() -> None:
    p = np.tile(np.eye(3), (40, 1))
    given = np.tile(np.arange(3), 40)
    assert lookalike(Rows(p), given, np.zeros(120), np.eye(3) / 3, 0.0) == 0


@pytest.mark.parametrize(
    ("correlation", "structure", "fitted", "expected"),
    [(0.7, 0.1, 1.0, 1.0), (0.2, 0.1, 1.0, 0.0), (0.7, 0.6, 1.0, 0.0), (0.7, 0.1, 0.0, 0.0), (0.7, 0.25, 0.5, 0.25)],
)
def test_people_are_believed_where_nothing_speaks_against_it(
    correlation: float, structure: float, fitted: float, expected: float
) -> None:
    assert follows_looks(correlation, structure, fitted) == pytest.approx(expected)
