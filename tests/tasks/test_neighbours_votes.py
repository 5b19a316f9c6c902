"""What neighbours say of labels: one kind of features or several, by row or by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif.tasks.deviations import standard
from sgoif.tasks.neighbours import against, against_by_index, votes_margin

CLASSES, COUNT = 3, 240


@pytest.fixture(scope="module")
def labels() -> NDArray[np.int64]:
    given = np.arange(COUNT) % CLASSES
    given[:6] = (given[:6] + 1) % CLASSES
    return given


def cloud(seed: int, apart: float = 6.0) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    return random.normal(size=(COUNT, 8)) + apart * np.eye(CLASSES, 8)[np.arange(COUNT) % CLASSES]


def test_the_margin_is_that_of_the_given_label_over_the_best_other() -> None:
    votes = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    assert votes_margin(votes, torch.tensor([1, 2])).tolist() == pytest.approx([0.2, -1.0])


def test_neighbours_speak_against_wrong_labels_by_index(labels: NDArray[np.int64]) -> None:
    index = np.random.default_rng(0).permutation(COUNT) + 10  # the first ten are not known, and the order is any
    features = np.concatenate([np.zeros((10, 8)), cloud(1)])
    found = against_by_index([features], index, labels[index - 10], CLASSES, 0.9)
    assert len(found) == COUNT + 10
    assert set(np.argsort(-found)[:6].tolist()) == set(range(10, 16))
    assert (found[:10] == 0).all()


def test_several_kinds_of_features_vote_together(labels: NDArray[np.int64]) -> None:
    kinds, given = [torch.from_numpy(cloud(seed)).float() for seed in (1, 2)], torch.from_numpy(labels)
    both = against(kinds, given, CLASSES, 0.95)
    apart = [against([kind], given, CLASSES, 0.95) for kind in kinds]
    assert np.corrcoef(both, standard(apart[0]) + standard(apart[1]))[0, 1] > 0.99


def test_neighbours_count_for_less_where_the_network_knows_more(labels: NDArray[np.int64]) -> None:
    kind, given = [torch.from_numpy(cloud(1, apart=1.5)).float()], torch.from_numpy(labels)
    less, more = (against(kind, given, CLASSES, agreement).std() for agreement in (0.95, 0.6))
    assert 0 < less < more
    noise = [torch.from_numpy(np.random.default_rng(3).normal(size=(COUNT, 8))).float()]
    assert against(noise, given, CLASSES, 0.95).std() < 0.25


def test_features_of_another_length_are_refused(labels: NDArray[np.int64]) -> None:
    with pytest.raises(SettingError, match=r"\(100, 8\) do not fit examples up to number 239"):
        against_by_index([np.zeros((100, 8))], np.arange(COUNT), labels, CLASSES, 0.9)
