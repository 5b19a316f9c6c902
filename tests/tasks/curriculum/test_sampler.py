"""`CurriculumSampler`: how often examples come up, where they stand, and that it can be repeated."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curriculum_cases import BATCH, Blobs, Run, blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from sgoif import indexed
from sgoif.errors import SettingError
from sgoif.tasks import Curriculum, CurriculumSampler
from sgoif.tasks.curriculum.sampler import LEAST_SHARE, copy_counts, spread_copies


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs()


def weighed(noisy: Blobs, weights: np.ndarray[Any, Any], **options: Any) -> CurriculumSampler:
    """A sampler whose curriculum has these weights for the training set."""
    curriculum = Curriculum(Run(noisy).monitor)
    values = np.ones(len(noisy.x), dtype=np.float32)
    values[noisy.rows] = weights
    curriculum.load_state_dict({**curriculum.state_dict(), "weights": torch.from_numpy(values)})
    return CurriculumSampler(curriculum, noisy.training, **{"batch_size": BATCH, **options})


@given(seed=st.integers(0, 2**31), count=st.integers(2, 200))
@settings(max_examples=50, deadline=None)
def test_copies_are_weights_rounded_up_or_down(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.gamma(0.7, size=count) + 0.01
    weights /= weights.mean()
    found = copy_counts(weights, generator)
    assert found.sum() == count
    assert (found >= np.floor(weights - 1e-9)).all()
    assert (found <= np.ceil(weights + 1e-9)).all()


def test_copies_have_the_weight_as_their_mean() -> None:
    weights = np.array([0.05, 0.3, 1.0, 1.65, 2.0])
    total = sum(copy_counts(weights, np.random.default_rng(n)) for n in range(4000)) / 4000
    np.testing.assert_allclose(total, weights / weights.mean(), atol=0.03)


@given(seed=st.integers(0, 2**31), batch_size=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_no_batch_has_an_example_twice(seed: int, batch_size: int) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 4, 60)
    counts[0] = 4
    order = spread_copies(counts, batch_size, generator)
    assert len(order) == counts.sum()
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        assert len(set(batch.tolist())) == len(batch)


def test_copies_stay_what_they_were_where_there_is_room() -> None:
    counts = np.array([3, 1, 0, 2, 1, 1, 2, 0, 3, 1] * 20)
    order = spread_copies(counts, 16, np.random.default_rng(0))
    assert np.array_equal(np.bincount(order, minlength=len(counts)), counts)


def test_an_epoch_draws_by_weight(noisy: Blobs) -> None:
    wrong = noisy.wrong[noisy.rows]
    weights = np.where(wrong, 0.05, 1.0)
    sampler = weighed(noisy, weights / weights.mean())
    drawn = Counter(position for _ in range(20) for position in sampler)
    counts = np.array([drawn[position] for position in range(len(wrong))]) / 20
    np.testing.assert_allclose(counts[wrong].mean(), 0.05 / weights.mean(), atol=0.03)
    np.testing.assert_allclose(counts[~wrong].mean(), 1 / weights.mean(), atol=0.03)
    assert len(list(sampler)) == len(sampler) == len(wrong)


def test_what_weighs_next_to_nothing_still_comes_up_now_and_then(noisy: Blobs) -> None:
    """An example that is never drawn would never be scored again."""
    wrong = noisy.wrong[noisy.rows]
    sampler = weighed(noisy, np.where(wrong, 1e-3, 1.0))
    came = [position for _ in range(60) for position in sampler if wrong[position]]
    assert len(came) / 60 == pytest.approx(LEAST_SHARE * wrong.sum() / (1 - (1 - LEAST_SHARE) * wrong.mean()), rel=0.15)
    assert len(set(came)) > 0.9 * wrong.sum()


def test_leaving_out_the_worst(noisy: Blobs) -> None:
    wrong = noisy.wrong[noisy.rows]
    sampler = weighed(noisy, np.where(wrong, 0.1, 1.0), way="leave-out")
    guests = math.ceil(LEAST_SHARE * wrong.sum())
    assert len(sampler) == (~wrong).sum() + guests
    epochs = [list(sampler) for _ in range(30)]
    assert all(len(set(epoch)) == len(epoch) == len(sampler) for epoch in epochs)
    assert all(set(np.flatnonzero(~wrong)) <= set(epoch) for epoch in epochs)
    came = {position for epoch in epochs for position in epoch if wrong[position]}
    assert len(came) > 3 * guests  # others in every epoch


@pytest.mark.parametrize("way", ["draw", "leave-out"])
def test_epochs_can_be_repeated(noisy: Blobs, way: Any) -> None:
    weights = np.random.default_rng(1).random(len(noisy.rows)) + 0.2
    first = [list(weighed(noisy, weights, way=way, seed=3)) for _ in range(2)]
    assert first[0] == first[1]
    sampler = weighed(noisy, weights, way=way, seed=3)
    counted = [list(sampler) for _ in range(3)]
    assert counted[0] == first[0]
    assert counted[0] != counted[1]
    again = weighed(noisy, weights, way=way, seed=3)
    again.set_epoch(2)
    assert list(again) == counted[2]
    assert list(weighed(noisy, weights, way=way, seed=4)) != first[0]


def test_positions_are_those_of_the_data_set(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor)
    loader = DataLoader(
        indexed(noisy.training),
        batch_size=BATCH,
        sampler=CurriculumSampler(curriculum, indexed(noisy.training), batch_size=BATCH),
    )
    indices = torch.cat([index for _, _, index in loader])
    assert sorted(indices.tolist()) == noisy.training.indices
    whole = CurriculumSampler(curriculum, noisy.training.dataset, batch_size=BATCH)
    assert sorted(whole) == list(range(len(noisy.x)))


def test_training_with_a_sampler_judges_and_draws_wrong_labels_less(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, speed=1.0)
    loader = DataLoader(
        indexed(noisy.training),
        batch_size=BATCH,
        sampler=CurriculumSampler(curriculum, noisy.training, batch_size=BATCH),
    )
    shares = []
    for _ in range(7):
        drawn = []
        for x, y, index in loader:
            with run.monitor.step(index):  # raises where an index comes twice in a batch
                F.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            drawn.append(noisy.wrong[index.numpy()])
        shares.append(np.concatenate(drawn).mean())
    assert shares[0] == pytest.approx(noisy.wrong[noisy.rows].mean())
    assert shares[-1] < 0.5 * shares[0]
    assert len(curriculum.history) == 5


def test_weights_and_a_sampler_are_not_both_used(noisy: Blobs) -> None:
    run = Run(noisy)
    CurriculumSampler(Curriculum(run.monitor), noisy.training, batch_size=BATCH)
    with pytest.raises(SettingError, match="count them twice"):
        run.monitor.weights(noisy.rows[:4])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([0, 1], {"batch_size": 0}, "batch_size=0"),
        ([0, 1], {"way": "random"}, "draw, leave-out"),
        ([], {}, "empty"),
        ([3, 3], {}, "same index"),
    ],
)
def test_settings_of_a_sampler_are_checked(noisy: Blobs, data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        CurriculumSampler(Curriculum(Run(noisy).monitor), data, **{"batch_size": 2, **options})
