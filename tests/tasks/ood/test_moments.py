"""Distances in units of curvature against dense algebra and scikit-learn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif.tasks.ood.activation_matrix import ActivationMatrix
from sgoif.tasks.ood.moments import LEAST_SHRINKAGE, LayerMoments, MeanDistance, MomentSums, shrinkage


def sample(count: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) @ mix + 3


def test_distance_is_that_of_the_shrunk_covariance() -> None:
    a = sample(200, 5)
    sums = MomentSums(5, 1, torch.device("cpu"))
    for part in a.split(30):
        sums.add(part.float(), torch.zeros(len(part), dtype=torch.long), torch.ones(len(part)))
    layer = sums.layer()
    covariance = (a - a.mean(0)).T @ (a - a.mean(0)) / 200
    rho = max(LEAST_SHRINKAGE, shrinkage(covariance, 200))
    shrunk = (1 - rho) * covariance + rho * covariance.trace() / 5 * torch.eye(5, dtype=torch.float64)
    x = sample(7, 5, seed=1)
    expected = torch.einsum("nd,de,ne->n", x - a.mean(0), torch.linalg.inv(shrunk), x - a.mean(0))
    torch.testing.assert_close(layer.distance(x.float()).double(), expected, rtol=1e-3, atol=1e-3)


def test_shrinkage_is_scikit_learns() -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    a = sample(40, 12).numpy()
    mine = shrinkage(torch.from_numpy(covariance.empirical_covariance(a)), 40)
    assert mine == pytest.approx(covariance.OAS().fit(a).shrinkage_, rel=0.2)


def made(size: int, centres: int, seed: int) -> LayerMoments:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator)
    return LayerMoments(5 + torch.randn(centres, size, generator=generator), root, 0.5 + seed)


@pytest.mark.parametrize(
    "shapes",
    [
        [(6, 1)],
        [(2, 1), (3, 1), (1, 1), (8, 1), (8, 4)],
        [(8, 3), (2, 2), (5, 1), (4, 1), (3, 5)],
        [(1, 1), (1, 3)],
    ],
)
def test_layers_together_are_the_mean_of_each_alone(shapes: list[tuple[int, int]]) -> None:
    layers = [made(size, centres, seed) for seed, (size, centres) in enumerate(shapes)]
    rows = [sample(9, size, seed=seed).float() for seed, (size, _) in enumerate(shapes)]
    expected = torch.zeros(9, dtype=torch.float64)
    for layer, a in zip(layers, rows, strict=True):
        inverse = layer.root.double() @ layer.root.double().T
        for number in range(9):
            apart = a[number].double() - layer.centres.double()
            expected[number] += min(float(d @ inverse @ d) for d in apart) / layer.scale / len(layers)
    matrix = ActivationMatrix(tuple(size for size, _ in shapes), torch.device("cpu")).join(rows)
    torch.testing.assert_close(MeanDistance(layers).mean(matrix).double(), expected, rtol=1e-5, atol=1e-5)
    assert len(MeanDistance(layers).mean(matrix[:0])) == 0


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    layers = [made(2, 1, 0), made(5, 3, 1)]
    matrix = ActivationMatrix((2, 5), torch.device("cpu")).join(sample(4, 7).float().split([2, 5], 1))
    clean = MeanDistance(layers).mean(matrix)
    matrix[1, 0, 0], matrix[2, 1, 4] = torch.nan, torch.inf
    got = MeanDistance(layers).mean(matrix)
    torch.testing.assert_close(got[[0, 3]], clean[[0, 3]])
    assert not bool(torch.isfinite(got[[1, 2]]).any())


def test_weights_count_like_repetitions() -> None:
    a, classes = sample(20, 4).float(), torch.arange(20) % 2
    twice, weighted = MomentSums(4, 2, torch.device("cpu")), MomentSums(4, 2, torch.device("cpu"))
    twice.add(torch.cat([a, a[:5]]), torch.cat([classes, classes[:5]]), torch.ones(25))
    weighted.add(a, classes, torch.where(torch.arange(20) < 5, 2.0, 1.0))
    torch.testing.assert_close(twice.layer().centres, weighted.layer().centres)
    torch.testing.assert_close(twice.second, weighted.second)


def test_the_nearest_class_counts_and_an_absent_class_has_no_centre() -> None:
    sums = MomentSums(2, 3, torch.device("cpu"))
    a = torch.tensor([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0], [10.0, 2.0]])
    sums.add(a, torch.tensor([0, 0, 2, 2]), torch.ones(4))
    layer = sums.layer()
    assert layer.centres.tolist() == [[0.0, 1.0], [10.0, 1.0]]
    # C = diag(0, 1) with ρ = 0.5 is diag(1/4, 3/4)
    at = torch.tensor([[0.0, 1.0], [10.0, 1.0], [5.0, 1.0], [10.0, 2.0], [12.0, 1.0]])
    assert layer.distance(at).tolist() == pytest.approx([0.0, 0.0, 100.0, 4 / 3, 16.0], abs=1e-2)


def test_scale_makes_the_mean_one() -> None:
    sums = MomentSums(3, 1, torch.device("cpu"))
    a = sample(100, 3).float()
    sums.add(a, torch.zeros(100, dtype=torch.long), torch.ones(100))
    fresh = sample(50, 3, seed=5).float()
    assert float(sums.layer().scaled(fresh).distance(fresh).mean()) == pytest.approx(1.0, rel=1e-4)


@given(count=st.integers(2, 30), size=st.integers(1, 12), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_few_or_constant_examples_give_finite_distances(count: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(count, size, generator=generator)
    a[:, 0] = 1.0
    sums = MomentSums(size, 1, torch.device("cpu"))
    sums.add(a, torch.zeros(count, dtype=torch.long), torch.ones(count))
    distance = sums.layer().distance(torch.randn(5, size, generator=generator))
    assert bool(torch.isfinite(distance).all())
    assert bool((distance >= 0).all())


def test_a_reference_without_weight_is_refused() -> None:
    sums = MomentSums(2, 1, torch.device("cpu"))
    sums.add(torch.ones(3, 2), torch.zeros(3, dtype=torch.long), torch.zeros(3))
    with pytest.raises(SettingError, match="nothing to compare"):
        sums.layer()
