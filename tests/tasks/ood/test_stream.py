"""Alarms: rarely without a change, soon after one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sgoif.errors import SettingError
from sgoif.tasks.ood.stream import PRIOR_TOTAL, ShiftWatch


def normal(count: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=count))


def watch(seed: int = 0, false_alarms: float = 0.01, calibration: int = 1000) -> ShiftWatch:
    return ShiftWatch(None, normal(calibration, 1000 + seed), false_alarms=false_alarms, seed=seed)


def test_every_bet_is_fair() -> None:
    bettors = watch()
    t = np.linspace(0, 28, 4001)  # p = exp(−t): half of the bets have all their weight near 0
    small = np.stack([bettors._gains(math.exp(-x)) for x in t])
    large = np.stack([bettors._gains(1 - math.exp(-x)) for x in t])
    half = small.shape[1] // 2
    for gains in (small[:, :half], large[:, half:]):
        total = np.trapezoid(np.exp(gains) * np.exp(-t)[:, None], t, axis=0)
        assert (total <= 1 + 1e-4).all()
        assert (total > 0.9).all()  # the clip at 1e-12 takes a little away from the boldest


def test_starting_wealth_is_never_more_than_one() -> None:
    spent = sum(1 / (k * math.log(k + 1) ** 2) for k in range(1, 200_000)) + 1 / math.log(200_000)
    assert spent <= PRIOR_TOTAL
    assert watch().capital == pytest.approx(1.0)


def test_p_values_of_an_unchanged_stream_are_uniform() -> None:
    seen = watch(seed=3)
    seen.update_scores(normal(3000, 5))
    counts, _ = np.histogram(seen.p_values, bins=10, range=(0, 1))
    assert np.abs(counts - 300).max() < 5 * math.sqrt(300)


def test_ties_are_split_at_random() -> None:
    seen = ShiftWatch(None, torch.zeros(100))
    seen.update_scores(torch.zeros(400))
    assert 0.4 < float(np.mean(seen.p_values)) < 0.6
    assert seen.alarm is None


def test_false_alarms_are_as_rare_as_promised() -> None:
    raised = sum(watch(seed=k, false_alarms=0.2).update_scores(normal(400, 50 + k)) is not None for k in range(60))
    assert raised <= 0.2 * 60 + 2 * math.sqrt(60 * 0.2 * 0.8)


def test_a_few_strange_inputs_are_found_with_their_time_and_names() -> None:
    seen = watch()
    assert seen.update_scores(normal(300, 7)) is None
    scores = normal(500, 8)
    strange = torch.arange(500) % 10 == 3
    names = [f"new-{k}" if bool(strange[k]) else f"old-{k}" for k in range(500)]
    alarm = seen.update_scores(torch.where(strange, scores + 8, scores), names)
    assert alarm is not None
    assert alarm.time <= 300 + 200
    assert 280 <= alarm.change <= 330
    assert alarm.towards == "stranger"
    assert all(str(name).startswith("new-") for name in alarm.drivers[:5])
    assert alarm.evidence >= 100
    assert seen.update_scores(normal(10, 9)) is alarm  # it stays


@pytest.mark.parametrize("direction", [1, -1])
def test_a_slow_drift_is_found_in_either_direction(direction: int) -> None:
    seen = watch()
    alarm = seen.update_scores(normal(1500, 11) + direction * torch.linspace(0, 1.5, 1500))
    assert alarm is not None
    assert alarm.towards == ("stranger" if direction > 0 else "more usual")


def test_reset_forgets_the_stream() -> None:
    seen = watch()
    assert seen.update_scores(normal(200, 1) + 5) is not None
    seen.reset()
    assert (seen.alarm, seen.count, seen.p_values) == (None, 0, [])
    assert seen.capital == pytest.approx(1.0)
    assert seen.update_scores(normal(200, 2)) is None


def test_not_a_number_is_strange_and_an_empty_batch_is_nothing() -> None:
    seen = watch()
    assert seen.update_scores(torch.empty(0)) is None
    seen.update_scores(torch.tensor([math.nan, math.inf]))
    assert max(seen.p_values) < 0.01


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        ShiftWatch(None, normal(10, 0), false_alarms=0.0)
    with pytest.raises(SettingError, match="needs a sentinel"):
        ShiftWatch(None)
    with pytest.raises(SettingError, match="2 names do not go with 3"):
        watch().update_scores(torch.zeros(3), ["a", "b"])
    with pytest.raises(SettingError, match="no sentinel"):
        watch().update(torch.zeros(1, 1, 2, 2))
