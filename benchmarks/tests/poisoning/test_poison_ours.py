"""Ours in the comparison: what each of the three is given, and that watching changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attack_cases import CLASSES, CPU, bars, recipe

from sgoif_bench.poisoning.attacks.badnets import BadNets
from sgoif_bench.poisoning.exam import Exam
from sgoif_bench.poisoning.ours import found
from sgoif_bench.poisoning.trial import Data, Trial, attacked

METHODS = ["sgoif-known", "sgoif-unknown"]


@pytest.fixture(scope="module")
def outcomes() -> tuple[Trial, dict[str, Any], dict[str, Any]]:
    """Outcomes of ours, and of a rival on a run without us."""
    world = Data(*bars(400, 0), CLASSES, *bars(80, 9))
    poisoned = attacked(world, BadNets(rate=0.1, target=2), recipe(8), CPU, 1, print)
    exam = Exam.of(world.test_images, world.test_labels, poisoned, 5, seed=1)

    def trial() -> Trial:
        return Trial(world, poisoned, exam, recipe(8), CPU, 1, lambda message: None)

    watched, alone = trial(), trial()
    return watched, watched.run(METHODS, retrain=[]), alone.run(["random"], retrain=[])


def test_poison_is_found(outcomes: tuple[Trial, dict[str, Any], dict[str, Any]]) -> None:
    trial, ours, _ = outcomes
    assert trial.failures == {}
    assert set(ours) == set(METHODS)
    assert ours["sgoif-known"]["before"]["attack_success"] > 0.9
    assert ours["sgoif-known"]["metrics"]["aupr"] > 0.9
    assert ours["sgoif-unknown"]["metrics"]["aupr"] > 3 * trial.is_poison.mean()
    assert [ours[name]["setting"] for name in METHODS] == ["known", "unknown"]
    for outcome in ours.values():
        assert outcome["removed_by"] == "own rule"
        assert set(outcome["details"]) == {"families", "stated_precision", "expected", "groups"}


def test_watching_changes_nothing(outcomes: tuple[Trial, dict[str, Any], dict[str, Any]]) -> None:
    _, ours, plain = outcomes
    assert ours["sgoif-known"]["before"] == plain["random"]["before"]


def test_an_answer_as_a_finding() -> None:
    mixture = SimpleNamespace(separation=6.0, contrast=5.0, share=0.1)
    answer = SimpleNamespace(
        score=np.array([0.1, 0.9, 0.5]),
        probability=np.array([0.0, 0.8, 0.6]),
        selected=np.array([2, 1]),
        families=["one"],
        evidence=[SimpleNamespace(label=7, mixture=mixture, members=2, belief=0.3)],
    )
    finding = found(answer)
    assert finding.suspicion.tolist() == [0.1, 0.9, 0.5]
    assert finding.selected is not None
    assert finding.selected.tolist() == [1, 2]
    assert finding.details == {
        "families": 1,
        "stated_precision": pytest.approx(0.7),
        "expected": pytest.approx(1.4),
        "groups": [{"label": 7, "separation": 6.0, "contrast": 5.0, "share": 0.1, "members": 2, "belief": 0.3}],
    }
    nothing = SimpleNamespace(
        score=np.zeros(2), probability=np.zeros(2), selected=np.zeros(0), families=[], evidence=[]
    )
    assert found(nothing).details["stated_precision"] is None
