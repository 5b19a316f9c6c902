"""The halves of a run differ by what independent observations would, or by more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.errors import StateError
from sgoif.scoring.autocorrelation import LEAST, SAMPLE, Autocorrelation, dependence_ratio
from sgoif.scoring.ledger import SUMS, Ledger

CPU = torch.device("cpu")


def sums_of(values: np.ndarray, weights: np.ndarray) -> torch.Tensor:
    """Σω, Σω², Σωx over the first axis."""
    wide = np.broadcast_to(weights[:, None], values.shape)
    return torch.from_numpy(np.stack([wide.sum(0), (wide**2).sum(0), (wide * values).sum(0)], 1))


def correlated(rho: float, length: int, examples: int, seed: int) -> np.ndarray:
    """Scores with autocorrelation rho and variance 1."""
    noise = np.random.default_rng(seed).normal(size=(length, examples))
    values = noise.copy()
    for step in range(1, length):
        values[step] = rho * values[step - 1] + np.sqrt(1 - rho**2) * noise[step]
    return values


def ledger_with(values: np.ndarray) -> Ledger:
    """A ledger that has seen each row of values once, with weight 1."""
    ledger = Ledger(1, 1, CPU, values.shape[1])
    for name, column in (
        ("count", np.full(values.shape[1], len(values))),
        ("weight", np.full(values.shape[1], len(values))),
        ("weight2", np.full(values.shape[1], len(values))),
        ("score", values.sum(0)),
        ("score2", (values**2).sum(0)),
    ):
        ledger.sums[:, SUMS.index(name)] = torch.from_numpy(column.astype(np.float32))
    return ledger


def test_the_ratio_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(3, 40)), rng.normal(2.0, 1.0, size=(5, 40))
    early, late = np.array([1.0, 2.0, 0.5]), np.array([1.0, 1.0, 1.0, 3.0, 2.0])
    variance = rng.uniform(0.5, 2.0, size=40)
    squares = expected = 0.0
    for i in range(40):
        apart = np.average(first[:, i], weights=early) - np.average(second[:, i], weights=late)
        squares += apart**2
        expected += variance[i] * ((early**2).sum() / early.sum() ** 2 + (late**2).sum() / late.sum() ** 2)
    found = dependence_ratio(sums_of(first, early), sums_of(second, late), torch.from_numpy(variance))
    assert found == pytest.approx(squares / expected)
    assert found > 1


def test_independent_observations_have_ratio_one_and_dependent_ones_theirs() -> None:
    length = 20
    for rho in (0.0, 0.5):
        values = correlated(rho, length, 4000, seed=1)
        half = np.ones(length // 2)
        found = dependence_ratio(
            sums_of(values[: length // 2], half), sums_of(values[length // 2 :], half), torch.ones(4000)
        )
        lags = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        signs = np.repeat([1.0, -1.0], length // 2) / (length // 2)
        theory = signs @ (rho**lags if rho else np.eye(length)) @ signs / (2 / (length // 2))
        assert found == pytest.approx(theory, rel=0.1)


def test_too_few_examples_say_nothing() -> None:
    one = torch.tensor([[1.0, 1.0, 5.0]]).expand(LEAST - 1, 3)
    assert dependence_ratio(one, -one + torch.tensor([2.0, 2.0, 0.0]), torch.ones(LEAST - 1)) == 1.0
    unseen = torch.zeros(100, 3)
    assert dependence_ratio(unseen, unseen, torch.ones(100)) == 1.0


@pytest.mark.parametrize("block", [1, 7, 64])
def test_a_note_lies_near_the_middle_of_every_run(block: int) -> None:
    autocorrelation, ledger = Autocorrelation(CPU), ledger_with(np.ones((1, 3)))
    for step in range(block, 3000, block):
        autocorrelation.observe(ledger, block)
        assert autocorrelation.count == step
        if step < 4 * block:
            continue
        ledger_now = ledger_with(np.ones((step, 3)))
        assert autocorrelation.ratio(ledger_now) == 1.0
        chosen = autocorrelation.steps[1] if autocorrelation.steps[1] <= 2 / 3 * step else autocorrelation.steps[0]
        assert 0.3 < chosen / step < 0.67, (step, autocorrelation.steps)


def test_a_run_that_drifts_is_seen_and_notes_survive_saving() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(64, 200)) + np.linspace(-2, 2, 64)[:, None]
    autocorrelation = Autocorrelation(CPU)
    for step in range(1, 65):
        autocorrelation.observe(ledger_with(values[:step]), 1)
    whole = ledger_with(values)
    found = autocorrelation.ratio(whole)
    assert found > 10
    again = Autocorrelation(CPU)
    again.load_state_dict(autocorrelation.state_dict())
    assert again.ratio(whole) == found
    again.forget()
    assert again.ratio(whole) == 1.0  # examples without observations in the first half do not count
    with pytest.raises(StateError, match="halves"):
        again.load_state_dict({**autocorrelation.state_dict(), "sums": torch.zeros(2, 3)})
    with pytest.raises(StateError, match="order"):
        again.load_state_dict({**autocorrelation.state_dict(), "moments": torch.tensor([1, 5, 3, 1, 1])})


def test_of_many_examples_a_sample_is_noted() -> None:
    count = 3 * SAMPLE + 5
    values = np.random.default_rng(3).normal(size=(4, count))
    values[2:] += 3.0
    autocorrelation = Autocorrelation(CPU)
    autocorrelation.observe(ledger_with(values[:2]), 2)
    autocorrelation.count = 4
    assert autocorrelation.strides[1] == 4
    assert autocorrelation.sums.shape == (2, SAMPLE, 3)
    assert autocorrelation.ratio(ledger_with(values)) > 1.5
