"""Early stopping: what counts as memorising, what as settled, and that the state survives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgoif.audit.stopping import EarlyStop, memorises, most_harmful


def history(weights: list[float], train: float = 0.1, anchor: float = 1.0) -> list[dict[str, float]]:
    return [{"step_weight": weight, "train_loss": train, "anchor_loss": anchor} for weight in weights]


@pytest.mark.parametrize(
    ("weights", "stops"),
    [
        ([0.01, 0.2, 0.5, 0.4, 0.3, 0.2], True),
        ([0.01, 0.2, 0.5, 0.4, 0.3], False),  # not yet below half
        ([0.01, 0.2, 0.5, 0.1, 0.3, 0.2], False),  # it recovered in between
        ([0.5, 0.2, 0.2, 0.2, 0.2], False),  # low but steady
        ([0.04, 0.03, 0.02, 0.01, 0.005], False),  # the model never knew anything
        ([0.5, 0.1], False),
        ([], False),
    ],
)
def test_memorising_is_a_lasting_fall_of_the_weight(weights: list[float], stops: bool) -> None:
    assert memorises(history(weights)) is stops
    assert EarlyStop(100).after_epoch(10, history(weights), np.arange(50.0)) == ("memorising" if stops else "")


def test_a_model_that_is_bad_on_both_sides_does_not_memorise() -> None:
    assert not memorises(history([0.01, 0.2, 0.5, 0.4, 0.3, 0.2], train=0.9))


def test_the_most_harmful_are_a_twentieth_and_never_the_unknown() -> None:
    influence = np.linspace(-1, 1, 1000)
    influence[990:] = np.nan
    assert most_harmful(influence).tolist() == list(range(940, 990))
    assert most_harmful(np.arange(5.0)).tolist() == [0, 1, 2, 3, 4]


def settle(stop: EarlyStop, steps: list[int], change: Any) -> list[str]:
    generator = np.random.default_rng(0)
    base = generator.normal(size=2000)
    return [stop.after_epoch(step, history([0.3, 0.4]), change(base, number)) for number, step in enumerate(steps)]


def test_a_ranking_that_stays_the_same_ends_the_final_phase() -> None:
    assert (
        settle(EarlyStop(100), list(range(60, 100, 5)), lambda base, _: base)
        == ["", "", "", "", "settled"] + ["settled"] * 3
    )
    assert settle(EarlyStop(100), [10, 20, 30, 40, 50, 60], lambda base, _: base) == [""] * 6


def test_a_ranking_that_moves_goes_on() -> None:
    def moving(base: Any, number: int) -> Any:
        return base + np.random.default_rng(number).normal(scale=0.5, size=len(base))

    assert settle(EarlyStop(100), [75, 80, 85, 90, 95], moving) == [""] * 5


def test_the_last_epoch_is_not_an_early_stop() -> None:
    assert settle(EarlyStop(100), [80, 85, 90, 100], lambda base, _: base)[-1] == ""


def test_the_state_goes_on_where_it_was() -> None:
    whole, first = EarlyStop(100), EarlyStop(100)
    settle(first, [70, 75, 80], lambda base, _: base)
    second = EarlyStop(100)
    second.load_state_dict(first.state_dict())
    settle(whole, [70, 75, 80], lambda base, _: base)
    for stop in (whole, second):
        assert settle(stop, [85], lambda base, _: base) == ["settled"]
