"""SG-OIF and the plain training in the comparison: every example is scored, the truth stays out of reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import striped

from sgoif_bench.labels import ours
from sgoif_bench.labels.plain import plain
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.knn import knn
from sgoif_bench.labels.rivals.self_influence import self_influence
from sgoif_bench.labels.rivals.tracin import tracin_self
from sgoif_bench.labels.rivals.watched import aum
from sgoif_bench.metrics import auroc, average_precision

SIZE = 800


def silent(message: str) -> None:
    del message


@pytest.fixture(scope="module")
def case() -> tuple[Problem, NDArray[np.bool_]]:
    return striped(size=SIZE, rate=0.2, epochs=6, anchors=120)


@pytest.fixture(scope="module")
def found(case: tuple[Problem, NDArray[np.bool_]]) -> dict[str, Outcome]:
    return ours.family(case[0], silent)


def test_the_label_score_finds_wrong_labels_everywhere(
    case: tuple[Problem, NDArray[np.bool_]], found: dict[str, Outcome]
) -> None:
    problem, wrong = case
    assert set(found) == {"sgoif", "influence"}
    assert average_precision(wrong, found["sgoif"].suspicion) > 0.95
    assert auroc(wrong, found["influence"].suspicion) > 0.9
    held_out = np.asarray(problem.split()[1].indices)
    assert auroc(wrong[held_out], found["sgoif"].suspicion[held_out]) > 0.9


def test_what_the_method_states_about_itself(
    case: tuple[Problem, NDArray[np.bool_]], found: dict[str, Outcome]
) -> None:
    problem, wrong = case
    whole = found["sgoif"]
    assert whole.probability is not None
    assert whole.flagged is not None
    assert whole.suggested is not None
    assert whole.noise_rate is not None
    assert ((whole.probability >= 0) & (whole.probability <= 1)).all()
    assert wrong[whole.flagged].mean() > 0.8
    assert whole.noise_rate[1] <= 0.2 <= whole.noise_rate[2]
    assert (whole.suggested != problem.labels).any()
    assert whole.trainings == pytest.approx(1 - 120 / SIZE, abs=0.01)
    ranks = whole.details["ranks_over_epochs"]
    assert ranks.shape == (problem.recipe.epochs, SIZE)
    assert np.isneginf(ranks[:, problem.split()[1].indices]).all()
    assert whole.details["curvature_products_per_step"] > 0


def test_the_same_seed_gives_the_same_scores_and_the_labels_stay_as_they_are(
    case: tuple[Problem, NDArray[np.bool_]], found: dict[str, Outcome]
) -> None:
    problem, _ = case
    before = problem.labels.copy()
    again = ours.sgoif(problem, silent)
    assert np.array_equal(problem.labels, before)
    assert np.array_equal(again.suspicion, found["sgoif"].suspicion)


def test_ablations_are_settings_of_one_engine() -> None:
    problem, wrong = striped(size=400, rate=0.2, epochs=2, anchors=80)
    outcomes = ours.ablations(problem, silent)
    assert set(outcomes) >= {"sgoif", *ours.ABLATIONS, *(f"{name}-influence" for name in ours.ABLATIONS)}
    assert all(len(outcome.suspicion) == len(wrong) for outcome in outcomes.values())
    reference = outcomes["influence"].suspicion
    for name in ("without-gate", "moving-average-gate", "without-temperature", "low-rank", "one-pool"):
        assert not np.array_equal(outcomes[f"{name}-influence"].suspicion, reference), name


def test_one_plain_training_says_what_each_method_would_say_alone(case: tuple[Problem, NDArray[np.bool_]]) -> None:
    problem = replace(case[0], recipe=replace(case[0].recipe, epochs=3))
    together = plain(problem, silent)
    for name, alone in (("aum", aum), ("tracin-self", tracin_self), ("self-influence", self_influence), ("knn", knn)):
        np.testing.assert_allclose(together[name].suspicion, alone(problem, silent).suspicion, rtol=1e-6, err_msg=name)
    assert {"loss", "probability-margin", "forgetting", "data-maps"} <= set(together)
