"""Scores against per-example gradients, for losses reduced, scaled, accumulated and of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import (
    CLASSES,
    assert_scores,
    func_gradients,
    make_labels,
    make_monitor,
    train_step,
)
from oracle_cases import ANCHORS, BATCH, images, small_net
from torch import Tensor, nn

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": F.cross_entropy,
    "sum": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "loss_scale": lambda z, y: F.cross_entropy(z, y) * 2.0**16,
    "half": lambda z, y: F.cross_entropy(z, y) / 2,
}


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_scales(name: str, layers: str, with_target: bool) -> None:
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers=layers)
    for seed in (1, 2):
        x, y = images(BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y, loss=REDUCTIONS[name], target=y if with_target else None)
    assert_scores(monitor, func_gradients(model, x, y))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_given_reduction_with_label_smoothing(reduction: str) -> None:
    model = small_net()
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2, reduction=reduction)
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all", reduction=reduction)
    for seed in (1, 2):
        x, y = images(BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y, loss=smooth)
    single = nn.CrossEntropyLoss(label_smoothing=0.2, reduction="none")
    assert_scores(monitor, func_gradients(model, x, y, single))
    assert torch.equal(monitor.last.label, y)


def test_smoothed_loss_is_read_from_the_given_loss() -> None:
    """With `loss=` and `target=` the scale is found for any loss, whatever it was multiplied with."""
    model = small_net()
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all", loss=smooth)
    for seed in (1, 2):
        x, y = images(BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y, loss=lambda z, t: 1024 * smooth(z, t), target=y)
    single = nn.CrossEntropyLoss(label_smoothing=0.2, reduction="none")
    assert_scores(monitor, func_gradients(model, x, y, single))
    torch.testing.assert_close(monitor.last.loss, single(model(x), y).detach())


def test_gradient_accumulation() -> None:
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all")
    x, y = images(2 * BATCH, 1), make_labels(2 * BATCH, 1)
    for number in range(2):
        for part in torch.arange(2 * BATCH).chunk(2):
            with monitor.step(part):
                (F.cross_entropy(model(x[part]), y[part]) / 2).backward()
            if number == 1:
                assert torch.equal(monitor.last.index, part)
                assert_scores(monitor, func_gradients(model, x[part], y[part]))
        if number == 0:
            monitor.optimizer.step()
            monitor.optimizer.zero_grad()
    accumulated = [p.grad for p in model.parameters()]
    plain = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    torch.testing.assert_close(accumulated, list(plain))


def test_two_backward_passes_of_one_forward_pass() -> None:
    """Losses that are differentiated one after the other add up, as their gradients do."""
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all")
    train_step(monitor, model, images(BATCH, 1), make_labels(BATCH, 1))
    x, y = images(BATCH, 2), make_labels(BATCH, 2)
    with monitor.step(torch.arange(BATCH)):
        loss = F.cross_entropy(model(x), y)
        (0.25 * loss).backward(retain_graph=True)
        (0.75 * loss).backward()
    assert_scores(monitor, func_gradients(model, x, y))


class OneAgainstAll(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, CLASSES).to(logits.dtype))


class SquaredError(nn.MSELoss):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits, F.one_hot(labels, CLASSES).to(logits.dtype))


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, CLASSES).to(logits.dtype)).square().sum(1).mean()


def unreduced_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, CLASSES).to(logits.dtype)).square().sum(1)


# torch cannot vmap one_hot below grad, so the oracles spell the same losses in their own way.
def one_against_all_of_one(logits: Tensor, labels: Tensor) -> Tensor:
    sign = torch.where(torch.arange(CLASSES) == labels.unsqueeze(1), 1.0, -1.0)
    return F.softplus(-sign * logits).mean(1)


def squared_error_of_one(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - (torch.arange(CLASSES) == labels.unsqueeze(1)).to(logits.dtype)).square().sum(1)


# name -> loss, loss of a batch as trained, loss of one example
CUSTOM: dict[str, tuple[Any, Any, Any]] = {
    "module": (OneAgainstAll(), OneAgainstAll(), one_against_all_of_one),
    "module_with_reduction": (SquaredError(), SquaredError(), squared_error_of_one),
    "function": (squared_error, squared_error, squared_error_of_one),
    "function_without_reduction": (unreduced_error, squared_error, squared_error_of_one),
    "multi_margin": (nn.MultiMarginLoss(), nn.MultiMarginLoss(), nn.MultiMarginLoss(reduction="none")),
}


@pytest.mark.parametrize("factor", [1.0, 512.0])
@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("name", CUSTOM)
def test_custom_loss(name: str, layers: str, factor: float) -> None:
    given, trained, single = CUSTOM[name]
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers=layers, loss=given)
    for seed in (1, 2):
        x, y = images(BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y, loss=lambda z, t: factor * trained(z, t), target=y)
    assert_scores(monitor, func_gradients(model, x, y, single))
    torch.testing.assert_close(monitor.last.loss, single(model(x), y).detach())
