"""How well additive scores predict retrained networks: the linear datamodeling score (LDS).

With f_m(q) the figure of query q, averaged over trainings on subset S_m, and s(q, i) the scores of a method,

    g_m(q) = Σ_{i∈S_m} s(q, i) ,        LDS(q) = Spearman over m of g_m(q) and f_m(q) ,

and the LDS of a method is the mean over queries. Its interval is a bootstrap over queries. The same holds for any other
sets of kept examples, such as all but a few.

f_m itself is uncertain, because no two trainings agree. With ρ(q) the Spearman correlation between two halves of the
trainings, the mean of all of them has reliability R = 2ρ/(1 + ρ) (Spearman and Brown), and no score can be expected
to correlate with it beyond √R: the ceiling. Where ρ(q) is mostly chance, only its mean over queries and over all ways
to halve the trainings can be estimated, and the ceiling of the mean is taken from that.

LDS(q) is uncertain too, because the sets are few: with M of them, by about (1 − LDS²)/√(M − 1). With ρ the Spearman
correlation over queries between the LDS on one half of the sets and on the other, the LDS on all of them has the
reliability R = 2ρ/(1 + ρ), and no confidence, however good, can be expected to correlate with it beyond √R.

A correlation has no unit. How far predictions are off in units of the figure is, with deviations from the mean over m
and one factor for all queries, since scores are known up to one,

    e(q) = √ mean_m (f_m(q) − α g_m(q))² ,        α = argmin Σ_q e(q)² .
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif_bench.unlearning.measures import ranks

Array = NDArray[np.float64]
RESAMPLES, FEW_RESAMPLES = 2000, 200
MOST_SPLITS = 35
"""Ways to halve trainings that are looked at: all of eight."""
DRAWN_SPLITS = 25
"""Ways to halve sets that are looked at, drawn at random."""


def rank_correlations(predicted: Array, measured: Array) -> Array:
    """Spearman correlation of every column of two [M, Q] tables; 0 where one side does not vary."""
    if predicted.shape != measured.shape or predicted.ndim != 2:
        raise SettingError(f"predictions {predicted.shape} and measurements {measured.shape} must be two equal tables")
    a, b = (found - found.mean(0) for found in map(ranks, (predicted, measured)))
    scale = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.asarray(np.divide((a * b).sum(0), scale, out=np.zeros_like(scale), where=scale > 0))


def predictions(scores: NDArray[Any], kept: NDArray[np.bool_]) -> Array:
    """Σ_{i∈S_m} s(q, i) for scores [Q, N] and sets [M, N], as [M, Q]."""
    # Summed over what is left out, which is the same up to a constant per query and exact where little is left out.
    return -np.asarray((~kept).astype(np.float64) @ scores.T.astype(np.float64))


def errors(scores: NDArray[Any], kept: NDArray[np.bool_], measured: Array) -> Array:
    """e of every query for scores [Q, N] on sets [M, N] with measurements [M, Q]."""
    predicted = predictions(scores, kept)
    predicted, found = predicted - predicted.mean(0), measured - measured.mean(0)
    size = float((predicted**2).sum())
    factor = float((predicted * found).sum()) / size if size > 0 else 0.0
    return np.asarray(np.sqrt(((found - factor * predicted) ** 2).mean(0)))


def ceiling(trainings: Array) -> Array:
    """√R of every query from measurements [M, S, Q]; 1 where every set was trained on once, which tells nothing."""
    count = trainings.shape[1]
    if count < 2:
        return np.ones(trainings.shape[2])
    halves = [trainings[:, part::2].mean(1) for part in range(2)]
    rho = np.clip(rank_correlations(halves[0], halves[1]), 0, 1)
    return np.asarray(np.sqrt(2 * rho / (1 + rho)))


def mean_ceiling(trainings: Array) -> float | None:
    """√R of the mean over queries from measurements [M, S, Q]; None where S = 1, which tells nothing."""
    count = trainings.shape[1]
    if count < 2:
        return None
    # The first training is always in the first half, so that no split is counted twice.
    splits = [(0, *rest) for rest in combinations(range(1, count), (count + 1) // 2 - 1)][:MOST_SPLITS]
    found = []
    for first in splits:
        second = [place for place in range(count) if place not in first]
        halves = [trainings[:, list(part)].mean(1) for part in (first, second)]
        found.append(rank_correlations(halves[0], halves[1]).mean())
    rho = max(0.0, float(np.mean(found)))
    return float(np.sqrt(2 * rho / (1 + rho)))


def split_agreement(scores: NDArray[Any], kept: NDArray[np.bool_], measured: Array, seed: int = 0) -> Array:
    """The LDS of every query on either half of the sets, halved in several ways, [splits, 2, Q]."""
    predicted, generator = predictions(scores, kept), np.random.default_rng(seed)
    orders = [generator.permutation(len(kept)) for _ in range(DRAWN_SPLITS)]
    halves = [[order[part::2] for part in range(2)] for order in orders]
    return np.array([[rank_correlations(predicted[half], measured[half]) for half in split] for split in halves])


def reliability(split: Array) -> float:
    """R of the LDS of single queries [splits, 2, Q]: how far halves of the sets tell queries apart in the same way."""
    rho = max(0.0, float(rank_correlations(split[:, 0].T, split[:, 1].T).mean()))
    return 2 * rho / (1 + rho)


def share_of_seen(
    confidence: Array, by_query: Array, split: Array, seed: int = 0
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Spearman correlation of confidence and LDS over √R, with the ends of its 95% bootstrap interval over queries.

    It is what an unlimited number of sets should show; None where queries cannot be told apart at all.
    """

    def ratio(rows: NDArray[np.int64] | slice) -> float:
        most = np.sqrt(reliability(split[:, :, rows]))
        own = rank_correlations(confidence[rows, None], by_query[rows, None])[0]
        return float(own / most) if most > 0 else np.nan

    found = ratio(slice(None))
    draws = np.random.default_rng(seed).integers(len(by_query), size=(FEW_RESAMPLES, len(by_query)))
    drawn = np.array([ratio(rows) for rows in draws])
    if np.isnan(found) or np.isnan(drawn).mean() > 0.025:
        return None, None, None
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return found, float(low), float(high)


@dataclass(frozen=True)
class Agreement:
    """Per-query correlations and their mean with an interval."""

    by_query: Array
    mean: float
    low: float
    high: float


def agreement(scores: NDArray[Any], kept: NDArray[np.bool_], measured: Array, seed: int = 0) -> Agreement:
    """The LDS of scores [Q, N] on sets [M, N] with measurements [M, Q]; the interval is 95% of a bootstrap."""
    by_query = rank_correlations(predictions(scores, kept), measured)
    low, high = bootstrap(by_query, seed)
    return Agreement(by_query, float(by_query.mean()), low, high)


def bootstrap(values: Array, seed: int = 0) -> tuple[float, float]:
    """Ends of the 95% interval of the mean."""
    draws = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)
