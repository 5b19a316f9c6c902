"""Now or later: measurements over limits, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.influence import Effect
from sgoif.tasks.unlearning.priority import Limits, Size, Verdict, judge
from sgoif.tasks.unlearning.removal import Certificate

CALM = Effect(
    queries=100,
    loss=0.5,
    change=1e-4,
    low=0.9e-4,
    high=1.1e-4,
    population_low=-1e-3,
    population_high=1e-3,
    flips=0,
    certain_flips=0,
    undecided=0,
    largest_shift=0.001,
)
EXACT = Certificate(gradient_norm=1e-9, rounding=0.0, l2=1e-3, left=900)
FEW = Size(examples=1, total=1000, of_class=1, class_total=50, class_name="'cat'")


def verdict(effect: Effect = CALM, certificate: Certificate = EXACT, own: Size = FEW, summed: Size = FEW) -> Verdict:
    return judge(Limits(), effect, certificate, 10.0, own, summed)


def test_a_calm_request_can_wait_and_every_measurement_is_told() -> None:
    found = verdict()
    assert found.when == "can wait"
    assert found.urgency == pytest.approx(0.2)  # one example of the fifty of its class, where a tenth may go
    assert len(found.reasons) == 5
    assert "'cat'" in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "urgency", "reason"),
    [
        ({"effect": replace(CALM, flips=3)}, 3.0, "3 predictions of 100 held-out ones change (limit 0)"),
        ({"effect": replace(CALM, flips=1)}, 1.0, "1 prediction of 100 held-out ones changes"),
        ({"effect": replace(CALM, low=-0.02)}, 4.0, "the held-out loss changes by at most 0.04 of itself (limit 0.01)"),
        ({"effect": replace(CALM, loss=0.0)}, 1e9, "loss"),
        ({"certificate": replace(EXACT, gradient_norm=5e-6)}, 5.0, "a typical logit is within 0.05"),
        ({"own": replace(FEW, examples=30)}, 3.0, "it deletes 30 examples of 1,000 (limit 0.01 of them)"),
        ({"own": replace(FEW, of_class=20)}, 4.0, "it deletes 20 examples of the 50 of class 'cat' (limit 0.1"),
    ],
)
def test_each_measurement_alone_makes_it_urgent(changes: dict[str, Any], urgency: float, reason: str) -> None:
    found = verdict(**changes)
    assert found.when == "now"
    assert found.urgency == pytest.approx(urgency)
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_small_requests_add_up_but_the_sum_is_no_more_urgent_than_needed() -> None:
    found = verdict(summed=replace(FEW, examples=300))
    assert (found.when, found.urgency) == ("now", 1.0)
    assert "since the network was trained it makes 300 examples of 1,000" in found.reasons[0]


def test_the_strongest_reason_comes_first() -> None:
    found = verdict(effect=replace(CALM, flips=2, high=0.05), own=replace(FEW, examples=15))
    assert [reason.split()[0] for reason in found.reasons] == ["the", "2", "it"]  # 10, 2 and 1.5 times the limit


def test_limits_of_the_user_count() -> None:
    strict = Limits(logits=1e-9, flips=5, loss=0.5, share=0.5, class_share=0.5)
    found = judge(strict, replace(CALM, flips=5), EXACT, 10.0, FEW, FEW, "training")
    assert found.when == "now"
    assert found.reasons == (
        "after the removal a typical logit is within 1e-05 of that of the retrained head (limit 1e-09)",
    )


@pytest.mark.parametrize(
    "wrong",
    [{"logits": 0}, {"loss": -1}, {"share": float("nan")}, {"class_share": "x"}, {"flips": -1}, {"flips": 0.5}],
)
def test_limits_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"the limit {next(iter(wrong))}="):
        Limits(**wrong)


def test_a_size_names_the_class_that_loses_the_largest_share_and_not_an_empty_one() -> None:
    found = Size.of(np.array([4, 3, 0]), np.array([100, 10, 0]), ["cat", "dog", "nobody"])
    assert found == Size(examples=7, total=110, of_class=3, class_total=10, class_name="'dog'")
