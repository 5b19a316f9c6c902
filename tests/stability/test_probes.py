from __future__ import annotations

import math

import pytest
import torch

from sgoif.curvature.base import Spectrum
from sgoif.errors import SettingError
from sgoif.stability.probes import ProbeVariance, curvature_probe, gradient_energy, iterate_gap

torch.set_num_threads(1)


class DiagonalOperator:
    def __init__(self, values: list[float]) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)
        self.calls = 0

    def matvec(self, vectors: torch.Tensor) -> torch.Tensor:
        self.calls += len(vectors)
        return vectors * self.values

    def diagonal(self) -> torch.Tensor:
        return self.values

    def spectrum(self) -> Spectrum:
        return Spectrum(float(self.values.min()), float(self.values.max()))


def test_gap_is_the_distance_of_the_two_iterates() -> None:
    operator, rhs = DiagonalOperator([0.5, 1.0, 2.0]), torch.eye(3, dtype=torch.float64)
    gap = iterate_gap(operator, rhs, terms=4)
    assert operator.calls == 2 * 3 * 3
    values = operator.values
    neumann, richardson = (1 - (1 - values / 1.25) ** 4), (1 - (1 - values / 2.0) ** 4)
    torch.testing.assert_close(gap, (neumann - richardson).abs() / richardson)


def test_gap_of_one_term_is_that_of_the_two_scales_and_three_are_usual() -> None:
    operator, rhs = DiagonalOperator([0.5, 1.0, 2.0]), torch.ones(2, 3, dtype=torch.float64)
    torch.testing.assert_close(iterate_gap(operator, rhs, terms=1), torch.full_like(rhs[:, 0], 2 / 1.25 - 1))
    assert operator.calls == 0
    assert torch.equal(iterate_gap(operator, rhs), iterate_gap(operator, rhs, terms=3))


def test_gap_tells_converged_from_not() -> None:
    rhs = torch.randn(5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    good = iterate_gap(DiagonalOperator(torch.linspace(1, 1.1, 20).tolist()), rhs)
    bad = iterate_gap(DiagonalOperator(torch.logspace(-3, 0, 20).tolist()), rhs)
    assert good.max() < 0.01
    assert bad.min() > 0.2
    deeper = iterate_gap(DiagonalOperator(torch.linspace(0.2, 1, 20).tolist()), rhs, terms=60)
    assert deeper.max() < 1e-4


def test_gap_handles_zero_and_poisoned_rows() -> None:
    rhs = torch.ones(3, 2, dtype=torch.float64)
    rhs[0], rhs[1, 0] = 0, torch.nan
    gap = iterate_gap(DiagonalOperator([1.0, 2.0]), rhs)
    assert gap[0] == 0
    assert gap[1].isnan()
    assert 0 < gap[2] < 1
    with pytest.raises(SettingError, match="terms"):
        iterate_gap(DiagonalOperator([1.0]), rhs, terms=0)


def test_gradient_energy() -> None:
    basis = torch.eye(4)[:2]
    vectors = torch.tensor([[3.0, 0, 4.0, 0], [1.0, 1.0, 0, 0], [0, 0, 0, 2.0], [0, 0, 0, 0]])
    torch.testing.assert_close(gradient_energy(basis, vectors), torch.tensor([0.36, 1.0, 0.0, 0.0]))
    assert gradient_energy(1.001 * basis, vectors[1:2]).tolist() == [1.0], "rounding makes no share above one"


def test_probes_estimate_the_trace_and_repeat_themselves() -> None:
    operator = DiagonalOperator([1.0, 2.0, 4.0])
    before = torch.random.get_rng_state()
    assert curvature_probe(operator, operator.values, 5).tolist() == [7.0] * 5  # exact for a diagonal operator
    assert torch.equal(torch.random.get_rng_state(), before)

    class Coupled(DiagonalOperator):
        def matvec(self, vectors: torch.Tensor) -> torch.Tensor:
            return vectors @ (torch.diag(self.values) + 0.5)

    coupled = Coupled([1.0, 2.0, 4.0])
    values = curvature_probe(coupled, coupled.values, 4000)
    assert float(values.mean()) == pytest.approx(8.5, rel=0.03)
    assert float(values.var()) > 0.1
    first, again, other = (curvature_probe(coupled, coupled.values, 8, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    large = Coupled(list(range(1, 40)))
    usual = curvature_probe(large, large.values)
    assert torch.equal(usual, curvature_probe(large, large.values, 1, seed=0))
    assert not torch.equal(usual, curvature_probe(large, large.values, 1, seed=1))


def test_probe_variance_is_the_plain_one_at_first() -> None:
    for unit in (1.0, -1.0, 1e-3):
        probe, values = ProbeVariance(), [unit * value for value in (2.0, 3.0, 5.0, 4.0, 1.0)]
        assert probe.value == 0
        for value in values:
            probe.update(value)
        x = torch.tensor(values, dtype=torch.float64)
        assert probe.value == pytest.approx(float(x.var(correction=0) / x.mean() ** 2))


def test_probe_variance_forgets_ignores_poison_and_goes_on_exactly() -> None:
    probe = ProbeVariance()
    for step in range(50):
        probe.update(1.0 + (step % 2))
    noisy = probe.value
    assert noisy == pytest.approx(0.25 / 1.5**2, rel=0.2)
    for value in (math.nan, math.inf):
        probe.update(value)
    assert probe.value == noisy
    other = ProbeVariance()
    other.load_state_dict(probe.state_dict())
    for _ in range(100):
        probe.update(1.5)
        other.update(1.5)
    assert probe.value == other.value < 1e-3 * noisy
    scaled = ProbeVariance()
    for value in (-1.0, 1.0):
        scaled.update(value)
    assert scaled.value == math.inf
