"""Noise by a matrix P(given = row | true = column), and random matrices with a wanted trace and sparsity.

The matrices are those of Confident Learning (Northcutt, Jiang and Chuang, 2021), number for number: its experiments
were made with the generator of the package cleanlab, so the same seed must give the same matrix here. That generator
draws from numpy's legacy random numbers, which is why they are used in this file and nowhere else.

A matrix is made so. Its diagonal is a random division of the trace, no entry above 1. Then zeros are dealt out to the
columns, `sparsity` · K · (K - 1) of them in all and at most K - 2 to a column, and what the diagonal leaves of a column
is divided at random over as many rows as its zeros leave. A matrix from which nothing can be learned, one with
P(given = c) · P(true = c) ≥ P(given = c, true = c) for some class c, is thrown away and the next one is drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SettingError
from sgoif_bench.noise.labels import NoisyLabels, checked_labels, checked_share

Matrix = NDArray[np.float64]
TOLERANCE = 1e-6
LEAST_KEPT = 1e-5
"""No class keeps less of its labels than this, hence none loses more than 1 - this to another class."""
MOST_TRIES = 10_000


def by_matrix(labels: ArrayLike, matrix: ArrayLike, seed: int = 0) -> NoisyLabels:
    """Give labels away by a matrix P(given = row | true = column): as many of each class as the matrix says.

    Counts are rounded along the column, so that each is within one of what the matrix asks for and they add up: the
    share of wrong labels is the one that was asked for, also in small classes.
    """
    given, table = _checked(labels, matrix)
    generator = np.random.default_rng(seed)
    noisy = given.copy()
    for true in range(len(table)):
        members = generator.permutation(np.flatnonzero(given == true))
        edges = np.round(np.cumsum(table[:, true]) * len(members)).astype(int)
        for row, part in enumerate(np.split(members, edges[:-1])):
            noisy[part] = row
    return NoisyLabels(noisy, noisy != given)


def by_matrix_as_cleanlab(labels: ArrayLike, matrix: ArrayLike, seed: int = 0) -> NoisyLabels:
    """The labels that cleanlab's `generate_noisy_labels` gives after `numpy.random.seed(seed)`, to repeat its results.

    It differs from `by_matrix` in that every count of flips is rounded down. A class of n examples keeps up to K - 1
    labels more than the matrix says, which matters where n · rate / K is small; with sparse matrices and thousands of
    examples per class the two are alike.
    """
    given, table = _checked(labels, matrix)
    classes, total = len(table), len(given)
    random = np.random.RandomState(seed)
    prior = np.bincount(given, minlength=classes) / float(total)
    flips = (table * prior * total).astype(int)
    np.fill_diagonal(flips, 0)
    noisy = given.copy()
    for true in range(classes):
        targets = np.repeat(np.arange(classes), flips[:, true])
        members = np.flatnonzero(given == true)
        if 0 < len(targets) <= len(members):
            noisy[random.choice(members, len(targets), replace=False)] = targets
    return NoisyLabels(noisy, noisy != given)


def noise_matrix_from_trace(classes: int, trace: float, sparsity: float = 0.0, seed: int = 0) -> Matrix:
    """A random noise matrix [K, K] with this trace and about this share of zeros off the diagonal.

    With all classes equally frequent, trace = K · (1 - noise rate). The same as cleanlab's
    `generate_noise_matrix_from_trace(K, trace, py=[1/K]*K, frac_zero_noise_rates=sparsity, seed=seed)`.
    """
    checked_share(sparsity, "sparsity")
    if classes < 2:
        raise SettingError(f"classes = {classes}: a noise matrix needs at least two classes")
    if not 1 < trace <= classes:
        raise SettingError(
            f"trace = {trace} must lie above 1, where labels say nothing, and not above the {classes} classes"
        )
    random = np.random.RandomState(seed)
    if classes == 2:
        return _two_classes(random, trace, sparsity)
    for _ in range(MOST_TRIES):
        matrix = _draw(random, classes, trace, sparsity)
        if _learnable(matrix):
            return matrix
    raise SettingError(
        f"no noise matrix of {classes} classes with trace {trace} and sparsity {sparsity} from which something can be "
        f"learned was found in {MOST_TRIES:,} tries; raise the trace"
    )


def _checked(labels: ArrayLike, matrix: ArrayLike) -> tuple[NDArray[np.int64], Matrix]:
    given, table = checked_labels(labels), np.asarray(matrix, dtype=np.float64)
    if table.shape != (len(table), len(table)) or given.max() >= len(table):
        raise SettingError(f"a noise matrix of shape {table.shape} does not fit labels that go up to {given.max()}")
    if table.min() < -TOLERANCE or not np.allclose(table.sum(0), 1, atol=1e-6):
        raise SettingError("every column of a noise matrix must hold probabilities that sum to one")
    # Where a diagonal entry is 1 but for rounding, the generator leaves a trace of negative probability beside it.
    return given, table.clip(0.0, None)


def _two_classes(random: np.random.RandomState, trace: float, sparsity: float) -> Matrix:
    """With two classes one number per column says all, and every trace above 1 can be learned from."""
    if sparsity < 0.5:
        first, second = _shares(random, 2, trace, 0.0, 1.0)
        return np.array([[first, 1 - second], [1 - first, second]])
    one_sided = np.array([[1.0, 1 - (trace - 1.0)], [0.0, trace - 1.0]])
    return one_sided if random.rand() > 0.5 else one_sided[::-1, ::-1].copy()


def _draw(random: np.random.RandomState, classes: int, trace: float, sparsity: float) -> Matrix:
    kept = _shares(random, classes, trace, LEAST_KEPT, 1.0)
    matrix = np.diag(kept)
    noisy = np.flatnonzero(kept != 1)
    zeros = int(classes * (classes - 1) * sparsity) - (classes - len(noisy)) * (classes - 1)
    per_column = _dealt(random, max(zeros, 0), len(noisy), classes - 2)
    for column, without in zip(noisy, per_column, strict=True):
        rates = _shares(random, classes - 1 - int(without), 1 - kept[column], 0.0, 1 - LEAST_KEPT)
        rows = random.choice(np.delete(np.arange(classes), column), len(rates), replace=False)
        matrix[rows, column] = rates[::-1]
    return matrix


def _learnable(matrix: Matrix) -> bool:
    """Whether given and true class agree more often than by chance, for every class; all classes equally frequent."""
    prior = np.full(len(matrix), 1 / len(matrix))
    agree_by_chance = (matrix @ prior) * prior
    whole = abs((matrix * prior).sum() - 1.0) < TOLERANCE
    return bool(whole and (agree_by_chance < np.diagonal(matrix) * prior).all())


def _shares(random: np.random.RandomState, count: int, total: float, least: float, most: float) -> Matrix:
    """So many random numbers that sum to `total`, none below `least` or above `most`."""
    shares = _held_below(random, random.dirichlet(np.ones(count)) * total, most)
    return -_held_below(random, -shares, -least)


def _held_below(random: np.random.RandomState, values: Matrix, most: float) -> Matrix:
    """Move what is above `most` from the largest value to the smallest until nothing is, keeping the sum.

    A random part of the room that is left then goes the same way, or the largest would always end at `most`.
    """
    while values.max() > most + TOLERANCE:
        raised = values.min() + (values.max() - most)
        further = (most - raised) * random.rand()
        values[values.argmin()] = raised + further
        values[values.argmax()] = most - further
    return values


def _dealt(random: np.random.RandomState, count: int, places: int, most: int) -> NDArray[np.int64]:
    """So many things dealt out to places at random, at most `most` to each; what fits nowhere is left out."""
    if count == 0:
        return np.zeros(places, dtype=np.int64)
    most = min(most, count)
    count = min(count, most * places)
    dealt = np.round(_shares(random, places, 1, 0.0, most / float(count)) * count).astype(np.int64)
    while excess := int(dealt.sum()) - count:
        if excess > 0:
            dealt[dealt.argmax()] -= 1
        else:
            dealt[dealt.argmin()] += 1
    return dealt
