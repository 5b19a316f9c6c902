"""Gradients of the held-out examples against torch.func, and everything that a refresh must leave alone."""

from __future__ import annotations

import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import (
    CLASSES,
    LAYERS,
    Flipped,
    cross_entropy,
    func_gradients,
    join_blocks,
    make_inputs,
    make_labels,
    make_monitor,
    make_probe,
    relative_error,
    train_step,
)
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif import InfluenceMonitor
from sgoif.curvature.base import Factors
from sgoif.tracking.layers import WatchedLayer
from sgoif_bench.models import tiny_vit

ANCHORS = 10


def assert_bank(monitor: InfluenceMonitor, x: Tensor, y: Tensor, loss: Any = cross_entropy) -> None:
    monitor.model.eval()
    rows = monitor.anchors.positions()
    expected = join_blocks(monitor, func_gradients(monitor.model, x[rows], y[rows], loss))
    gradient, _, _ = monitor.gradients.of_anchors()
    for start, stop in zip(monitor.layout.offsets, monitor.layout.offsets[1:], strict=False):
        assert relative_error(gradient[:, start:stop], expected[:, start:stop]) < 1e-4


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_kind(name: str) -> None:
    model = make_probe(name)
    x, y = make_inputs(name, ANCHORS, 1), make_labels(ANCHORS, 1)
    monitor = make_monitor(model, (x, y), layers="all", anchor_batch=4)
    train_step(monitor, model, make_inputs(name, 6, 2), make_labels(6, 2))
    assert_bank(monitor, x, y)


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
def test_vision_transformer(layers: str) -> None:
    model = tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=2, heads=2)
    x, y = torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)
    monitor = make_monitor(model, (x, y), layers=layers)
    train_step(monitor, model, torch.randn(6, 2, 8, 8), make_labels(6))
    assert_bank(monitor, x, y)


def test_convolution_as_head() -> None:
    model = Flipped()
    x, y = torch.randn(ANCHORS, 2, 5, 5), make_labels(ANCHORS)
    monitor = make_monitor(model, (x, y), layers="all")
    train_step(monitor, model, torch.randn(6, 2, 5, 5), make_labels(6))
    assert_bank(monitor, x, y)


@pytest.mark.parametrize("layers", ["all", ["1", "head"], ["head"], ["1", "4"]])
def test_activations_that_overwrite_a_watched_output(layers: Any) -> None:
    """The gradient wanted is the one before an in-place ReLU, also where the overwritten layer is the first."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 5), nn.ReLU(True)
    )
    model.add_module("head", nn.Linear(5, CLASSES))
    x, y = torch.randn(ANCHORS, 2, 5, 5), make_labels(ANCHORS)
    monitor = make_monitor(model, (x, y), layers=layers)
    train_step(monitor, model, torch.randn(6, 2, 5, 5), make_labels(6))
    assert_bank(monitor, x, y)


class WithLoss(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        wanted = (torch.arange(CLASSES) == labels.unsqueeze(1)).to(logits.dtype)
        return (logits - wanted).square().sum(1).mean()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.3), nn.MultiMarginLoss(), WithLoss()])
def test_the_given_loss_is_the_loss_of_the_anchors(loss: nn.Module) -> None:
    model = make_probe("conv")
    x, y = make_inputs("conv", ANCHORS, 1), make_labels(ANCHORS, 1)
    monitor = make_monitor(model, (x, y), layers="all", loss=loss)
    labels = make_labels(6, 2)
    train_step(monitor, model, make_inputs("conv", 6, 2), labels, loss=loss, target=labels)
    assert_bank(monitor, x, y, loss)


def test_output_that_the_loss_does_not_use() -> None:
    """A second head beside the logits takes no part in the loss of the anchors: its gradient is zero."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(4, 2)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            other = self.other(x)
            return self.head(x), other

    model = TwoHeads()
    monitor = make_monitor(model, (torch.randn(ANCHORS, 4), make_labels(ANCHORS)), layers="all")
    x, y = torch.randn(6, 4), make_labels(6)
    with monitor.step(torch.arange(6)):
        logits, other = model(x)
        (F.cross_entropy(logits, y) + other.square().mean()).backward()
    start, stop = monitor.layout.offsets[:2]
    assert [layer.name for layer in monitor.layers] == ["other", "head"]
    gradient, _, _ = monitor.gradients.of_anchors()
    assert not gradient[:, start:stop].any()
    assert gradient[:, stop:].any()


