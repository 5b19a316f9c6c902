"""Steps whose loss or gradient is not finite: noticed, dropped, or left to the loss scaler."""

from __future__ import annotations

import pytest
import torch

from sgoif.errors import NonFiniteError
from sgoif.scoring.finite_check import FiniteCheck

CPU = torch.device("cpu")
SOUND = torch.ones(2, 3)


def with_one(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    broken = torch.ones(2, 3, dtype=dtype)
    broken[1, 2] = value
    return broken


class Arrival:
    """A number on its way to the host that arrives when told to."""

    def __init__(self) -> None:
        self.sent: torch.Tensor | None = None
        self.there = False

    def send(self, value: torch.Tensor) -> None:
        self.sent = value.clone()

    def arrived(self) -> torch.Tensor | None:
        return self.sent if self.there else None


def late() -> tuple[FiniteCheck, Arrival]:
    """A check as on a GPU, where nothing is known at once."""
    check, arrival = FiniteCheck(CPU, skip=False), Arrival()
    check.at_once, check.arrival = False, arrival  # type: ignore[assignment]
    return check, arrival


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_step_that_is_not_finite_raises_once(value: float) -> None:
    for logits, delta in ((with_one(value), SOUND), (SOUND, with_one(value)), (with_one(value), with_one(-value))):
        check = FiniteCheck(CPU, skip=False)
        check.note(SOUND, SOUND)
        with pytest.raises(NonFiniteError, match="infinite or not a number"):
            check.note(logits, delta)
        check.note(SOUND, SOUND)


def test_large_numbers_in_half_precision_are_finite() -> None:
    large = torch.full((300, 300), 6e4, dtype=torch.float16)
    FiniteCheck(CPU, skip=False).note(large, large)
    FiniteCheck(CPU, skip=False).note(-large, -large)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_an_overflow_of_the_loss_scaler_passes_in_float16_alone(value: float) -> None:
    check = FiniteCheck(CPU, skip=False)
    check.note(SOUND, with_one(value, torch.float16))
    with pytest.raises(NonFiniteError):
        check.note(SOUND, with_one(torch.nan, torch.float16))
    for logits, delta in ((SOUND, with_one(value, torch.bfloat16)), (with_one(value, torch.float16), SOUND)):
        with pytest.raises(NonFiniteError):
            check.note(logits, delta)


def test_where_steps_are_skipped_they_are_named_and_nothing_is_raised() -> None:
    check = FiniteCheck(CPU, skip=True)
    for logits, delta in ((with_one(torch.nan), SOUND), (SOUND, with_one(torch.inf))):
        check.note(logits, delta)
        assert check.to_skip(logits, delta) is True
        assert FiniteCheck(CPU, skip=False).to_skip(logits, delta) is False
    assert check.to_skip(SOUND, SOUND) is False
    check.raise_if_set()


def test_where_the_device_runs_behind_the_error_comes_with_the_flag() -> None:
    check, arrival = late()
    check.note(SOUND, SOUND)
    check.send()
    arrival.there = True
    check.poll()
    arrival.there = False
    check.note(with_one(torch.nan), SOUND)
    check.note(SOUND, SOUND)  # what was seen is not forgotten
    check.send()
    check.poll()
    arrival.there = True
    with pytest.raises(NonFiniteError):
        check.poll()
    check.raise_if_set()


def test_on_the_host_nothing_is_sent() -> None:
    check, arrival = late()
    check.at_once = True
    check.send()
    assert arrival.sent is None


def test_a_flag_that_was_not_raised_yet_is_in_the_state() -> None:
    check, _ = late()
    check.note(with_one(torch.nan), SOUND)
    other, _ = late()
    other.load_state_dict(check.state_dict())
    with pytest.raises(NonFiniteError):
        other.raise_if_set()
    assert list(check.state_dict()) == ["_nonfinite"], "the name in saved states"


def test_the_flag_is_where_the_steps_are() -> None:
    check = FiniteCheck(torch.device("meta"), skip=False)
    assert check.flag.device.type == "meta"
    assert check.at_once is False
