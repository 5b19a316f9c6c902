"""The halves of a run differ by what independent observations would, or by more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.distributed.communicator import Communicator
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
    for damage in ({"sums": torch.zeros(2, 3)}, {"sums": None}, {"moments": None}):
        with pytest.raises(StateError, match="halves"):
            again.load_state_dict({**autocorrelation.state_dict(), **damage})
    with pytest.raises(StateError, match="order"):
        again.load_state_dict({**autocorrelation.state_dict(), "moments": torch.tensor([1, 5, 3, 1, 1])})


def test_of_many_examples_a_sample_is_noted() -> None:
    count = 3 * SAMPLE + 5
    values = np.random.default_rng(3).normal(size=(4, count))
    values[2:] += 3.0
    autocorrelation, early, whole = Autocorrelation(CPU), ledger_with(values[:2]), ledger_with(values)
    autocorrelation.observe(early, 2)
    autocorrelation.count = 4
    assert autocorrelation.strides[1] == 4
    assert autocorrelation.sums.shape == (2, SAMPLE, 3)
    first, total = (torch.stack([ledger.column(name) for name in ("weight", "weight2", "score")], 1)[::4][:SAMPLE]
                    for ledger in (early, whole))  # fmt: skip
    assert torch.equal(autocorrelation.sums[1, : len(first)], first)
    expected = dependence_ratio(first, total - first, whole.variance()[::4][:SAMPLE])
    assert autocorrelation.ratio(whole) == pytest.approx(expected)
    assert expected > 1.5


def test_examples_without_both_halves_or_a_variance_do_not_count() -> None:
    """Of 30 that are known, with weights below one and scores below zero; the others would say a lot."""
    rng = np.random.default_rng(4)
    weights = np.full(2, 0.5)
    first = sums_of(rng.normal(-3, 1, size=(2, LEAST + 3)), weights)
    second = sums_of(rng.normal(-5, 1, size=(2, LEAST + 3)), weights)
    variance = torch.ones(LEAST + 3, dtype=torch.float64)
    first[LEAST], second[LEAST + 1], variance[LEAST + 2] = 0, 0, torch.nan
    known = slice(LEAST)
    apart = first[known, 2] - second[known, 2]  # the weights of a half add up to one
    assert dependence_ratio(first, second, variance) == pytest.approx(float(apart.square().mean()))


def test_notes_are_taken_at_steps_that_double_and_the_earlier_serves_when_the_later_is_too_late() -> None:
    autocorrelation = Autocorrelation(CPU)
    rng = np.random.default_rng(5)
    values = rng.normal(size=(6, 60)) + np.arange(6)[:, None]
    assert autocorrelation.ratio(ledger_with(values)) == 1.0, "nothing was noted"
    for step in range(1, 7):
        autocorrelation.observe(ledger_with(values[:step]), 1)
        assert autocorrelation.steps == {1: [0, 1], 2: [1, 2], 3: [1, 2]}.get(step, [2, 4])
    one = np.ones(6)
    variance = ledger_with(values).variance()
    for length, cut in ((6, 4), (5, 2)):  # 4 is two thirds of 6, and more of 5
        autocorrelation.count = length
        expected = dependence_ratio(sums_of(values[:cut], one[:cut]), sums_of(values[cut:], one[cut:]), variance)
        assert autocorrelation.ratio(ledger_with(values)) == pytest.approx(expected, rel=1e-4)


def test_ranks_add_their_notes_up() -> None:
    class Two(Communicator):
        def total(self, values: torch.Tensor) -> torch.Tensor:
            return 2 * values

    autocorrelation = Autocorrelation(CPU)
    for step in (1, 2, 4):
        autocorrelation.observe(ledger_with(np.ones((step, 3))), step - autocorrelation.count)
    merged = autocorrelation.merged(Two())
    assert (merged.count, merged.steps, merged.strides) == (4, [2, 4], [1, 1])
    assert torch.equal(merged.sums, 2 * autocorrelation.sums)
    merged.observe(ledger_with(np.ones((8, 3))), 4)
    assert autocorrelation.steps == [2, 4], "the notes of this rank are its own"


def test_notes_lie_where_the_ledger_does() -> None:
    there = Autocorrelation(torch.device("meta"))
    there.load_state_dict(Autocorrelation(CPU).state_dict())
    assert there.sums.device.type == there.merged(Communicator()).sums.device.type == "meta"


def test_of_a_ledger_without_examples_nothing_is_known() -> None:
    ledger = Ledger(1, 2, CPU)
    notes = Autocorrelation(CPU)
    notes.observe(ledger, 1)
    assert notes.ratio(ledger) == 1.0
