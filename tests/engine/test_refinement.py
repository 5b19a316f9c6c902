"""Coverage of the group directions, and which anchors are refined."""

from __future__ import annotations

import pytest
import torch
from bank_cases import CPU, bank_of, monitored, problem, train

from sgoif.engine.refinement import doubtful_groups, refine
from sgoif.scoring.ledger import Ledger
from sgoif.solvers.base import Norms, Solution
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.stability.bounds import coverage

SHORT = ConjugateGradient(iterations=5, sketch=0)


def test_coverage_is_that_of_the_group_directions_and_asks_for_an_early_refresh() -> None:
    inputs, labels = problem()
    for floor, urgent in ((2.0, True), (-1.0, False)):
        monitor = monitored((inputs[80:], labels[80:]), coverage_floor=floor)
        train(monitor, inputs, labels, torch.arange(80), steps=1)
        assert monitor.history[-1]["coverage"] == pytest.approx(coverage(monitor.directions.psi))
        assert monitor.schedule.urgent is urgent


def test_refinement_touches_half_trusted_anchors_of_doubtful_groups_only() -> None:
    bank = bank_of([0, 1] * 10)
    matrix = torch.randn(6, 6)
    matrix = matrix @ matrix.T + torch.eye(6)

    class Dense:
        def matvec(self, vectors):
            return vectors @ matrix

        def diagonal(self):
            return matrix.diagonal()

    bank.confidence = torch.tensor([0.0, 0.5, 1.0, 0.7]).repeat_interleave(2).repeat(3)[:20]  # both groups have each
    bank.phi.zero_()
    residual = bank.gradient.clone()
    bank.residual = residual.norm(dim=1)
    before = bank.phi.clone()
    norms = Norms(bank.residual, torch.zeros(20), bank.residual)
    solution = Solution(bank.phi.clone(), residual, norms, 0, 0)
    rows = refine(bank, bank.gradient, Dense(), solution, torch.tensor([1]), SHORT)
    expected = ((bank.confidence > 0) & (bank.confidence < 1) & (bank.member_groups == 1)).nonzero().squeeze(1)
    assert sorted(rows.tolist()) == expected.tolist()
    assert len(rows)
    for row in range(len(bank)):
        if row in rows:
            exact = torch.linalg.solve(matrix, bank.gradient[row])
            error = (bank.phi[row] - exact).norm() / exact.norm()
            assert float(error) < 0.1
            torch.testing.assert_close(solution.residual[row].norm(), bank.residual[row])
            true = bank.gradient[row] - bank.phi[row] @ matrix
            torch.testing.assert_close(bank.residual[row], true.norm(), atol=1e-3, rtol=1e-2)
        else:
            assert torch.equal(bank.phi[row], before[row])
    assert solution.products > 0
    assert len(refine(bank, bank.gradient, Dense(), solution, torch.tensor([], dtype=torch.int64), SHORT)) == 0


def test_doubtful_groups_are_those_behind_large_scores_with_wide_intervals() -> None:
    ledger = Ledger(3, 3, CPU, 300)
    scores = torch.zeros(300)
    scores[[5, 6, 7]] = torch.tensor([4.0, -3.0, 2.0])
    groups = torch.zeros(300, 3)
    groups[5, 2], groups[6, 0], groups[7, 1] = 4.0, 1.0, 2.0
    values = torch.stack([scores] + [torch.zeros(300)] * 5, dim=1)
    everything, labels = torch.ones(300, dtype=torch.bool), torch.zeros(300, dtype=torch.int64)
    ledger.add(torch.arange(300), values, groups, groups.softmax(1), labels, everything, 1.0)
    width = torch.full((300,), 5.0)
    assert doubtful_groups(ledger, width).tolist() == [0, 1, 2]
    width[6] = 1.0
    assert doubtful_groups(ledger, width).tolist() == [1, 2]
    assert doubtful_groups(ledger, torch.zeros(300)).tolist() == []
    assert doubtful_groups(Ledger(3, 3, CPU, 5), torch.ones(5)).tolist() == [], "nothing seen, nothing doubtful"
