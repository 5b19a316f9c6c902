"""Coverage of the group directions, and which anchors are refined."""

from __future__ import annotations

import pytest
import torch
from bank_cases import CPU, bank_of, monitored, problem, train

from sgoif.anchors.bank import AnchorBank
from sgoif.distributed.communicator import Communicator
from sgoif.engine import anchor_refresher
from sgoif.engine.refinement import doubtful_groups, refine
from sgoif.scoring.ledger import Ledger
from sgoif.solvers.base import Norms, Solution, row_norm
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.stability.bounds import coverage

SHORT = ConjugateGradient(iterations=5, sketch=0)


def test_coverage_is_that_of_the_group_directions_and_asks_for_an_early_refresh() -> None:
    inputs, labels = problem()
    covered = 0.1
    for factor in (1.0, 0.9, 1.1):
        torch.manual_seed(0)
        monitor = monitored((inputs[80:], labels[80:]), coverage_floor=factor * covered)
        train(monitor, inputs, labels, torch.arange(80), steps=1)
        if factor == 1.0:
            covered = monitor.history[-1]["coverage"]
            assert 0 < covered < 0.9
            assert covered == pytest.approx(coverage(monitor.directions.psi))
        else:
            assert monitor.schedule.urgent is (factor > 1)


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


def test_only_the_largest_percent_of_scores_can_be_doubtful() -> None:
    ledger = Ledger(2, 2, CPU, 200)
    scores = torch.linspace(5, 1, 200)
    groups = torch.zeros(200, 2)
    groups[:2, 0], groups[2:, 1] = scores[:2], scores[2:]
    values = torch.stack([scores] + [torch.zeros(200)] * 5, dim=1)
    everything, labels = torch.ones(200, dtype=torch.bool), torch.zeros(200, dtype=torch.int64)
    ledger.add(torch.arange(200), values, groups, groups.softmax(1), labels, everything, 1.0)
    assert doubtful_groups(ledger, torch.full((200,), 9.0)).tolist() == [0]


def seen(examples: int, scores: dict[int, float], groups: dict[int, int]) -> Ledger:
    """A ledger of so many examples; of those named, the score, all of it in one group of three."""
    ledger, rows = Ledger(3, 3, CPU, examples), torch.tensor(list(scores))
    found = torch.tensor(list(scores.values()))
    by_group = torch.zeros(len(rows), 3)
    by_group[torch.arange(len(rows)), torch.tensor([groups[row] for row in scores])] = found.abs() + 1
    values = torch.stack([found] + [torch.zeros(len(rows))] * 5, dim=1)
    sound, labels = torch.ones(len(rows), dtype=torch.bool), torch.zeros(len(rows), dtype=torch.int64)
    ledger.add(rows, values, by_group, by_group.softmax(1), labels, sound, 1.0)
    return ledger


def test_one_example_at_least_can_be_doubtful_and_none_that_was_never_seen() -> None:
    wide = torch.full((5,), 9.0)
    assert doubtful_groups(seen(5, {1: 0.5, 2: 0.25}, {1: 2, 2: 0}), wide).tolist() == [2]
    assert doubtful_groups(seen(5, {1: 0.0, 2: 0.0}, {1: 2, 2: 0}), wide).tolist() == [], "no score, no doubt"
    exact = torch.full((5,), 0.5)
    assert doubtful_groups(seen(5, {1: 0.5}, {1: 2}), exact).tolist() == [], "as wide as the score is not wider"


class Share(Communicator):
    """A rank whose part of twenty anchors is [5, 12); of the others it knows what they were."""

    def __init__(self, others: torch.Tensor) -> None:
        self.others = others

    def share(self, count: int) -> slice:
        return slice(5, 12)

    def gathered(self, rows: torch.Tensor) -> torch.Tensor:
        whole = self.others.clone()
        whole[5:12] = rows
        return whole


