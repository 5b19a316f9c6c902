"""SPECTRE: each of its parts against dense algebra, the whole on poison that spectral signatures miss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import expm

from sgoif_bench.metrics import average_precision
from sgoif_bench.poisoning.rivals.spectral import signatures
from sgoif_bench.poisoning.rivals.spectre import (
    class_scores,
    entropy,
    in_order,
    one_filter,
    principal_components,
    que_scores,
    robust,
    top_of_squares,
    whitened,
)

Matrix = NDArray[np.float64]


def hidden(seed: int = 0, clean: int = 380, poison: int = 20) -> Matrix:
    """A class with variances from 0.25 to 100; the last examples lie off along a direction of small variance."""
    generator = np.random.default_rng(seed)
    spread = np.geomspace(10, 0.5, 9)
    features = generator.standard_normal((clean + poison, 9)) * spread
    features[clean:, 8] = 4 + 0.1 * generator.standard_normal(poison)
    return features @ np.linalg.qr(generator.standard_normal((9, 9)))[0]


def test_the_top_eigenvector_of_squares_is_that_of_the_whole_matrix() -> None:
    y = np.random.default_rng(0).standard_t(4, (50, 4))
    y = whitened(y, y.T @ y / 50)
    squares = np.stack([np.kron(row, row) for row in y])
    identity = np.eye(4).flatten()
    values, vectors = np.linalg.eigh(squares.T @ squares / 50 - np.outer(identity, identity))
    value, matrix = top_of_squares(y)
    assert value == pytest.approx(values[-1], rel=1e-4)
    assert abs(matrix.flatten() @ vectors[:, -1]) == pytest.approx(1, rel=1e-3)


def test_weights_of_directions_are_a_matrix_exponential() -> None:
    x = np.random.default_rng(1).standard_normal((40, 5)) * [3, 2, 1, 1, 0.5]
    covariance = np.cov(x, rowvar=False)
    excess = (covariance - np.eye(5)) / (np.linalg.norm(covariance, 2) - 1)
    wanted = expm(4 * excess)
    np.testing.assert_allclose(entropy(covariance), wanted / np.trace(wanted), rtol=1e-9)


def test_whitened_rows_have_no_covariance_left() -> None:
    x = np.random.default_rng(2).standard_normal((60, 3)) @ np.array([[3, 1, 0], [0, 2, 0], [1, 0, 0.1]])
    np.testing.assert_allclose(np.cov(whitened(x, np.cov(x, rowvar=False)), rowvar=False), np.eye(3), atol=1e-9)


def test_a_score_is_a_quadratic_form_of_whitened_rows() -> None:
    x = principal_components(hidden(), 9)[:, :4]
    kept = robust(x, 20)
    covariance = (x[kept] - x[kept].mean(0)).T @ (x[kept] - x[kept].mean(0)) / kept.sum()
    values, vectors = np.linalg.eigh(covariance)
    white = x @ vectors @ np.diag(values**-0.5) @ vectors.T
    spread = np.cov(white, rowvar=False)
    weights = expm(4 * (spread - np.eye(4)) / (np.linalg.norm(spread, 2) - 1))
    wanted = [row @ weights @ row / np.trace(weights) for row in white]
    np.testing.assert_allclose(que_scores(x, 20), wanted, rtol=1e-6)


def test_with_one_component_it_is_the_spectral_signature() -> None:
    features = hidden()
    found = que_scores(principal_components(features, 9)[:, :1], 20)
    wanted = signatures(torch.from_numpy(features), torch.zeros(400, dtype=torch.long), 1).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def by_the_rule(x: Matrix, share: float, most: int) -> NDArray[np.bool_] | None:
    """One round of the filter as the authors' code has it, example by example."""
    count, size = x.shape
    moment = sum(np.outer(row, row) for row in x) / count
    values, vectors = np.linalg.eigh(moment)
    y = x @ vectors @ np.diag(values**-0.5) @ vectors.T

    def closest(numbers: Matrix) -> NDArray[np.bool_]:
        return np.array([number <= sorted(numbers)[count - most - 1] for number in numbers])

    lengths = np.array([row @ row for row in y])
    if max(lengths) >= 10 * size * np.log(count / 0.1):
        return (lengths < 10 * size * np.log(count / 0.1)) | closest(lengths)
    squares = np.stack([np.kron(row, row) for row in y])
    identity = np.eye(size).flatten()
    found, directions = np.linalg.eigh(squares.T @ squares / count - np.outer(identity, identity))
    if found[-1] <= 1 + 10 * share * np.log(1 / share) ** 2:
        return None
    matrix = directions[:, -1].reshape(size, size)
    places = np.array([row @ matrix @ row - np.trace(matrix) for row in y]) / 2**0.5
    distance = abs(places - np.median(places))
    for rank, far in enumerate(sorted(distance), start=1):
        if far <= 3:
            continue
        bound = far - 3
        tail = 1 if bound <= 10 * np.log(1 / share) else 3 * share / (bound * np.log(bound)) ** 2
        if rank / count >= tail:
            return (distance <= bound) | closest(distance)
    return None


