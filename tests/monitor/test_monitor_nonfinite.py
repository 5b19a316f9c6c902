"""Losses and gradients that are not finite: which end a step, which are skipped, which pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mistake_cases import BATCH, CLASSES, Loop, same
from torch import nn

from sgoif.errors import (
    NonFiniteError,
)
from sgoif.scoring.finite_check import FiniteCheck


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["loss", "input", "one input"])
def test_a_loss_that_is_not_finite(loop: Loop, value: float, where: str) -> None:
    before = loop.state()
    inputs = loop.inputs[loop.rows()].clone()
    inputs[: {"loss": 0, "input": BATCH, "one input": 1}[where]] = value

    def broken() -> None:
        loss = nn.functional.cross_entropy(loop.model(inputs), loop.labels[loop.rows()])
        (loss * (value if where == "loss" else 1)).backward()

    with pytest.raises(NonFiniteError, match=r"infinite or not a number.*learning rate.*skip_nonfinite=True"):
        loop.attempt(broken)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [True, False])
def test_skip_nonfinite_drops_the_step(value: float, first: bool) -> None:
    """The scores of a run with a broken step in it are those of the run without that step."""
    options = {"refresh_every": 2, "curvature_every": 1, "skip_nonfinite": True}
    loop, plain = Loop(steps=0 if first else 3, **options), Loop(steps=0 if first else 3, **options)
    with loop.monitor.step(loop.rows()):
        (loop.loss() * value).backward()
    loop.optimizer.zero_grad()
    assert loop.monitor.scores()["n_observations"].sum() == (0 if first else 3 * BATCH)
    plain.monitor.scores()  # scores what waits, as above
    differ = same(loop.state(), plain.state())
    assert [key for key in differ if key not in ("steps", "schedule.counts", "history")] == []
    for _ in range(3):
        loop.assert_goes_on()
    table = loop.monitor.scores()
    assert table["n_observations"].max() == 1
    assert np.isfinite(table["influence"]).all()


def half_loop(**options) -> Loop:
    """A loop under float16 autocast, as mixed precision with a loss scaler runs."""

    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 8), nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return self.head(torch.relu(self.body(x)))

    class HalfLoop(Loop):
        def loss(self, rows: torch.Tensor | None = None) -> torch.Tensor:
            rows = self.rows() if rows is None else rows
            logits = self.model(self.inputs[rows])
            assert logits.dtype == torch.float16
            return nn.functional.cross_entropy(logits.float(), self.labels[rows])

    torch.manual_seed(1)
    return HalfLoop(Autocast(), **options)


def test_the_overflow_of_a_loss_scaler_passes_quietly() -> None:
    loop = half_loop()
    assert loop.monitor.last is not None
    seen = loop.monitor.scores()["n_observations"].sum()
    with loop.monitor.step(loop.rows()):
        (loop.loss() * 2.0**40).backward()  # every gradient overflows in float16
    assert loop.monitor.scores()["n_observations"].sum() == seen, "nothing of it is scored"
    loop.assert_goes_on()


def test_a_partial_overflow_does_not_scale_the_other_examples_up() -> None:
    plain, loop = half_loop(refresh_every=100), half_loop(refresh_every=100)
    with plain.monitor.step(plain.rows()):
        (plain.loss() * 1024).backward()
    with loop.monitor.step(loop.rows()):
        logits = loop.model(loop.inputs[loop.rows()])
        losses = nn.functional.cross_entropy(logits.float(), loop.labels[loop.rows()], reduction="none")
        (losses * torch.tensor([1e9] + [1024.0] * (BATCH - 1)) / BATCH).sum().backward()
    expected, found = plain.monitor.last.influence, loop.monitor.last.influence
    assert not bool(found[0].isfinite())
    torch.testing.assert_close(found[1:], expected[1:], rtol=2e-2, atol=1e-4)


def test_only_float16_may_overflow() -> None:
    check, logits = FiniteCheck(torch.device("cpu"), skip=False), torch.zeros(2, 3)
    infinite = torch.full((2, 3), float("inf"))
    check.note(logits, infinite.half())
    FiniteCheck(torch.device("cpu"), skip=True).note(logits, infinite)
    for delta in (
        infinite,
        infinite.bfloat16(),
        torch.full((2, 3), float("nan")),
        torch.full((2, 3), float("nan")).half(),
    ):
        with pytest.raises(NonFiniteError):
            check.note(logits, delta)
    with pytest.raises(NonFiniteError):
        check.note(infinite, torch.zeros(2, 3))
    with pytest.raises(NonFiniteError):
        check.note(torch.tensor([[float("inf"), float("-inf")]]), torch.zeros(1, 2))


def test_large_but_finite_numbers_are_not_mistaken_for_infinite_ones() -> None:
    check = FiniteCheck(torch.device("cpu"), skip=False)
    check.note(torch.full((512, 1000), 1e30), torch.full((512, 1000), 1e-3))
