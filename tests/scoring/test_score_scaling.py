"""The temperature: each step's scores in units of their running size, bent towards ±T."""

from __future__ import annotations

import math

import pytest
import torch

from sgoif.scoring.score_scaling import ScoreScaling

CPU = torch.device("cpu")
RAW = torch.tensor([-8.0, -1.0, 0.0, 0.5, 3.0, 40.0])


@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_scores_are_bent_at_the_temperature(temperature: float) -> None:
    scaling = ScoreScaling(temperature, CPU)
    q = torch.full((6,), 2.0)
    expected = [temperature * math.tanh(float(u) / (temperature * 2)) for u in RAW]
    torch.testing.assert_close(scaling.apply(RAW, q), torch.tensor(expected))
    assert scaling.bound == temperature
    assert float(scaling.apply(torch.tensor([0.02]), q[:1])) == pytest.approx(0.01, rel=1e-3)


def test_without_a_temperature_scores_stay_as_they_are() -> None:
    scaling = ScoreScaling(None, CPU)
    assert torch.equal(scaling.apply(RAW, torch.full((6,), 2.0)), RAW)
    assert math.isinf(scaling.bound)


def test_the_size_is_a_running_mean_from_the_first_step_on() -> None:
    scaling, mean, weight = ScoreScaling(4.0, CPU), 0.0, 0.0
    for size in (1.0, 3.0, 10.0, 2.0):
        mean, weight = 0.9 * mean + 0.1 * size, 0.9 * weight + 0.1
        q = scaling.observe(torch.tensor([size / 2, -3 * size / 2]), [2])
        torch.testing.assert_close(q, torch.full((2,), mean / weight))


def test_each_example_has_the_scale_of_its_own_step() -> None:
    together, apart = ScoreScaling(4.0, CPU), ScoreScaling(4.0, CPU)
    found = together.observe(RAW, [2, 3, 1])
    expected = torch.cat([apart.observe(part, [len(part)]) for part in RAW.split([2, 3, 1])])
    torch.testing.assert_close(found, expected)


def test_what_is_not_finite_has_no_size() -> None:
    raw = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan, -3.0])
    assert float(ScoreScaling(4.0, CPU).observe(raw, [5])[0]) == pytest.approx(4 / 5)
    assert float(ScoreScaling(4.0, CPU).observe(torch.zeros(2), [2])[0]) > 0, "to be divided by"


def test_after_a_long_run_the_mean_goes_on_as_it_was_and_from_its_state() -> None:
    one, other = ScoreScaling(4.0, CPU), ScoreScaling(4.0, CPU)
    for size in (1.0, 5.0):
        one.observe(torch.full((300,), size), [1] * 300)
    other.load_state_dict(one.state_dict())
    assert (one.updates, other.updates) == (600, 600)
    for scaling in (one, other):
        found = scaling.observe(torch.tensor([1.0, 2.0, 3.0]), [2, 1])
        expected = [0.9 * 5 + 0.1 * 1.5, 0.9 * (0.9 * 5 + 0.1 * 1.5) + 0.1 * 3]
        torch.testing.assert_close(found, torch.tensor([expected[0], *expected]))
    other.mean.zero_()
    assert float(one.mean) > 0, "the memory of a state is its own"


def test_scores_by_group_are_bent_by_the_scale_of_their_example() -> None:
    scores, q = torch.randn(3, 4), torch.tensor([1.0, 2.0, 5.0])
    expected = torch.stack([2 * torch.tanh(row / (2 * size)) for row, size in zip(scores, q, strict=True)])
    torch.testing.assert_close(ScoreScaling(2.0, CPU).apply(scores, q), expected)


def test_the_mean_is_kept_where_the_scores_are() -> None:
    there = ScoreScaling(4.0, torch.device("meta"))
    assert there.mean.device.type == "meta"
    there.load_state_dict(ScoreScaling(4.0, CPU).state_dict())
    assert there.mean.device.type == "meta"