def test_a_rank_solves_the_anchors_of_its_own_part() -> None:
    bank, solution = refinable()
    bank.confidence[[4, 5, 11, 12]] = 0.5  # the first and the last that are its own, and their neighbours
    bank.communicator, bank.own = Share(bank.residual.clone()), slice(5, 12)
    before, gradient = bank.residual.clone(), bank.gradient[5:12]
    bank.phi = bank.phi[5:12]
    solution.residual = gradient.clone()
    rows = refine(bank, gradient, Identity(), solution, torch.tensor([0]), SHORT)
    assert sorted(rows.tolist()) == [5, 7, 9, 11]
    mine = torch.tensor([0, 2, 4, 6])
    torch.testing.assert_close(bank.phi[mine], gradient[mine])
    assert bank.phi[[1, 3, 5]].eq(0).all()
    others = [row for row in range(20) if row not in (5, 7, 9, 11)]
    assert torch.equal(bank.residual[others], before[others])
    assert bank.residual[rows].max() < 1e-4


def test_at_most_thirty_two_anchors_are_refined_the_most_trusted_first() -> None:
    bank = bank_of([0] * 40)
    bank.confidence = torch.linspace(0.9, 0.1, 40)
    bank.phi.zero_()
    bank.residual = row_norm(bank.gradient)
    norms = Norms(bank.residual, torch.zeros(40), bank.residual)
    solution = Solution(bank.phi.clone(), bank.gradient.clone(), norms, 7, 0)
    rows = refine(bank, bank.gradient, Identity(), solution, torch.tensor([0]), SHORT)
    assert rows.tolist() == list(range(32))
    assert solution.products == 7 + 32 * 3, "a look at where they start, a step, and a look at where it led"


class Worse:
    """Answers that are twice as far off as where they started."""

    def solve(self, operator, rhs, start):
        residual = 2 * rhs
        return Solution(start + 1, residual, Norms(row_norm(rhs), row_norm(start), row_norm(residual)), len(rhs), 1)


def refinable() -> tuple[AnchorBank, Solution]:
    """A bank of one group in which every other anchor is half trusted and none is solved."""
    bank = bank_of([0] * 20)
    bank.confidence = torch.tensor([0.0, 0.5]).repeat(10)
    bank.phi.zero_()
    bank.residual = row_norm(bank.gradient)
    norms = Norms(bank.residual, torch.zeros(20), bank.residual)
    return bank, Solution(bank.phi.clone(), bank.gradient.clone(), norms, 0, 0)


class Identity:
    def matvec(self, vectors):
        return vectors


def test_a_refinement_that_is_worse_is_not_taken() -> None:
    bank, solution = refinable()
    before, residual = bank.phi.clone(), bank.residual.clone()
    assert len(refine(bank, bank.gradient, Identity(), solution, torch.tensor([0]), Worse())) == 0
    assert torch.equal(bank.phi, before)
    assert torch.equal(bank.residual, residual)


def test_as_printed_those_are_refined_that_the_gate_costs_most() -> None:
    bank, solution = refinable()
    bank.phi = torch.ones_like(bank.phi) * torch.arange(20).unsqueeze(1)
    bank.residual = row_norm(bank.gradient - bank.phi)
    cost = (1 - bank.confidence) * row_norm(bank.phi)
    given = bank.gradient, Identity(), solution, torch.tensor([0]), SHORT
    rows = refine(bank, *given, outside=True)
    assert set(rows.tolist()) == set(range(1, 20)) | ({0} if bank.residual[0] == 0 else set())
    assert rows[:5].tolist() == torch.argsort(cost, descending=True)[:5].tolist()


@pytest.mark.parametrize("outside", [False, True])
def test_refined_anchors_go_through_the_gate_again(outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    inputs, labels = problem()
    labels[::7] = (labels[::7] + 1) % 3
    options = {"refresh_every": 1, "replace_every": 1, "replace_share": 0.0, "solver_steps": 1, "pass_quantile": 0.4}
    options |= {"refine": True, "refine_outside": outside, "tolerance_by_group": False}
    monitor = monitored((inputs[80:], labels[80:]), **options)
    refined = []

    def seen(*given, **named):
        rows = refine(*given, **named)
        refined.append(len(rows))
        return rows

    monkeypatch.setattr(anchor_refresher, "refine", seen)
    for _ in range(6):
        train(monitor, inputs, labels, torch.arange(80), steps=2)
        bank, tau = monitor.anchors, monitor.history[-1]["tau"]
        expected = (1 - bank.residual / tau).clamp(0, 1)
        torch.testing.assert_close(bank.confidence, expected)
    assert sum(refined) > 0