@pytest.mark.parametrize(
    ("seed", "far", "most"), [(0, 3.0, 30), (1, 6.0, 4), (2, 15.0, 30), (3, 400.0, 6), (4, 0.0, 9)]
)
def test_a_round_of_the_filter_is_that_of_the_rule(seed: int, far: float, most: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((200, 3))
    x[:4] += far * generator.standard_normal((4, 3))
    found, wanted = one_filter(x, 0.02, most), by_the_rule(x, 0.02, most)
    assert (found is None) == (wanted is None) == (far == 0)
    if found is not None and wanted is not None:
        np.testing.assert_array_equal(found, wanted)
        assert 0 < (~found).sum() <= most


def test_the_estimator_drops_outliers_and_not_more_than_it_may() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 5))
    x[:8] *= 30
    kept = robust(x, 8)
    assert not kept[:8].any()
    assert (~kept).sum() <= 16
    assert robust(x[8:], 8).all(), "there is nothing to drop among normal numbers"


def test_poison_along_a_direction_of_small_variance_is_found() -> None:
    features = hidden()
    is_poison = np.arange(400) >= 380
    plain = signatures(torch.from_numpy(features), torch.zeros(400, dtype=torch.long), 1).numpy()
    scores, components, spread = class_scores(features, 20)
    assert components == 9
    assert spread > 2 * class_scores(features[:380], 20)[2], "a class with poison stands out among classes"
    assert average_precision(is_poison, scores) > 0.95
    assert average_precision(is_poison, plain) < 0.2


def test_small_and_dead_classes_have_scores() -> None:
    assert class_scores(np.ones((12, 4)), 50) == (pytest.approx(np.zeros(12)), 0, 0.0)
    scores, components, _ = class_scores(np.random.default_rng(0).standard_normal((5, 8)), 50)
    assert (scores.shape, components) == ((5,), 1)
    alone, components, _ = class_scores(np.ones((1, 8)), 1)
    assert (alone.tolist(), components) == ([0.0], 0)


def test_a_ridge_is_a_share_of_the_largest_deviation() -> None:
    x = np.random.default_rng(2).standard_normal((30, 2))
    found = whitened(x, np.diag([4.0, 1e-20]), ridge=0.1)
    np.testing.assert_allclose(found, x / [2.2, 0.2], rtol=1e-3)


def test_what_would_be_removed_comes_first_class_by_class() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    scores, evidence = np.array([9.0, 8, 7, 1, 3, 2]), np.array([1.0, 1, 1, 5, 5, 5])
    found = in_order(scores, labels, evidence, np.array([0, 4]))
    assert np.argsort(-found, kind="stable").tolist() == [4, 0, 1, 5, 2, 3]
