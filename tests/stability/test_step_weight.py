"""What the scores of a step count for."""

from __future__ import annotations

import math

import pytest
import torch

from sgoif.stability.step_weight import StepWeight

CPU = torch.device("cpu")
GUESS = math.log(10)


def weighed(loss: float, guess: float = GUESS, *, applied: bool = True) -> StepWeight:
    weight = StepWeight(guess, CPU, applied=applied)
    weight.observe(torch.tensor([1.0, 3.0]))
    weight.refresh(torch.tensor([loss, loss]))
    return weight


@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0, 2.0])
def test_the_weight_is_the_fourth_power_of_what_is_known(loss: float) -> None:
    assert weighed(loss).factor == pytest.approx((1 - loss / GUESS) ** 4)


@pytest.mark.parametrize("loss", [GUESS, 50.0])
def test_a_model_that_knows_nothing_leaves_a_little(loss: float) -> None:
    assert weighed(loss).factor == pytest.approx(0.05**4)


def test_a_guess_below_one_is_a_guess_all_the_same() -> None:
    assert weighed(0.1, guess=0.4).factor == pytest.approx(0.75**4)


def test_before_the_first_refresh_nothing_is_known() -> None:
    weight = StepWeight(GUESS, CPU, applied=True)
    assert weight.factor == pytest.approx(0.05**4)
    assert math.isnan(weight.train_loss)
    again = StepWeight(GUESS, CPU, applied=True)
    again.load_state_dict(weight.state_dict())
    assert math.isnan(again.anchor_loss)
    again.refresh(torch.tensor([0.3]))
    assert math.isnan(again.train_loss), "no batch was observed"
    assert again.factor == weighed(0.3).factor
    assert StepWeight(GUESS, torch.device("meta"), applied=True).loss.device.type == "meta"


@pytest.mark.parametrize(("power", "expected"), [(0.0, 1.0), (1.0, 4.0), (-2.0, 1 / 16)])
def test_a_power_of_the_proxy_weighs_steps_against_the_first_refresh(power: float, expected: float) -> None:
    weight = weighed(0.3, applied=False)
    if power:
        weight.proxy_power = power
    assert weight.factor == 1, "before the first"
    for beta, times in ((0.5, 1.0), (2.0, expected), (1e9, 1000.0**power), (1e-9, 1e-3**power)):
        weight.observe_proxy(beta)
        assert weight.factor == pytest.approx(times)


def test_where_it_is_not_applied_or_there_is_no_guess_all_steps_count_alike() -> None:
    assert weighed(0.3, applied=False).factor == 1
    assert weighed(0.3, guess=-1.0).factor == weighed(0.3, guess=0.0).factor == 1
    assert weighed(0.3, applied=False).weight == weighed(0.3).weight, "it is recorded all the same"


def test_what_is_not_finite_leaves_the_weight_as_it_is() -> None:
    weight = weighed(0.3)
    before = weight.factor
    weight.refresh(torch.tensor([math.nan, 1.0]))
    assert weight.factor == before
    assert weight.train_loss == pytest.approx(2)


def test_it_goes_on_from_its_state() -> None:
    one, other = weighed(0.3), StepWeight(GUESS, CPU, applied=True)
    other.load_state_dict(one.state_dict())
    assert other.factor == one.factor
    assert torch.equal(other.loss, one.loss)
