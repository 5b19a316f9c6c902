"""A monitor whose groups are single queries knows which training examples each of them lives on."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.monitored import Pairs, by_groups, leverage
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.study import make_study
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")


def test_copies_of_a_query_help_it_and_hurt_it_under_another_label():
    training = training_for("digits", limit=400, epochs=8, batch_size=32)
    study = make_study(
        load("digits", limit=400), load("digits", train=False), training, 0.0, 20, torch.device("cpu"), seed=0
    )
    problem, asked = study.problem, study.queries
    same, other = np.arange(20), np.arange(20, 40)
    problem.images, problem.labels = problem.images.clone(), problem.labels.copy()
    for rows, shift in ((same, 0), (other, 1)):
        problem.images[torch.from_numpy(rows)] = asked.images
        problem.labels[rows] = (asked.labels + shift) % 10
    answer = by_groups(train_once(study))
    assert answer.scores.shape == (20, 400)
    places = answer.scores.argsort(1).argsort(1)
    assert np.median(places[np.arange(20), same]) >= 396
    assert np.median(places[np.arange(20), other]) <= 3
    assert answer.error.shape == answer.confidence.shape == (20,)
    assert np.isfinite(answer.error).all()
    assert answer.error.min() > 0


def test_passes_count_alike_whatever_their_size_and_the_first_does_not():
    watched = SimpleNamespace(group_names=["q"], device=torch.device("cpu"), observers=[])
    pairs = Pairs(watched, 3)
    (observe,) = watched.observers

    def step(index: list[int], harm: list[float]) -> None:
        observe(None, SimpleNamespace(index=torch.tensor(index), groups=torch.tensor(harm)[:, None]))

    step([0, 1], [9.0, 9.0])
    step([2], [9.0])
    for size in (1.0, 1000.0):
        step([2, 0], [-3 * size, 0.0])
        step([1], [4 * size])
    np.testing.assert_allclose(pairs.scores(), [[0.0, -1.6, 1.2]], rtol=1e-6)
    assert pairs.passes == 3
    np.testing.assert_allclose(pairs.lengths, [np.log(5) + np.log(5000)], rtol=1e-6)


def test_leverages_are_those_of_the_groups_not_of_the_places_in_the_bank():
    gradient = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    bank = SimpleNamespace(phi=torch.tensor([[1.0, 7.0], [7.0, 4.0]]), member_groups=torch.tensor([1, 0]))
    np.testing.assert_allclose(leverage(bank, gradient), [2.0, 3**0.5], rtol=1e-6)
