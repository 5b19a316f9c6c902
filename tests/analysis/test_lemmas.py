"""The lemmas of the paper: what is a bound holds for every problem, what is only printed as one does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.analysis.lemmas import (
    InfluenceTerms,
    deviation_share,
    distance_to_span,
    influence_terms,
    polyak_lojasiewicz,
)
from sgoif.curvature.base import Spectrum
from sgoif.errors import SgoifError
from sgoif.stability.bounds import coverage

torch.set_num_threads(1)
SIZE, ANCHORS, QUERIES = 6, 4, 5
seeds = st.integers(0, 10_000)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Matrix:
    """A positive definite operator."""

    def __init__(self, values: Tensor, seed: int) -> None:
        q = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
        self.h, self.values = (q * values) @ q.mT, values

    def matvec(self, vectors: Tensor) -> Tensor:
        return vectors @ self.h

    def diagonal(self) -> Tensor:
        return self.h.diagonal()

    def spectrum(self) -> Spectrum:
        return Spectrum(float(self.values.min()), float(self.values.max()))


def problem(seed: int, rough: float, scale: float = 1.0) -> tuple[InfluenceTerms, Tensor]:
    """Lemma 1 for anchors solved up to a relative error `rough`; Î − I with everything written out."""
    matrix = Matrix(10 ** normal(SIZE, seed=seed), seed)
    wanted, queries = normal(ANCHORS, SIZE, seed=seed + 1), scale * normal(QUERIES, SIZE, seed=seed + 2)
    phi = torch.linalg.solve(matrix.h, wanted.T).T * (1 + rough * normal(ANCHORS, SIZE, seed=seed + 3))
    residual = (wanted - phi @ matrix.h).norm(dim=1)
    c = (1 - residual / (1.5 * residual.max())).clamp(0, 1)
    w = c / c.sum()
    exact = torch.linalg.solve(matrix.h, w @ wanted)
    found = influence_terms(matrix, matrix.spectrum().smallest, exact, wanted, phi, c, queries)
    error = torch.stack([sum(-w[a] * c[a] * phi[a] @ g for a in range(ANCHORS)) + exact @ g for g in queries])
    return found, error.abs()


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rough=st.floats(0.001, 2))
def test_the_error_of_a_gated_score_is_within_the_bound(seed: int, rough: float) -> None:
    found, error = problem(seed, rough)
    assert torch.allclose(found.seen, error)
    assert bool((error <= found.bound * (1 + 1e-9) + 1e-12).all())


def test_the_sum_that_the_paper_prints_is_no_bound() -> None:
    """Its last term multiplies two influences, so for small gradients it is smaller than what it is to bound."""
    found, _ = problem(0, 1e-6, scale=1e-9)
    assert bool((found.printed < found.seen).any())
    assert bool((found.seen <= found.bound).all())


def test_the_terms_are_those_of_the_lemma() -> None:
    matrix = Matrix(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), 0)
    wanted, g, phi = normal(2, 3, seed=1), normal(1, 3, seed=2), normal(2, 3, seed=3)
    c = torch.tensor([0.25, 0.75], dtype=torch.float64)
    x = torch.linalg.solve(matrix.h, c @ wanted)
    found = influence_terms(matrix, 1.0, x, wanted, phi, c, g)
    unit = phi / phi.norm(dim=1, keepdim=True)
    least, _, _, _ = torch.linalg.lstsq(unit.T, x.unsqueeze(1))
    ihvp = (x - unit.T @ least[:, 0]).norm() + (wanted - phi @ matrix.h).norm(dim=1).max()
    project = unit.T @ torch.linalg.inv(unit @ unit.T) @ unit
    cover = (g[0] - project @ g[0]).norm() / torch.linalg.eigvalsh(unit @ unit.T)[0].sqrt()
    mean, middle = 0.25**2 + 0.75**2, 0.25 * phi[0] + 0.75 * phi[1]
    w = max(abs(0.25 - mean), abs(0.75 - mean)) * g.norm() * (0.25 * phi[0].norm() + 0.75 * phi[1].norm())
    swing = max(1.0, float(phi.norm(dim=1).max())) * g.norm()
    assert float(found.ihvp[0]) == pytest.approx(float(g.norm() * ihvp), rel=1e-6)
    assert float(found.cover[0]) == pytest.approx(float(g.norm() * cover), rel=1e-6)
    assert float(found.modulation[0]) == pytest.approx(
        float(swing * ((1 - mean) * (g[0] @ middle).abs() + w)), rel=1e-6
    )
    assert torch.allclose(found.printed, found.ihvp + found.cover + found.modulation)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rows=st.integers(1, SIZE))
def test_the_distance_to_a_span_is_the_least_and_within_the_lemma(seed: int, rows: int) -> None:
    unit = nn.functional.normalize(normal(rows, SIZE, seed=seed), dim=1)
    x = normal(QUERIES, SIZE, seed=seed + 1)
    found = distance_to_span(x, unit)
    for _ in range(20):
        other = (x - normal(QUERIES, rows, seed=seed + 2) @ unit).norm(dim=1)
        assert bool((found <= other + 1e-9).all())
    assert torch.allclose(found, (x - torch.linalg.lstsq(unit.T, x.T).solution.T @ unit).norm(dim=1), atol=1e-9)
    assert bool((found <= found / max(coverage(unit), 1e-12) ** 0.5 + 1e-12).all())
    assert torch.equal(distance_to_span(x, unit[:0]), x.norm(dim=1))


def test_parallel_rows_span_what_one_of_them_does() -> None:
    row = normal(1, SIZE, seed=0)
    x = normal(2, SIZE, seed=1)
    assert torch.allclose(distance_to_span(x, torch.cat([row, 2 * row])), distance_to_span(x, row))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rest=st.floats(0, 0.2))
def test_large_errors_are_no_more_frequent_than_large_tolerances(seed: int, rest: float) -> None:
    """Errors of scores whose residuals lie within the tolerances of 50 refreshes, against equation 13."""
    matrix = Matrix(0.5 + torch.rand(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), seed)
    tolerances = torch.rand(50, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    residual = nn.functional.normalize(normal(50, SIZE, seed=seed + 2), dim=1) * tolerances.unsqueeze(1)
    g = normal(SIZE, seed=seed + 3)
    error = (torch.linalg.solve(matrix.h, residual.T).T @ g).abs() + rest
    for delta in (0.1, 0.5, 1.0):
        share = float((error > delta).double().mean())
        assert share <= deviation_share(tolerances, float(matrix.values.min()), float(g.norm()), delta, rest)
    assert deviation_share(tolerances, 1.0, 1.0, 2.0) == 0 < deviation_share(tolerances, 1.0, 1.0, 0.5) < 1


def descent(curvature: float, rate: float, steps: int) -> list[dict[str, float]]:
    """Gradient descent on L = curvature · w² / 2, an entry after every step."""
    w, history = 1.0, []
    for step in range(steps):
        gradient = curvature * w
        loss = curvature * w**2 / 2
        history.append({"step": step, "anchor_loss": loss, "gradient_power": gradient**2, "learning_rate": rate})
        w -= rate * gradient
    return history


def test_a_quadratic_has_its_curvature_for_mu_and_falls_as_it_is_predicted() -> None:
    ended = {"step": 300, "anchor_loss": 0.0, "gradient_power": 0.0, "learning_rate": 0.01}
    found = polyak_lojasiewicz([*descent(2.0, 0.01, 300), ended])
    assert found.mu == pytest.approx(2.0)
    assert found.seen == pytest.approx((1 - 2.0 * 0.01) ** (2 * 299))
    assert found.predicted == pytest.approx(math.exp(-2 * 2.0 * 0.01 * 299))
    assert found.predicted == pytest.approx(found.seen, rel=0.2)


def test_long_steps_leave_more_than_is_predicted() -> None:
    history = descent(2.0, 0.01, 100)
    for entry in history:
        entry["learning_rate"] = 0.1  # the run says it took ten times the steps it took
    found = polyak_lojasiewicz(history)
    assert found.predicted < found.seen / 100


@pytest.mark.parametrize(
    ("history", "match"),
    [([], "0 refreshes are too few"), (descent(1.0, 0.1, 2), "too few"), (descent(-1.0, 0.1, 5)[::-1], "never fell")],
)
def test_too_little_to_look_at_is_said(history: list[dict[str, float]], match: str) -> None:
    if match == "never fell":
        history = [{**entry, "anchor_loss": float(number)} for number, entry in enumerate(history)]
    with pytest.raises(SgoifError, match=match):
        polyak_lojasiewicz(history)


def watched(**options: Any) -> InfluenceMonitor:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(90, 5, generator=generator)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    monitor = InfluenceMonitor(model, optimizer, anchors=(x[60:], y[60:]), refresh_every=3, **options)
    for _ in range(12):
        with monitor.step(range(60)):
            nn.functional.cross_entropy(model(x[:60]), y[:60]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return monitor


def test_of_a_run_the_bound_holds_and_the_loss_falls() -> None:
    monitor = watched()
    found = monitor.influence_terms()
    assert len(found.seen) == 30
    assert bool((found.seen > 0).any())
    assert bool((found.seen <= found.bound * (1 + 1e-4) + 1e-6).all())
    entry = monitor.history[-1]
    g = monitor.gradients.of_anchors()[0]
    monitor.refresh()
    assert monitor.history[-1]["gradient_power"] == pytest.approx(float(g.mean(0).square().sum()), rel=1e-4)
    assert entry["learning_rate"] == 0.2
    course = polyak_lojasiewicz(monitor.history)
    assert 0 < course.mu < 10
    assert 0 < course.seen < 1


def test_before_the_first_step_there_is_nothing_to_measure() -> None:
    model = nn.Linear(5, 3)
    anchors = torch.randn(9, 5), torch.arange(9) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    match = "run at least one step first"
    with InfluenceMonitor(model, optimizer, anchors=anchors) as monitor, pytest.raises(SgoifError, match=match):
        monitor.influence_terms()
