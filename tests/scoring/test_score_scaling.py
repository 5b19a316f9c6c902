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
