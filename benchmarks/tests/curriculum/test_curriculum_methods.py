"""Every method of the comparison on a small problem: what it trains on, what it says, what is seen of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from problems import striped
from torch import nn

from sgoif.errors import SettingError
from sgoif_bench.curriculum.registry import METHODS, choose, in_order, title_of, train_function
from sgoif_bench.curriculum.study import Study, Trained
from sgoif_bench.labels.rivals.coteaching import gradual_epochs

pytestmark = pytest.mark.long

SIZE, EPOCHS, ANCHORS = 400, 10, 80


def new_study(right: bool = False, rate: float = 0.3, **options: Any) -> tuple[Study, NDArray[np.bool_]]:
    problem, wrong = striped(size=SIZE, epochs=EPOCHS, anchors=ANCHORS, rate=rate, seed=3, **options)
    test, _ = striped(size=300, epochs=EPOCHS, rate=0.0, seed=4)
    test.mean, test.spread = problem.mean, problem.spread
    return Study(problem, test, lambda message: None, np.flatnonzero(~wrong) if right else None), wrong


Found = tuple[Study, Trained, NDArray[np.bool_]]


@pytest.fixture(scope="module")
def trained() -> Callable[[str], Found]:
    known: dict[str, Found] = {}

    def get(name: str) -> Found:
        if name not in known:
            study, wrong = new_study(right=METHODS[name].knows_truth)
            known[name] = study, train_function(name)(study), wrong
        return known[name]

    return get


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_for_the_same_epochs_and_learns(name: str, trained: Callable[[str], Found]) -> None:
    study, said, _ = trained(name)
    assert len(study.epochs) == EPOCHS
    assert study.epochs[-1].accuracy > 0.5
    assert len(study.epochs[-1].recall) == 4
    assert said.trainings > 0
    assert study.seconds > 0


def test_weights_say_who_was_trained_on(trained: Callable[[str], Found]) -> None:
    study, _, wrong = trained("oracle")
    assert np.array_equal(study.epochs[0].weights, ~wrong)
    study, _, _ = trained("plain")
    assert (study.epochs[0].weights == 1).all()
    held = np.asarray(study.problem.split()[1].indices)
    for name, joins in (
        ("curriculum", True),
        ("curriculum-targets", True),
        ("curriculum-apart", False),
    ):
        study, said, _ = trained(name)
        first, last = study.epochs[0].weights, study.epochs[-1].weights
        assert first is not None
        assert last is not None
        assert (first[held] == 0).all()
        assert (last[held] > 0).all() == joins
        assert said.details["joined_epochs"] == (2 if joins else 0)


def test_what_is_told_changes_the_weights_of_wrong_labels_of_right_ones_or_of_both(
    trained: Callable[[str], Found],
) -> None:
    for name, wrong_without, right_alike in (
        ("told", True, True),
        ("told-wrong", True, False),
        ("told-right", False, True),
        ("curriculum", False, False),
    ):
        study, _, wrong = trained(name)
        before, last = study.epochs[4].weights, study.epochs[-1].weights
        assert before is not None
        assert last is not None
        assert np.ptp(before[before > 0]) == 0  # no weight has moved after five epochs, so nothing is told
        assert (last[wrong].max() < 1e-5) == wrong_without
        assert (np.ptp(last[~wrong]) == 0) == right_alike
        assert last.mean() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ["curriculum", "curriculum-targets", "curriculum-apart"])
def test_a_curriculum_takes_weight_from_wrong_labels(name: str, trained: Callable[[str], Found]) -> None:
    study, said, wrong = trained(name)
    weights = study.epochs[-1].weights
    assert weights is not None
    assert weights[wrong].sum() / weights.sum() < 0.6 * wrong.mean()
    assert said.overhead is not None
    assert said.overhead > 1
    assert said.details["report"]["mean"] == pytest.approx(1, abs=0.05)


def test_settings_that_are_asked_for_are_used() -> None:
    study, _ = new_study()
    study.options = {"joined": 0.5, "floor": 1.0}
    said = train_function("curriculum")(study)
    assert said.details["joined_epochs"] == EPOCHS // 2
    weights = study.epochs[-1].weights
    assert weights is not None
    np.testing.assert_allclose(weights, 1, atol=1e-6)  # nobody gives anything up


def test_costs_in_trainings(trained: Callable[[str], Found]) -> None:
    share = 1 - ANCHORS / SIZE
    assert trained("plain")[1].trainings == 1
    assert trained("curriculum-apart")[1].trainings == pytest.approx(share)
    assert trained("curriculum")[1].trainings == pytest.approx((8 * share + 2) / 10)
    assert trained("curriculum-twice")[1].trainings == pytest.approx((8 * share + 2) / 10 + 1)
    assert trained("coteaching")[1].trainings == pytest.approx(2 + share)


def test_the_second_training_is_a_fresh_one_on_revised_labels(trained: Callable[[str], Found]) -> None:
    once, first, _ = trained("curriculum")
    study, said, wrong = trained("curriculum-twice")
    assert said.details["first_accuracy"] == pytest.approx(once.epochs[-1].accuracy)
    assert said.details["judgements"][-1]["noise_rate"] == first.details["judgements"][-1]["noise_rate"]
    weights = study.epochs[0].weights
    assert weights is not None
    assert np.array_equal(weights, study.epochs[-1].weights)  # revised once, and then learned as they are
    assert weights[wrong].mean() < 0.6 < 0.9 < weights[~wrong].mean() <= 1
    held = np.asarray(study.problem.split()[1].indices)
    assert weights[held][wrong[held]].mean() < weights[held][~wrong[held]].mean()
    assert said.overhead is not None
    assert said.overhead > 1


def test_the_second_training_may_have_another_loss(trained: Callable[[str], Found]) -> None:
    usual, first, _ = trained("curriculum-twice")
    study, said, _ = trained("curriculum-twice-sce")
    assert said.details["first_accuracy"] == first.details["first_accuracy"]
    assert np.array_equal(study.epochs[-1].weights, usual.epochs[-1].weights)  # the same labels
    assert [epoch.recall for epoch in study.epochs] != [epoch.recall for epoch in usual.epochs]  # learned otherwise


def test_a_robust_loss_is_told_the_labels_and_says_how_robust_it_was(trained: Callable[[str], Found]) -> None:
    study, said, wrong = trained("curriculum-robust")
    shares = [entry["robust_share"] for entry in said.details["judgements"]]
    assert max(shares) > 0.1  # these labels are wrong at random
    weights = study.epochs[-1].weights
    assert weights is not None
    assert weights[wrong].mean() < 0.6 * weights[~wrong].mean()
    again, later, _ = trained("curriculum-twice-robust")
    assert later.details["first_accuracy"] == pytest.approx(study.epochs[-1].accuracy)
    assert later.trainings == pytest.approx(said.trainings + 1)
    assert len(again.epochs) == len(study.epochs)


@pytest.mark.parametrize("name", ["plain", "sce"])
def test_rivals_are_trained_again_on_their_own_answers(trained: Callable[[str], Found], name: str) -> None:
    once, _, _ = trained(name)
    study, said, wrong = trained(f"{name}-twice")
    assert said.trainings == 2
    assert said.details["first_accuracy"] == pytest.approx(once.epochs[-1].accuracy)
    weights = study.epochs[0].weights
    assert weights is not None
    assert len(study.epochs) == len(once.epochs)
    assert weights[wrong].mean() < weights[~wrong].mean() < 1  # no label is left, where the network knows better


def test_co_teaching_reports_what_both_networks_kept(trained: Callable[[str], Found]) -> None:
    study, said, wrong = trained("coteaching")
    weights = study.epochs[-1].weights
    assert weights is not None
    assert 0 < said.details["forget_rate"] < 0.6
    completed = len(study.epochs) - 1
    left_out = said.details["forget_rate"] * min(completed / gradual_epochs(len(study.epochs)), 1)
    assert weights.mean() == pytest.approx(1 - left_out, abs=0.02)
    assert weights[wrong].mean() < weights[~wrong].mean()


def test_the_clock_stands_still_while_the_judge_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    study, _ = new_study()
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    look = study.test.predict

    def slowly(model: nn.Module, rows: Any = None) -> Any:
        time.sleep(0.3)
        return look(model, rows)

    monkeypatch.setattr(study.test, "predict", slowly)
    before = study.seconds
    study.look(model, model)
    assert study.seconds - before < 0.25


def test_two_networks_count_as_their_mean() -> None:
    study, _ = new_study()

    class Always(nn.Module):
        def __init__(self, label: int) -> None:
            super().__init__()
            self.label = label

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(torch.full((len(x),), self.label), 4).float()

    study.look(Always(0), Always(1))
    shares = np.bincount(study.test.labels, minlength=4) / 300
    assert study.epochs[0].accuracy == pytest.approx((shares[0] + shares[1]) / 2)
    assert study.epochs[0].recall == [0.5, 0.5, 0, 0]


def test_choosing_methods() -> None:
    assert choose("all") == list(METHODS)
    assert choose("ours") == [
        "curriculum",
        "curriculum-robust",
        "curriculum-twice",
        "curriculum-twice-robust",
        "curriculum-twice-sce",
        "curriculum-targets",
        "curriculum-apart",
    ]
    assert "oracle" not in choose("rivals")
    assert choose("sce,plain") == ["plain", "sce"]
    with pytest.raises(SettingError, match="no method magic"):
        choose("magic")
    with pytest.raises(SettingError, match="empty"):
        choose(" ,")
    assert in_order(["zebra", "plain", "curriculum"]) == ["curriculum", "plain", "zebra"]
    assert title_of("sce") == "SCE loss"
    assert title_of("zebra") == "zebra"
