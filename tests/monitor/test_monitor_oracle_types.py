"""Scores against per-example gradients, for memory formats, number types and compiled models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import (
    CLASSES,
    assert_every_layer,
    assert_scores,
    copied_gradients,
    expected_scores,
    func_gradients,
    make_labels,
    make_monitor,
    relative_error,
    train_step,
)
from oracle_cases import ANCHORS, BATCH, SmallResNet, images, small_net
from torch import Tensor

from sgoif.errors import StepError
from sgoif_bench.models import digits_net


@pytest.mark.parametrize("training", [True, False])
def test_channels_last(training: bool) -> None:
    model = SmallResNet().to(memory_format=torch.channels_last).train(training)  # type: ignore[call-overload]

    def batch(seed: int) -> Tensor:
        x = torch.randn(BATCH, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
        return x.to(memory_format=torch.channels_last)

    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)), layers="all")
    train_step(monitor, model, batch(1), make_labels(BATCH), update=True)
    x, y = batch(2), make_labels(BATCH, 5)
    train_step(monitor, model, x, y)
    names = [layer.name for layer in monitor.layers]
    oracle = copied_gradients(model, names, x, y) if training else func_gradients(model, x, y)
    assert_scores(monitor, oracle)
    assert_every_layer(monitor, lambda: train_step(monitor, model, x, y), oracle)


def test_float64_model() -> None:
    model = small_net().double()
    monitor = make_monitor(model, (images(ANCHORS, 0).double(), make_labels(ANCHORS)), layers="all")
    for seed in (1, 2):
        x, y = images(BATCH, seed).double(), make_labels(BATCH, seed)
        train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


def correlation(found: Tensor, expected: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([found.double().flatten(), expected.flatten()]))[0, 1])


@pytest.mark.parametrize("outside", [False, True], ids=["inside_step", "around_step"])
@pytest.mark.parametrize("layers", ["head", "all"])
def test_autocast_bfloat16(layers: str, outside: bool) -> None:
    torch.manual_seed(1)
    model = SmallResNet().train(False)
    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)), layers=layers)
    for seed in (1, 2):
        x, y = torch.randn(24, 2, 8, 8, generator=torch.Generator().manual_seed(seed)), make_labels(24, seed)
        with torch.autocast("cpu", torch.bfloat16, enabled=outside), monitor.step(torch.arange(24)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
    influence, groups = expected_scores(monitor, func_gradients(model, x, y))
    assert correlation(monitor.last.influence, influence) > 0.99
    assert correlation(monitor.last.groups, groups) > 0.99
    assert relative_error(monitor.last.influence, influence) < 3e-2
    assert relative_error(monitor.last.groups, groups) < 3e-2
    assert monitor.anchors.phi.dtype == monitor.directions.psi.dtype == torch.float32


def test_work_after_the_step_ignores_autocast() -> None:
    """Autocast around the whole step must not reach the engine's own products: a float32 head gives float32 scores."""
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)))
    with torch.autocast("cpu", torch.bfloat16):
        for seed in (1, 2):
            x, y = images(BATCH, seed), make_labels(BATCH, seed)
            with monitor.step(torch.arange(BATCH)), torch.autocast("cpu", enabled=False):
                F.cross_entropy(model(x), y).backward()
        assert monitor.last is not None  # scores what was collected
    assert_scores(monitor, func_gradients(model, x, y))


def test_float16_with_loss_scale_and_large_directions() -> None:
    """Directions of size 1e6 and a loss scale of 2**16 overflow float16 unless they are brought down first."""
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all")
    x, y = images(24, 1), make_labels(24, 1)

    def run() -> None:
        with monitor.step(torch.arange(24)):
            with torch.autocast("cpu", torch.float16):
                logits = model(x)
            (F.cross_entropy(logits.float(), y) * 2.0**16).backward()

    run()
    monitor.directions.psi = monitor.directions.psi * (1e6 / monitor.directions.psi.abs().max())
    monitor.directions.lift()
    run()
    influence, _ = expected_scores(monitor, func_gradients(model, x, y))
    assert bool(torch.isfinite(monitor.last.influence).all())
    assert relative_error(monitor.last.influence, influence) < 3e-2


def compiled_steps(wrap: str, given: str, backend: str, layers: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    torch.compiler.reset()
    model = digits_net(CLASSES, width=4).eval()  # dropout would draw other masks in a compiled graph
    if wrap == "module":
        model.compile(backend=backend)
        run: Any = model
    else:
        run = torch.compile(model, backend=backend) if wrap == "function" else model
    watched = run if given == "compiled" else model
    monitor = make_monitor(watched, (torch.randn(ANCHORS, 1, 8, 8), make_labels(ANCHORS)), layers=layers)
    for seed in range(3):
        x = torch.randn(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        train_step(monitor, run, x, make_labels(BATCH, seed), update=True)
    return monitor.last.influence, monitor.last.groups


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize(("wrap", "given"), [("function", "compiled"), ("function", "plain"), ("module", "plain")])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_model_scores_like_the_eager_one(wrap: str, given: str, backend: str, layers: str) -> None:
    for found, expected in zip(
        compiled_steps(wrap, given, backend, layers), compiled_steps("none", "plain", backend, layers), strict=True
    ):
        assert relative_error(found, expected.double()) < 1e-4


@pytest.mark.parametrize("given", ["compiled", "plain"])
def test_model_that_was_compiled_and_run_before(given: str) -> None:
    """Compiled code does not notice hooks that come after its first run: the step says so, and the advice works."""
    torch.compiler.reset()
    model = digits_net(CLASSES, width=4).eval()
    run = torch.compile(model, backend="aot_eager")
    x, y = torch.randn(BATCH, 1, 8, 8), make_labels(BATCH)
    F.cross_entropy(run(x), y).backward()
    model.zero_grad()
    watched = run if given == "compiled" else model
    monitor = make_monitor(watched, (torch.randn(ANCHORS, 1, 8, 8), make_labels(ANCHORS)), layers="all")
    with pytest.raises(StepError, match=r"call torch\.compiler\.reset\(\) once"):
        train_step(monitor, run, x, y)
    torch.compiler.reset()
    train_step(monitor, run, x, y)
    assert_scores(monitor, func_gradients(model, x, y))
