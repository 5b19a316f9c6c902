"""Scores by group and gradient norms of a head without forming gradients, against formed ones."""

from __future__ import annotations

import pytest
import torch

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


CASES = [(1, 3, 7, False), (4, 3, 7, False), (9, 3, 7, False), (4, 3, 2, True)]


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
    torch.testing.assert_close(gradient_norms(given), given.gradient().flatten(1).norm(dim=1))


@pytest.mark.parametrize("positions", [1, 4])
def test_gradients_of_single_examples_are_not_formed(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = factors(positions, 3, 7)

    def forbidden(self: Factors) -> torch.Tensor:
        raise AssertionError("a per-example gradient was formed")

    monkeypatch.setattr(Factors, "gradient", forbidden)
    group_scores(given, torch.randn(6, 3, 7, dtype=torch.float64))
    gradient_norms(given)


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