def test_a_hold_out_that_does_not_stack() -> None:
    """Mappings as inputs reach the model as keyword arguments."""

    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, CLASSES)

        def forward(self, pixels: Tensor, shift: Tensor) -> Tensor:
            return self.head(pixels + shift)

    class Items(Dataset[Any]):
        def __init__(self) -> None:
            self.pixels, self.shift = torch.randn(ANCHORS, 4), torch.randn(ANCHORS, 4)
            self.labels = make_labels(ANCHORS)

        def __len__(self) -> int:
            return ANCHORS

        def __getitem__(self, i: int) -> Any:
            return {"pixels": self.pixels[i], "shift": self.shift[i]}, int(self.labels[i])

    model, items = Keyword(), Items()
    monitor = make_monitor(model, items)  # type: ignore[arg-type]
    with monitor.step(torch.arange(6)):
        F.cross_entropy(model(torch.randn(6, 4), torch.randn(6, 4)), make_labels(6)).backward()
    a = torch.cat([items.pixels + items.shift, torch.ones(ANCHORS, 1)], dim=1)
    delta = torch.softmax(model.head(items.pixels + items.shift), 1) - F.one_hot(items.labels, CLASSES)
    expected = (delta.unsqueeze(2) * a.unsqueeze(1)).flatten(1).detach()
    assert relative_error(monitor.gradients.of_anchors()[0], expected[monitor.anchors.positions()].double()) < 1e-4


# --- what a refresh leaves alone ------------------------------------------------------------------------------------


class Drawing(Dataset[Any]):
    """A hold-out that draws from every global generator, is not a tensor, and does not fit the cache."""

    def __init__(self) -> None:
        self.x, self.y = torch.randn(ANCHORS, 2, 6, 6), make_labels(ANCHORS)

    def __len__(self) -> int:
        return ANCHORS

    def __getitem__(self, i: int) -> Any:
        noise = torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002
        return self.x[i] + 0.01 * float(noise), int(self.y[i])


def mixed_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, CLASSES),
    )


def random_states() -> tuple[Any, ...]:
    name, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), name, keys.tolist(), position, random.getstate()


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_refresh_leaves_no_trace(layers: str, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cached:
        monkeypatch.setattr("sgoif.anchors.bank.CACHE_BYTES", 0)
    model, holdout = mixed_model(), Drawing()
    before_making = random_states()
    monitor = make_monitor(model, holdout, layers=layers)  # type: ignore[arg-type]
    assert random_states() == before_making, "making a monitor drew from a global generator"
    train_step(monitor, model, torch.randn(6, 2, 6, 6), make_labels(6))

    model[1].eval()  # modes differ from module to module and must all survive
    model[3].train()
    F.cross_entropy(model(torch.randn(6, 2, 6, 6)), make_labels(6)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    required = [p.requires_grad for p in model.parameters()]
    states, bank = random_states(), monitor.anchors.phi.clone()
    with torch.no_grad():
        model[-1].weight.mul_(1.5)
        tensors["7.weight"] *= 1.5

    monitor.refresh()

    assert not torch.equal(monitor.anchors.phi, bank), "the refresh saw nothing of the new weights"
    assert random_states() == states
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == required
    assert all(torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters())
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled()


def test_a_failing_refresh_leaves_no_trace() -> None:
    """An error inside the anchor pass must not leave the model in evaluation mode or gradients switched on or off."""
    model = mixed_model()
    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 6, 6), make_labels(ANCHORS)), layers="all")
    train_step(monitor, model, torch.randn(6, 2, 6, 6), make_labels(6))
    modes, states = [m.training for m in model.modules()], random_states()

    def broken(logits: Tensor, labels: Tensor) -> Tensor:
        raise KeyError("broken")

    kept, monitor.gradients.loss = monitor.loss, broken
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            with pytest.raises(KeyError):
                monitor.refresh()
            assert torch.is_grad_enabled() is enabled
    assert [m.training for m in model.modules()] == modes
    assert random_states() == states
    monitor.gradients.loss = kept
    train_step(monitor, model, torch.randn(6, 2, 6, 6), make_labels(6))
    assert monitor.last is not None
    assert bool(torch.isfinite(monitor.last.influence).all())


def test_factors_of_one_layer_are_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a convolution are many times as large as what it computes from."""
    model = tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=2, heads=2)
    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)), layers="all")
    train_step(monitor, model, torch.randn(6, 2, 8, 8), make_labels(6))
    alive: list[weakref.ref[Factors]] = []
    most, factors = [0], WatchedLayer.factors

    def counted(layer: WatchedLayer, inputs: Tensor, delta: Tensor) -> Factors:
        found = factors(layer, inputs, delta)
        most[0] = max(most[0], sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(found))
        return found

    monkeypatch.setattr(WatchedLayer, "factors", counted)
    monitor.gradients.of_anchors()
    assert len(alive) > 5
    assert most[0] <= 1
