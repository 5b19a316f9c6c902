"""The likelihood of a noise rate: between the points of its grid, and all rates at once."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cases import CLASSES, mixture

from sgoif.tasks.labels.likelihood import RATES, offset, offsets, plain_rate


def test_a_rate_between_two_of_the_grid_is_told_from_both() -> None:
    """Two rates that are tried first are an eighth apart; a few hundred decoys know better than that."""
    low, high = RATES[-11], RATES[-10]
    found = []
    for rate in np.linspace(low, high, 5):
        v, wrong, decoys = mixture(float(rate), decoys=2000, apart=5.0, seed=3)
        estimate, below, above = plain_rate(
            np.quantile(v / v.std(), np.linspace(0, 1, 2001)), decoys / v.std(), CLASSES
        )
        assert estimate == pytest.approx(wrong.mean(), rel=0.03)
        assert below < estimate < above < 1.1 * below
        found.append(estimate)
    assert (np.diff(found) > 0.1 * (high - low)).all()


@pytest.mark.parametrize("slope", [0.9, 4.0, 18.0])
def test_offsets_of_all_rates_are_those_of_each(slope: float) -> None:
    points = np.quantile(np.random.default_rng(0).standard_t(4, 5000), np.linspace(0, 1, 501))
    each = [offset(points, slope, rate) for rate in RATES]
    np.testing.assert_allclose(offsets(points, slope, RATES), each, atol=5e-4)
