"""Every method ranks planted errors far above chance, and what it says of a few examples is what the formula says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pretrained_cases import CLASSES, EXAMPLES, pictures, planted
from torch import nn

from sgoif.audit.batches import stream
from sgoif.tasks.crossfit.head import HIDDEN
from sgoif_bench.metrics import average_precision
from sgoif_bench.pretrained.methods import head, neighbours
from sgoif_bench.pretrained.pictures import Neighbours
from sgoif_bench.pretrained.pictures import neighbours as nearest
from sgoif_bench.pretrained.registry import METHODS, by_family, choose, solver
from sgoif_bench.pretrained.task import Task

CHANCE = 0.15
FAMILIES = by_family(METHODS)


def test_neighbours_are_the_nearest_others_by_angle() -> None:
    features = torch.tensor([[1.0, 0.0], [5.0, 0.1], [0.0, 3.0], [1.0, 0.9]])
    found = nearest(features, 2)
    assert found.rows.tolist() == [[1, 3], [0, 3], [3, 1], [1, 0]]
    assert found.similarity[3, 1] == pytest.approx(1 / 1.81**0.5)
    among = nearest(features, 2, torch.tensor([0, 2, 3]))
    assert among.rows.tolist() == [[3, 2], [0, 3], [3, 0], [0, 2]]


def test_the_vote_is_the_share_of_others_and_similarity_breaks_ties() -> None:
    given = torch.tensor([0, 0, 1, 1])
    near = Neighbours(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1, 2], [1, 2]]))
    both = Neighbours(near.similarity.repeat(2, 1), near.rows.repeat(2, 1))
    first, second, *_ = neighbours.disagreement(both, given).tolist()
    # Weights (1 + s) / 2 are 1 and 1/2; one of two neighbours has another label.
    assert first == pytest.approx(0.5 + (0.5 / 1.5) / 3)
    assert second == pytest.approx(0.5 + (1.0 / 1.5) / 3)


def test_an_example_votes_in_simifeat_but_not_with_all_of_its_similarity() -> None:
    given = torch.tensor([0, 1, 1])
    near = Neighbours(torch.tensor([[0.8, 0.6]] * 3), torch.tensor([[1, 2], [0, 2], [0, 1]]))
    wrong, share, rank = neighbours.votes_against(near, given, 2)
    # Its own similarity is 2 · 0.8 − 0.6 = 1: votes (1, 1.4), (0.8, 1.6), (0.8, 1.6).
    assert wrong.tolist() == [1, 0, 0]
    assert share.tolist() == pytest.approx([1.4 / 2.4, 0.8 / 2.4, 0.8 / 2.4])
    expected = -np.log([1 / np.hypot(1, 1.4), 1.6 / np.hypot(0.8, 1.6), 1.6 / np.hypot(0.8, 1.6)])
    assert rank.tolist() == pytest.approx(expected, abs=1e-6)


def test_simifeat_is_the_mean_over_its_epochs(tmp_path: Path) -> None:
    task, _ = planted(tmp_path)
    rows = torch.arange(EXAMPLES)
    given = task.given
    alike = torch.stack([(given == label).nonzero().ravel()[:2] for label in range(CLASSES)])
    agreeing = Neighbours(torch.full((EXAMPLES, 2), 0.5), alike[given])
    other = Neighbours(torch.full((EXAMPLES, 2), 0.5), alike[(given + 1) % CLASSES])
    vars(task.pictures)["epochs"] = ([agreeing, other, other], 2.0)
    found = neighbours.simifeat(task)
    # Two epochs of three vote for another class, with two thirds of the votes; ties are broken by 4/9 of 1/4.
    assert np.allclose(found["simifeat-vote"].suspicion, 2 / 3 + 4 / 9 / 4)
    assert np.allclose(found["simifeat-rank"].suspicion, 2 / 3 * np.log(np.sqrt(5)), atol=1e-6)
    assert found["simifeat-vote"].seconds > 2
    assert len(rows) == len(found["simifeat-rank"].suspicion)


def test_the_margin_of_a_head_is_taken_as_the_step_saw_it() -> None:
    torch.manual_seed(5)
    inputs, given, seed = torch.randn(16, 6), torch.arange(16) % 3, 7
    early, found = head.watched(inputs, given, 3, epochs=1, peak=0.1, seed=seed)
    assert all(np.array_equal(early[name], found[name]) for name in found)
    torch.manual_seed(stream(seed, head.HEAD, 0))
    model = nn.Sequential(nn.Linear(6, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))
    random = torch.Generator().manual_seed(stream(seed, head.HEAD, 1))
    order = torch.randperm(16, generator=random)
    with torch.no_grad():
        logits = model(inputs[order] + head.NOISE * torch.randn((16, 6), generator=random))
    for row, values in zip(order.tolist(), logits, strict=True):
        others = [values[label] for label in range(3) if label != given[row]]
        assert found["margin"][row] == pytest.approx(float(max(others) - values[given[row]]), abs=1e-5)
        assert found["loss"][row] == pytest.approx(float(-values.log_softmax(0)[given[row]]), abs=1e-5)


def test_what_is_early_ends_where_the_learning_rate_begins_to_fall() -> None:
    torch.manual_seed(5)
    inputs, given = torch.randn(16, 6), torch.arange(16) % 3
    early, whole = head.watched(inputs, given, 3, epochs=10, peak=1e-12, seed=7)  # nothing is learned
    assert not np.allclose(early["loss"], whole["loss"])  # two looks and ten, each with its own noise
    _, first = head.watched(inputs, given, 3, epochs=2, peak=1e-12, seed=7)
    assert np.allclose(early["loss"], first["loss"], atol=1e-6)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.long] if name == "crossfit:sgoif" else []) for name in FAMILIES]
)
def test_planted_errors_come_first_and_the_seed_decides(family: str, tmp_path: Path) -> None:
    if family.startswith("logistic"):
        pytest.importorskip("sklearn")
    if "cleanlab" in "".join(FAMILIES[family]):
        pytest.importorskip("cleanlab")
    task, noise = planted(tmp_path / "first")
    found = solver(family)(task)
    assert set(found) == set(FAMILIES[family])
    again = solver(family)(planted(tmp_path / "second")[0])
    for name, outcome in found.items():
        assert outcome.suspicion.shape == (EXAMPLES,)
        assert average_precision(noise.is_wrong, outcome.suspicion) > 4 * CHANCE, name
        assert np.array_equal(outcome.suspicion, again[name].suspicion), name
        assert outcome.seconds > 0


def test_epochs_of_simifeat_differ_and_are_those_of_every_seed(tmp_path: Path) -> None:
    for views in ("images", "features"):
        first, second = (pictures(tmp_path, views=views, simifeat_epochs=2).epochs[0] for _ in range(2))
        assert not torch.equal(first[0].rows, first[1].rows)
        assert torch.equal(first[1].rows, second[1].rows)
        assert first[0].rows.shape == (EXAMPLES, 9)  # and the example itself


def test_folds_are_even_in_every_class_and_follow_from_the_seed(tmp_path: Path) -> None:
    task, _ = planted(tmp_path)
    fold = task.folds()
    for label in range(CLASSES):
        counts = np.bincount(fold[task.labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.array_equal(fold, task.folds())
    other = Task(task.pictures, task.labels, 1, task.noise, task.tell)
    assert not np.array_equal(fold, other.folds())


def test_groups_of_methods() -> None:
    assert choose("all") == list(METHODS)
    assert set(choose("frozen")) | set(choose("finetuned")) == set(METHODS)
    assert set(choose("ours")) | set(choose("rivals")) == set(METHODS)
    assert not set(choose("frozen")) & set(choose("finetuned"))
