"""Models that are moved or converted while they train."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from mistake_cases import BATCH, TRAINING, Loop, same, tokens

from sgoif import InfluenceMonitor
from sgoif.errors import (
    DeviceError,
    StepError,
)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_model_that_runs_elsewhere_than_the_monitor(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loop.state()
    monkeypatch.setattr(loop.monitor.pipeline, "device", torch.device("cuda", 1))
    with pytest.raises(DeviceError, match=r"ran on cpu but the monitor was made on cuda:1.*Move the model first"):
        loop.attempt(lambda: loop.loss().backward())
    monkeypatch.undo()
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_that_is_converted_while_it_trains(layers: str, dtype: torch.dtype) -> None:
    loop, alone = Loop(steps=3, layers=layers, refresh_every=1), Loop(steps=3, layers=layers, refresh_every=1)
    alone.monitor.close()
    for each in (loop, alone):
        each.model.to(dtype)
        each.inputs = each.inputs.to(dtype)
    said = rf"converted from torch.float32 to {dtype} .*Convert it back with model.to\(torch.float32\), or make a new"
    with pytest.raises(StepError, match=said):
        loop.attempt(lambda: loop.loss().backward())
    with pytest.raises(StepError, match=said):
        loop.monitor.refresh()
    # The gradients of the step that could not be scored are there, and training goes on beside the monitor.
    alone.loss().backward()
    for _ in range(3):
        for each in (loop, alone):
            each.optimizer.step()
            each.optimizer.zero_grad()
            each.loss().backward()
    for mine, other in zip(loop.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    loop.model.float()
    loop.inputs = loop.inputs.float()
    loop.optimizer.zero_grad()
    loop.assert_goes_on()


def test_a_model_of_whole_numbers_may_be_converted_while_it_trains() -> None:
    loop = Loop()
    loop.inputs, loop.model = torch.randint(0, 10, (80, 2)), tokens()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    anchors = (loop.inputs[TRAINING:], loop.labels[TRAINING:])
    loop.monitor = InfluenceMonitor(loop.model, loop.optimizer, anchors, layers="all", refresh_every=1)
    loop.step()
    loop.model.double()
    loop.assert_goes_on()


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_model_that_is_moved_while_it_trains(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(steps=3, layers=layers)
    loop.monitor.flush()
    before, weights = loop.state(), deepcopy(loop.model.state_dict())
    # The weights stay the same objects, as they do between devices that hold something.
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    loop.model.to("meta")
    with pytest.raises(DeviceError, match=r"moved from cpu to meta .*still on cpu\. Move it back, or make a new"):
        loop.monitor.refresh()
    if layers == "all":  # their responses are asked for in the middle of the forward pass
        with pytest.raises(DeviceError, match=r"moved from cpu to meta"):
            loop.attempt(lambda: loop.model(torch.empty(BATCH, 5, device="meta")))
    loop.model.to_empty(device="cpu").load_state_dict(weights)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_other_errors_of_a_converted_model_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(steps=3)
    loop.model.double()

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("the device is full")

    monkeypatch.setattr(loop.model, "forward", full)
    with pytest.raises(torch.OutOfMemoryError, match="the device is full"):
        loop.monitor.refresh()
