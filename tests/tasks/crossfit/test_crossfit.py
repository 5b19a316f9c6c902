"""Wrong labels by features: folds, heads, neighbours, and what they say together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from sgoif.errors import SettingError, SgoifError, StateError
from sgoif.features.reduced import neighbours_votes
from sgoif.tasks.crossfit import CrossFit
from sgoif.tasks.crossfit.crossfit import FOLDS, folds_of
from sgoif.tasks.crossfit.head import BATCH, EPOCHS, HARMED, MOST_BATCHES, Head, batch_size
from sgoif.tasks.neighbours import votes_margin

COUNT, CLASSES, NAMES = 240, 3, ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def problem() -> tuple[Any, Any, Any]:
    """Features in which classes overlap, labels of which a tenth is wrong, and which are."""
    random = np.random.default_rng(0)
    right = random.integers(0, CLASSES, COUNT)
    features = random.normal(size=(COUNT, 12)) + 2.5 * np.eye(CLASSES, 12)[right]
    wrong = np.arange(COUNT) % 10 == 0
    return features, np.where(wrong, (right + 1 + random.integers(0, 2, COUNT)) % CLASSES, right), wrong


@pytest.fixture(scope="module")
def trained(problem: tuple[Any, Any, Any]) -> CrossFit:
    found = CrossFit(*problem[:2], NAMES)
    found.findings()
    return found


def quality(found: CrossFit, wrong: Any) -> float:
    return float(average_precision_score(wrong, found.findings().table()["probability_wrong"]))


def test_wrong_labels_come_first_and_every_example_has_a_row(trained: CrossFit, problem: Any) -> None:
    table = trained.findings().table()
    assert table["index"].tolist() == list(range(COUNT))
    assert table["given_label"].tolist() == problem[1].tolist()
    assert quality(trained, problem[2]) > 0.85
    assert (table["n_observations"] == (FOLDS - 1) * EPOCHS).all()
    assert (table["interval_low"] <= table["influence"]).all()
    assert (table["influence"] <= table["interval_high"]).all()
    worst = table.take(np.argsort(-table["probability_wrong"]))
    assert (worst["predicted_label"][:10] != worst["given_label"][:10]).all()


def test_every_example_is_held_out_by_one_head_and_trained_on_by_the_others(trained: CrossFit) -> None:
    held = np.concatenate([head.held_out.index for head in trained.heads.values()])
    assert sorted(held.tolist()) == list(range(COUNT))
    for fold, head in trained.heads.items():
        assert set(head.held_out.index.tolist()) == set(np.flatnonzero(trained.fold == fold).tolist())
        assert not set(head.held_out.index.tolist()) & set(head.training.index.tolist())
        assert len(head.held_out) + len(head.training) == COUNT


def test_what_is_kept_of_a_head_gives_the_same_findings(trained: CrossFit, problem: Any) -> None:
    again = CrossFit(*problem[:2], NAMES)
    for fold, head in trained.heads.items():
        again.heads[fold] = Head.from_state(head.state_dict())
    one, other = trained.findings().table(), again.findings().table()
    for name in one.columns:
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(trained.harmed(np.arange(9)), again.harmed(np.arange(9)))
    state = trained.heads[0].state_dict()
    del state["held_out.margin"]
    with pytest.raises(StateError, match=r"not complete.*held_out\.margin"):
        Head.from_state(state)


def test_the_same_seed_gives_the_same_heads_and_the_callers_randomness_is_untouched(problem: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    one, other, another = (CrossFit(*problem[:2], NAMES, seed=seed).train(0) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(one.training.margin, other.training.margin)
    assert not np.array_equal(one.held_out.index, another.held_out.index)


def test_harmed_examples_are_never_trained_on_with_the_one_that_hurts_them(trained: CrossFit) -> None:
    harmed = trained.harmed(np.arange(COUNT))
    assert harmed.shape == (COUNT, HARMED)
    assert (harmed >= 0).all()
    assert (trained.fold[harmed] != trained.fold[:, None]).all()


def test_the_agreement_is_out_of_sample(trained: CrossFit, problem: Any) -> None:
    assert 0.7 < trained.agreement(np.arange(COUNT)) < 0.95
    assert trained.agreement(np.flatnonzero(problem[2])) < 0.3


def test_copies_share_a_fold_and_have_no_vote_on_each_other(problem: Any) -> None:
    features, labels, _ = problem
    twice, names = np.concatenate([features, features]), np.concatenate([labels, labels])
    copies = [(row, row + COUNT) for row in range(COUNT)]
    found = CrossFit(twice, names, NAMES, copies=copies)
    assert (found.fold[:COUNT] == found.fold[COUNT:]).all()
    votes = neighbours_votes(found.features, found.labels, CLASSES, torch.from_numpy(found.group), 2)
    alone = CrossFit(features, labels, NAMES)
    once = neighbours_votes(alone.features, alone.labels, CLASSES, torch.arange(COUNT), 1)
    torch.testing.assert_close(votes[:COUNT], once)


def test_classes_of_one_or_two_are_trained_on_by_all_heads() -> None:
    labels = np.array([0] * 30 + [1] * 30 + [2] * 2)
    fold = folds_of(labels, np.arange(62), 0)
    assert (fold[60:] == -1).all()
    for label in (0, 1):
        assert np.ptp(np.bincount(fold[labels == label])) <= 1
    random = np.random.default_rng(0)
    found = CrossFit(random.normal(size=(62, 5)) + 3 * np.eye(3, 5)[labels], labels, NAMES)
    table = found.findings().table()
    assert len(table) == 62
    assert np.isfinite(table["probability_wrong"]).all()
    assert found.held.tolist() == list(range(60))
    assert table["n_observations"][61] == FOLDS * EPOCHS


def test_votes_are_those_of_the_nearest_others() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    votes = neighbours_votes(features, labels, 2, torch.arange(5), 2)
    torch.testing.assert_close(votes, torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(votes_margin(votes, labels), [0, 0, -1, 1, 1])


def test_neighbours_count_for_nothing_where_they_know_nothing(problem: Any) -> None:
    """Lengths tell the classes apart, which heads see and angles do not."""
    random = np.random.default_rng(1)
    right = random.integers(0, 2, COUNT)
    angle = random.uniform(0, 2 * np.pi, COUNT)
    features = (1 + 3 * right)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.2 * random.normal(
        size=(COUNT, 2)
    )
    wrong = problem[2]
    found = CrossFit(features, np.where(wrong, 1 - right, right), NAMES[:2])
    assert quality(found, wrong) > 0.8


def test_examples_that_are_no_anchors_are_judged_out_of_sample_too(
    monkeypatch: pytest.MonkeyPatch, problem: Any
) -> None:
    from sgoif.tasks.crossfit import head

    class Smaller(head.InfluenceMonitor):  # type: ignore[misc, name-defined]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, max_anchors=9, **options)

    monkeypatch.setattr(head, "InfluenceMonitor", Smaller)
    crossfit = CrossFit(*problem[:2], NAMES)
    found = crossfit.train(0)
    assert found.held_out.index.tolist() == np.flatnonzero(crossfit.fold == 0).tolist()
    wrong = problem[2][found.held_out.index]
    assert average_precision_score(wrong, -found.held_out.margin) > 0.6


def test_batches_grow_with_the_data() -> None:
    assert batch_size(100) == 16
    assert batch_size(10_000) == BATCH
    assert -(-1_000_000 // batch_size(1_000_000)) <= MOST_BATCHES


@pytest.mark.parametrize(
    ("features", "labels", "sentence"),
    [
        (np.zeros((4, 3)), np.zeros(5), "do not fit 5 labels"),
        (np.zeros(4), np.zeros(4), "do not fit 4 labels"),
        (np.full((40, 3), np.nan), np.arange(40) % 3, "not all finite"),
        (np.zeros((40, 3)), np.arange(40) % 4, "between 0 and 2"),
    ],
)
def test_what_does_not_fit_is_refused(features: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        CrossFit(features, labels, NAMES)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(SgoifError, match="too few to be held out in 4 parts"):
        CrossFit(np.eye(5), np.array([0, 0, 1, 1, 2]), NAMES)
