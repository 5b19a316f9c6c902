"""p-values by counting, and thresholds that go with them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif.tasks.ood.conformal import p_values, threshold


def test_p_values_by_counting() -> None:
    calibration = torch.tensor([1.0, 2.0, 2.0, 3.0])
    got = p_values(torch.tensor([0.0, 1.0, 2.0, 2.5, 3.0, 4.0, math.inf, math.nan]), calibration)
    assert got.tolist() == pytest.approx([1.0, 1.0, 0.8, 0.4, 0.4, 0.2, 0.2, 0.2])


@given(
    scores=st.lists(st.integers(-5, 5), min_size=1, max_size=60),
    false_alarms=st.floats(0.001, 0.999),
)
@settings(max_examples=200, deadline=None)
def test_a_score_is_beyond_the_threshold_exactly_when_its_p_value_is_small(
    scores: list[int], false_alarms: float
) -> None:
    calibration = torch.tensor(scores, dtype=torch.float64).sort().values
    limit = threshold(calibration, false_alarms)
    at = torch.arange(-6, 7, dtype=torch.float64)
    small = p_values(at, calibration) <= false_alarms
    assert ((at > limit) == small).all()


def test_few_examples_cannot_promise_few_false_alarms() -> None:
    assert threshold(torch.arange(9.0), 0.05) == math.inf
    assert threshold(torch.arange(19.0), 0.05) == 18.0


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_shares_outside_the_unit_interval_are_refused(share: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        threshold(torch.arange(9.0), share)
