"""Effects on held-out examples: intervals contain what training again gives, and first-order scores are derivatives."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from unlearning_cases import L2, extended, fitted_head, head_data, others, slow_optimum

from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.influence import Effect, first_order_influence, query_effects
from sgoif.tasks.unlearning.newton import fit_head, minimise
from sgoif.tasks.unlearning.removal import certify, remove_rows


def losses(data: HeadData, w: torch.Tensor) -> torch.Tensor:
    return cross_entropy(extended(data) @ w.view(data.classes, -1).T, data.labels, reduction="none")


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    exponent=st.floats(-3, 0),
    size=st.integers(1, 8),
    scale=st.sampled_from([0.1, 1.0, 8.0]),
)
def test_intervals_contain_what_training_again_gives(seed: int, exponent: float, size: int, scale: float) -> None:
    l2 = 10.0**exponent
    both = head_data(70, seed=seed)
    x = scale * both.features
    data, queries = HeadData(x[:40], both.labels[:40], 3), HeadData(x[40:], both.labels[40:], 3)
    fitted = fit_head(data, l2)
    rows = torch.arange(size)
    removed = remove_rows(fitted, rows, steps=1)
    again = minimise(fitted.objective.leaving_out(rows), tolerance=1e-13).w
    slack = certify(fitted.objective.leaving_out(rows), again).bound * float(queries.norms().max()) * 1.5
    found = query_effects(queries, fitted.w, removed.w, removed.certificate.bound)
    real = losses(queries, again) - losses(queries, fitted.w)
    assert bool((real >= found.low - slack).all())
    assert bool((real <= found.high + slack).all())
    assert found.mean_low - slack <= float(real.mean()) <= found.mean_high + slack
    then, now = queries.logits(fitted.w).argmax(1), queries.logits(again).argmax(1)
    assert bool(((now != then) == found.flipped)[found.certain].all())


def test_the_interval_of_the_mean_by_its_formula() -> None:
    fitted, queries, bound = fitted_head(), head_data(20, seed=5), 0.05
    after = fitted.w + 0.1
    found = query_effects(queries, fitted.w, after, bound)
    at = after.clone().requires_grad_(True)
    slope = torch.autograd.grad(losses(queries, at).mean(), at)[0].norm()
    change = float((losses(queries, after) - losses(queries, fitted.w)).mean())
    square = float(extended(queries).square().sum(1).mean())
    assert found.mean_low == pytest.approx(change - float(slope) * bound)
    assert found.mean_high == pytest.approx(change + float(slope) * bound + 0.25 * bound**2 * square)
    wide = query_effects(queries, fitted.w, after, 50.0)
    most = math.sqrt(2) * 50 * float(extended(queries).norm(dim=1).mean())
    assert wide.mean_high == pytest.approx(change + most)


def test_probabilities_predictions_and_flips_by_hand() -> None:
    queries = HeadData(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), 2, bias=False)
    before = torch.tensor([1.0, 0.0], dtype=torch.float64)  # logits 1, 0 and 2, 0
    after = torch.tensor([0.0, 0.5], dtype=torch.float64)  # logits 0, ½ and 0, 1
    found = query_effects(queries, before, after, 0.1)
    assert found.predicted_before.tolist() == [0, 0]
    assert found.predicted_after.tolist() == [1, 1]
    assert found.probabilities_after[1].tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert found.change.tolist() == pytest.approx(
        [math.log(1 + math.exp(0.5)) - math.log(1 + math.exp(-1)), math.log(1 + 1 / math.e) - math.log(1 + math.exp(2))]
    )
    assert found.certain.tolist() == [True, True]  # ½ and 1 apart, √2 · 0.1 · 1 and √2 · 0.1 · 2 needed
    assert query_effects(queries, before, after, 0.36).certain.tolist() == [False, False]
    summary = found.summary()
    assert (summary.queries, summary.flips, summary.certain_flips, summary.undecided) == (2, 2, 2, 0)
    shift = 1 / (1 + math.exp(-2)) - 1 / (1 + math.e)
    assert summary.largest_shift == pytest.approx(shift)
    spread = float(found.change.std()) / math.sqrt(2)
    assert summary.population_high - summary.high == pytest.approx(1.6448536 * spread)
    assert Effect(**asdict(summary)) == summary


def test_without_a_bound_left_there_is_no_interval() -> None:
    fitted, queries = fitted_head(), head_data(20, seed=5)
    found = query_effects(queries, fitted.w, fitted.w, 0.0)
    assert float(found.low.abs().max()) == float(found.high.abs().max()) == 0.0
    assert found.summary().largest_change == 0.0


def test_first_order_scores_are_derivatives() -> None:
    """Weighing an example down by ε moves the mean loss of the queries at the rate of its score."""
    fitted, queries = fitted_head(30), head_data(20, seed=5)
    scores = first_order_influence(fitted, queries)
    epsilon, x = 1e-4, extended(fitted.data)
    labels = fitted.data.labels

    def weighed(weights: torch.Tensor) -> torch.Tensor:
        w = fitted.w.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([w], max_iter=400, tolerance_grad=1e-13, tolerance_change=0, history_size=30)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            each = cross_entropy(x @ w.view(3, -1).T, labels, reduction="none")
            loss = (weights * each).sum() / weights.sum() + 0.5 * L2 * w.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return w.detach()

    for row in (0, 19):
        ends = []
        for sign in (1, -1):
            weights = torch.ones(30, dtype=torch.float64)
            weights[row] += sign * epsilon
            ends.append(float(losses(queries, weighed(weights)).mean()))
        slope = (ends[1] - ends[0]) / (2 * epsilon)  # per unit of weight taken away
        assert float(scores[row]) * 29 / 30 == pytest.approx(slope, rel=1e-4)


def test_first_order_scores_rank_deletions_as_training_again_does() -> None:
    fitted, queries = fitted_head(40, l2=0.05), head_data(50, seed=5)
    scores = first_order_influence(fitted, queries)
    real = []
    for row in range(0, 40, 4):
        star = slow_optimum(fitted.data, 0.05, others(40, torch.tensor([row])))
        real.append(float((losses(queries, star) - losses(queries, fitted.w)).mean()))
    correlation = torch.corrcoef(torch.stack([scores[::4], torch.tensor(real, dtype=torch.float64)]))[0, 1]
    assert correlation > 0.9
