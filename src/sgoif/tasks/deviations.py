"""One scale for measures of different kinds."""

import numpy as np

from sgoif.core.types import Array


def standard(values: Array) -> Array:
    """Distance from the median in standard deviations; zero where all are alike."""
    spread = values.std()
    return np.asarray((values - np.median(values)) / spread if spread > 0 else np.zeros_like(values))


def aligned(values: Array, own: Array, target: Array) -> Array:
    """Values by their place among `own`, moved to the same place among `target`.

    Held-out and training examples come from one population, but scores of the first are out of sample. The share of
    either above a point is the same, so quantiles carry one scale over to the other.
    """
    own, target = np.sort(own), np.sort(target)
    place = (np.searchsorted(own, values, side="left") + np.searchsorted(own, values, side="right")) / 2
    share = np.clip(place / max(len(own), 1), 0.5 / max(len(own), 1), 1 - 0.5 / max(len(own), 1))
    return np.asarray(np.interp(share, (np.arange(len(target)) + 0.5) / len(target), target), dtype=np.float64)
