"""Scores by group and gradient norms of a head without forming gradients, against formed ones."""

from __future__ import annotations

import pytest
import torch

from sgoif.core.objective import Columns
from sgoif.curvature.base import Factors
from sgoif.scoring import influence as scoring
from sgoif.scoring.influence import gradient_norms, group_scores
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.score_scaling import ScoreScaling


def factors(positions: int, rows: int, cols: int, elementwise: bool = False) -> Factors:
    generator = torch.Generator().manual_seed(positions)
    inputs = (rows, cols) if elementwise else (cols,)
    return Factors(
        torch.randn(5, positions, *inputs, generator=generator, dtype=torch.float64),
        torch.randn(5, positions, rows, generator=generator, dtype=torch.float64),
        elementwise,
    )


CASES = [
    (1, 3, 7, False), (2, 3, 7, False), (4, 3, 7, False), (9, 3, 7, False), (4, 3, 2, True), (1, 3, 2, True),
]  # fmt: skip


@pytest.mark.parametrize(("positions", "rows", "cols", "elementwise"), CASES)
@pytest.mark.parametrize("entries", [1, 50, 2**24])
def test_group_scores(
    positions: int, rows: int, cols: int, elementwise: bool, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "RESPONSE_ENTRIES", entries)
    given = factors(positions, rows, cols, elementwise)
    directions = torch.randn(6, rows, cols, dtype=torch.float64)
    expected = torch.einsum("brc,grc->bg", given.gradient(), directions)
    torch.testing.assert_close(group_scores(given, directions), expected)


@pytest.mark.parametrize(("positions", "rows", "cols", "elementwise"), CASES)
def test_gradient_norms(positions: int, rows: int, cols: int, elementwise: bool) -> None:
    given = factors(positions, rows, cols, elementwise)
    for unit in (1.0, 1e-3):
        small = Factors(unit * given.inputs, given.delta, elementwise)
        torch.testing.assert_close(gradient_norms(small), small.gradient().flatten(1).norm(dim=1))


@pytest.mark.parametrize("positions", [1, 4])
def test_gradients_of_single_examples_are_not_formed(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = factors(positions, 3, 7)

    def forbidden(self: Factors) -> torch.Tensor:
        raise AssertionError("a per-example gradient was formed")

    monkeypatch.setattr(Factors, "gradient", forbidden)
    group_scores(given, torch.randn(6, 3, 7, dtype=torch.float64))
    gradient_norms(given)


@pytest.mark.parametrize(
    ("positions", "rows", "cols", "formed"), [(4, 3, 5, True), (4, 4, 4, False), (4, 3, 6, False), (5, 3, 8, True)]
)
def test_gradients_are_formed_only_where_pairs_of_positions_are_more(
    positions: int, rows: int, cols: int, formed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, gradient = [], Factors.gradient
    monkeypatch.setattr(Factors, "gradient", lambda self: looks.append(1) or gradient(self))
    given = factors(positions, rows, cols)
    found = gradient_norms(given)
    assert bool(looks) is formed, (positions**2, rows * cols)
    torch.testing.assert_close(found, gradient(given).flatten(1).norm(dim=1))


def some_scores(groups: torch.Tensor, share: torch.Tensor | None = None) -> scoring.StepScores:
    """Scores of two examples of three classes, with influences that are the sums over groups."""
    margins = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    seen = Columns(torch.tensor([2, 0]), torch.tensor([1, 1]), *margins, torch.eye(3)[:2], torch.zeros(2))
    return scoring.StepScores.of(torch.arange(2), groups.sum(1), groups, torch.tensor([0.5, 0.7]), seen, share)


def test_what_is_remembered_of_a_step_are_its_formulas() -> None:
    cpu, groups = torch.device("cpu"), torch.tensor([[2.0, -1.0, -4.0], [3.0, 0.5, 0.0]])
    support, error, share = torch.tensor([0.9, 0.2, 0.4]), torch.tensor([0.6, 0.8]), torch.tensor([1.0, 0.25])
    for temperature in (None, 2.0):
        ledger, scaling = Ledger(3, 3, cpu, 2), ScoreScaling(temperature, cpu)
        scoring.remember(ledger, scaling, some_scores(groups, share), support, 0.5, 1.0, error)
        raw = groups.sum(1)
        q = float(raw.abs().mean()) if temperature else 1.0
        expected = {
            "score": 2.0 * torch.tanh(raw / (2.0 * q)) if temperature else raw,
            "support": (groups.abs() * support).sum(1) / groups.abs().sum(1),
            "margin": torch.tensor([0.1, 0.2]),
            "logit_margin": torch.tensor([0.3, 0.4]),
            "loss": torch.tensor([0.5, 0.7]),
            "bound": error / q,
        }
        for name, column in expected.items():
            torch.testing.assert_close(ledger.mean(name), column, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(ledger.column("weight"), 0.5 * share)
        by_group = 2.0 * torch.tanh(groups / (2.0 * q)) if temperature else groups
        torch.testing.assert_close(ledger.groups.mean, by_group)


def test_scores_without_a_bound_have_an_infinite_one_and_those_that_are_not_finite_none() -> None:
    cpu, groups = torch.device("cpu"), torch.tensor([[2.0, -1.0, torch.inf], [3.0, 0.5, 0.0]])
    ledger = Ledger(3, 3, cpu, 2)
    scoring.remember(ledger, ScoreScaling(None, cpu), some_scores(groups), torch.ones(3), 1.0, 1.0)
    assert ledger.column("count").tolist() == [0.0, 1.0]
    assert ledger.mean("bound")[1] == torch.inf


def test_the_tail_of_scores_keeps_nothing_of_the_others() -> None:
    share = torch.tensor([1.0, 0.25])
    for given in (share, None):
        tail = some_scores(torch.ones(2, 3), given).tail(1)
        assert (tail.index.tolist(), tail.groups.shape, tail.probabilities.shape) == ([1], (1, 3), (1, 3))
        assert tail.influence.untyped_storage().nbytes() == 4
        assert tail.share is None if given is None else tail.share.tolist() == [0.25]


@pytest.mark.parametrize("help_weight", [0.0, 0.25, 0.5, 1.0])
def test_help_to_a_group_counts_by_its_weight(help_weight: float) -> None:
    cpu = torch.device("cpu")
    ledger, groups = Ledger(3, 3, cpu, 2), torch.tensor([[2.0, -1.0, -4.0], [-3.0, 0.5, 0.0]])
    blank = torch.zeros(2)
    label, share = torch.zeros(2, dtype=torch.int64), torch.full((2, 3), 1 / 3)
    scores = scoring.StepScores(torch.arange(2), groups.sum(1), groups, blank, blank, blank, label, share)
    scoring.remember(ledger, ScoreScaling(None, cpu), scores, torch.ones(3), 1.0, help_weight)
    expected = groups.clamp_min(0).sum(1) + help_weight * groups.clamp_max(0).sum(1)
    torch.testing.assert_close(ledger.mean("score"), expected)
