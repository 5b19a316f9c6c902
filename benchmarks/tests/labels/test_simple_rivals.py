"""Signals of a training run, neighbours and confident learning: against hand-made sequences, loops and cleanlab."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from problems import striped
from torch import Tensor, nn

from sgoif.errors import MissingExtraError
from sgoif_bench.batches import Batches
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals import confident_learning as confident_module
from sgoif_bench.labels.rivals.confident_learning import confident_learning, folds, out_of_sample
from sgoif_bench.labels.rivals.data_maps import DataMap, data_maps
from sgoif_bench.labels.rivals.forgetting import ForgettingCounter, forgetting
from sgoif_bench.labels.rivals.knn import TEMPERATURE, knn, neighbour_count, neighbour_votes
from sgoif_bench.labels.rivals.watched import (
    TrainingWatch,
    above_threshold,
    aum,
    aum_threshold,
    mean_loss,
    probability_margin,
    threshold_samples,
    watched,
)
from sgoif_bench.metrics import auroc

Method = Callable[[Problem, Callable[[str], None]], Outcome]
METHODS: tuple[tuple[Method, float], ...] = (
    (mean_loss, 1.0),
    (aum, 1.0),
    (probability_margin, 1.0),
    (forgetting, 1.0),
    (data_maps, 1.0),
    (knn, 1.0),
    (aum_threshold, 2.0),
    (confident_learning, 3.0),
)


def silent(_: str) -> None:
    pass


@dataclass
class Recorded(Problem):
    """A problem that remembers on what it was trained and what was predicted."""

    trained: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    predicted: list[NDArray[np.int64]] = field(default_factory=list)

    def batches(self, rows: Any = None, labels: Any = None, number: int = 0) -> Batches:
        made = super().batches(rows, labels, number)
        self.trained.append((made.index.numpy(), made.labels.numpy()))
        return made

    def predict(self, model: nn.Module, rows: Any = None) -> Tensor:
        self.predicted.append(self.rows() if rows is None else rows)
        return super().predict(model, rows)


def recorded(**settings: Any) -> tuple[Recorded, NDArray[np.bool_]]:
    plain, wrong = striped(**settings)
    return Recorded(plain.images, plain.labels, plain.classes, plain.recipe, plain.device, plain.seed), wrong


@pytest.fixture(scope="module")
def noisy() -> tuple[Recorded, NDArray[np.bool_]]:
    return recorded()


@pytest.fixture(scope="module")
def seen(noisy: tuple[Recorded, NDArray[np.bool_]]) -> dict[str, Outcome]:
    """All signals of one training."""
    return watched(noisy[0], silent)


def show(watch: Any, right: list[list[int]]) -> None:
    """Let a watch see two classes, example i being right in pass t where right[t][i] is 1; label 0 for all."""
    for row in right:
        logits = torch.tensor([[1.0, 0.0] if each else [0.0, 1.0] for each in row])
        order = torch.randperm(len(row))
        watch.update(logits[order], torch.zeros(len(row), dtype=torch.long), order)


# Forgetting and data maps --------------------------------------------------------------------------------------------


def test_forgetting_events_of_a_hand_made_sequence() -> None:
    counter = ForgettingCounter(6)
    show(counter, [[1, 0, 1, 0, 1], [0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 1]])
    outcome = counter.outcome()
    assert outcome.suspicion.tolist() == [2, 4, 0, 1, 1, -np.inf]
    assert outcome.details == {"never_learnt": 1, "never_forgotten": 1}


def test_data_map_of_a_hand_made_sequence() -> None:
    passes = np.array([[0.9, 0.2, 0.5], [0.7, 0.4, 0.5], [0.8, 0.9, 0.5]])
    watch = DataMap(4)
    for p in passes:
        logits = torch.from_numpy(np.stack([np.log(1 - p), np.log(p)], axis=1)).float()
        watch.update(logits, torch.ones(3, dtype=torch.long), torch.tensor([0, 1, 2]))
    outcome = watch.outcome()
    assert outcome.suspicion[:3] == pytest.approx(1 - passes.mean(0), abs=1e-6)
    assert outcome.suspicion[3] == -np.inf
    assert watch.variability().numpy() == pytest.approx([*passes.std(0), 0.0], abs=1e-6)
    assert outcome.details["variability_mean"] == pytest.approx(passes.std(0).mean(), abs=1e-6)
    assert outcome.details["variability_quartiles"][1] == pytest.approx(np.median(passes.std(0)), abs=1e-6)


# The watch of one training -------------------------------------------------------------------------------------------


def test_watch_of_a_hand_made_sequence() -> None:
    passes = [torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]]), torch.tensor([[1.0, 4.0, 0.0], [0.0, 2.5, 2.0]])]
    watch = TrainingWatch(3)
    for logits in passes:
        watch.update(logits, torch.tensor([0, 1]), torch.tensor([0, 1]))
    outcomes = watch.outcomes()
    p = torch.stack(passes).double().softmax(2).numpy()
    assert outcomes["aum"].suspicion[:2] == pytest.approx([-(2 - 3) / 2, -(-3 + 0.5) / 2])
    assert outcomes["mean_loss"].suspicion[:2] == pytest.approx(
        [-np.log(p[:, 0, 0]).mean(), -np.log(p[:, 1, 1]).mean()], abs=1e-6
    )
    others = [p[0, 0, 1] + p[1, 0, 1], p[0, 1, 2] + p[1, 1, 2]]
    own = [p[:, 0, 0].sum(), p[:, 1, 1].sum()]
    assert outcomes["probability_margin"].suspicion[:2] == pytest.approx(
        [(others[0] - own[0]) / 2, (others[1] - own[1]) / 2], abs=1e-6
    )
    assert outcomes["forgetting"].suspicion[:2].tolist() == [1, 0]
    assert outcomes["data_maps"].suspicion[:2] == pytest.approx([1 - own[0] / 2, 1 - own[1] / 2], abs=1e-6)
    assert all(outcome.suspicion[2] == -np.inf for outcome in outcomes.values())


@pytest.mark.parametrize("method", [forgetting, data_maps, mean_loss, aum, probability_margin])
def test_one_training_says_what_the_single_methods_say(method: Method) -> None:
    problem, _ = recorded(size=80, epochs=2, anchors=20)
    together = watched(problem, silent)
    assert len(problem.trained) == 1
    assert np.array_equal(together[method.__name__].suspicion, method(problem, silent).suspicion)


@pytest.mark.parametrize("name", ["mean_loss", "aum", "probability_margin", "forgetting", "data_maps"])
def test_signals_of_training_find_wrong_labels(
    name: str, noisy: tuple[Recorded, NDArray[np.bool_]], seen: dict[str, Outcome]
) -> None:
    assert auroc(noisy[1], seen[name].suspicion) > 0.9


# AUM's threshold -----------------------------------------------------------------------------------------------------


def test_examples_are_held_against_the_99th_percentile_of_the_threshold_samples() -> None:
    area = np.concatenate([np.arange(101.0), [98.0, 99.0, 99.5]])
    excess, threshold = above_threshold(area, np.arange(101))
    assert threshold == 99.0
    assert excess[101:].tolist() == [1.0, 0.0, -0.5]
    assert np.isnan(excess[:101]).all()


def test_threshold_samples_get_an_extra_class_and_are_judged_by_the_other_run() -> None:
    problem, _ = recorded(size=100, epochs=2, anchors=20)
    samples = threshold_samples(problem)
    assert [len(rows) for rows in samples] == [20, 20]
    assert len(np.union1d(*samples)) == 40
    outcome = aum_threshold(problem, silent)
    assert len(problem.trained) == 2
    for rows, (index, labels) in zip(samples, problem.trained, strict=True):
        expected = problem.labels.copy()
        expected[rows] = 4
        assert np.array_equal(labels, expected[index])
    assert np.isfinite(outcome.suspicion).all()


def test_the_threshold_of_aum_flags_wrong_labels(noisy: tuple[Recorded, NDArray[np.bool_]]) -> None:
    problem, wrong = noisy
    outcome = aum_threshold(problem, silent)
    assert auroc(wrong, outcome.suspicion) > 0.9
    assert wrong[outcome.flagged].mean() > 0.8
    assert outcome.flagged[wrong].mean() > 0.8
    assert np.array_equal(outcome.flagged, outcome.suspicion >= 0)
    assert len(outcome.details["thresholds"]) == 2


# Neighbours ----------------------------------------------------------------------------------------------------------


def test_votes_of_neighbours_equal_a_loop() -> None:
    features, labels = torch.randn(30, 4).double(), torch.randint(3, (30,))
    votes = neighbour_votes(features, labels, 3, 5).numpy()
    unit = (features / features.norm(dim=1, keepdim=True)).numpy()
    for i in range(30):
        others = sorted((j for j in range(30) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:5]
        expected = np.zeros(3)
        for j in others:
            expected[labels[j]] += np.exp(unit[i] @ unit[j] / TEMPERATURE)
        assert np.allclose(votes[i] / votes[i].sum(), expected / expected.sum())


def test_disagreeing_neighbours_mark_wrong_labels(noisy: tuple[Recorded, NDArray[np.bool_]]) -> None:
    problem, wrong = noisy
    outcome = knn(problem, silent)
    model = problem.fit(problem.new_model(), problem.batches())
    count = neighbour_count(600, 4)
    votes = neighbour_votes(problem.features(model), torch.from_numpy(problem.labels), 4, count).numpy()
    share = votes / votes.sum(1, keepdims=True)
    assert count == outcome.details["neighbours"] == 75
    assert np.allclose(outcome.suspicion, 1 - share[np.arange(600), problem.labels], atol=1e-6)
    assert np.array_equal(outcome.flagged, share.argmax(1) != problem.labels)
    assert auroc(wrong, outcome.suspicion) > 0.9


def test_the_number_of_neighbours_stays_below_a_class() -> None:
    assert neighbour_count(50_000, 10) == 200
    assert neighbour_count(1000, 10) == 50
    assert neighbour_count(3, 2) == 1


# Confident learning --------------------------------------------------------------------------------------------------


def test_no_fold_is_predicted_by_a_network_that_saw_it() -> None:
    problem, _ = recorded(size=102, epochs=1, anchors=20)
    probabilities = out_of_sample(problem, silent)
    assert len(problem.trained) == len(problem.predicted) == 4
    for (index, _), held_out in zip(problem.trained, problem.predicted, strict=True):
        assert not np.intersect1d(index, held_out).size
        assert len(index) + len(held_out) == 102
    assert sorted(np.concatenate(problem.predicted).tolist()) == list(range(102))
    rest, held_out = np.setdiff1d(problem.rows(), problem.predicted[2]), problem.predicted[2]
    by_hand = problem.fit(problem.new_model(2), problem.batches(rest, number=2))
    assert np.allclose(probabilities[held_out], F.softmax(problem.predict(by_hand, held_out), 1), atol=1e-6)


def test_folds_share_every_given_label_out_evenly(noisy: tuple[Recorded, NDArray[np.bool_]]) -> None:
    problem, _ = noisy
    fold_of = folds(problem)
    for label in range(4):
        assert np.ptp(np.bincount(fold_of[problem.labels == label], minlength=4)) <= 1


def test_confident_learning_is_what_cleanlab_says(
    noisy: tuple[Recorded, NDArray[np.bool_]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleanlab_filter = pytest.importorskip("cleanlab.filter")
    rank = pytest.importorskip("cleanlab.rank")
    problem, wrong = noisy
    probabilities = out_of_sample(problem, silent)
    monkeypatch.setattr(confident_module, "out_of_sample", lambda *_: probabilities)
    outcome = confident_learning(problem, silent)
    assert np.array_equal(outcome.flagged, cleanlab_filter.find_label_issues(problem.labels, probabilities, n_jobs=1))
    margin = rank.get_normalized_margin_for_each_label(problem.labels, probabilities)
    assert np.allclose(outcome.suspicion, 1 - margin)
    assert auroc(wrong, outcome.suspicion) > 0.9
    assert wrong[outcome.flagged].mean() > 0.8
    assert outcome.flagged[wrong].mean() > 0.8


def test_without_cleanlab_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    problem, _ = recorded(size=40, epochs=1, anchors=8)
    with pytest.raises(MissingExtraError, match=r"pip install 'sgoif\[datalab\]'"):
        confident_module.confident_learning(problem, silent)
    assert not problem.trained, "the error must come before the work"


# All of them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "trainings"), METHODS)
def test_outcomes_are_complete_and_repeat(method: Method, trainings: float) -> None:
    if method is confident_learning:
        pytest.importorskip("cleanlab")
    problem, _ = recorded(size=100, epochs=2, anchors=20)
    before, told = problem.labels.copy(), []
    first = method(problem, told.append)
    runs, shown = len(problem.trained), sum(len(index) for index, _ in problem.trained)
    second = method(problem, silent)
    assert first.suspicion.shape == (100,)
    assert first.suspicion.dtype == np.float64
    assert np.isfinite(first.suspicion).all()
    assert np.ptp(first.suspicion) > 0
    assert np.array_equal(first.suspicion, second.suspicion)
    assert (first.flagged is None) == (method not in (knn, aum_threshold, confident_learning))
    if first.flagged is not None:
        assert np.array_equal(first.flagged, second.flagged)
    assert np.array_equal(problem.labels, before)
    assert first.trainings == trainings == shown / 100
    assert sum("epoch" in line for line in told) == 2 * runs
