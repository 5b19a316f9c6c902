"""Raw scores of a step against dot products with torch.func per-example gradients of the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_cases import (
    CLASSES,
    LAYERS,
    Flipped,
    Probe,
    TokenHead,
    assert_every_layer,
    assert_scores,
    copied_gradients,
    expected_scores,
    func_gradients,
    join_blocks,
    make_inputs,
    make_labels,
    make_monitor,
    make_probe,
    relative_error,
    train_step,
)
from oracle_cases import ANCHORS, BATCH, SmallResNet, images, small_net
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.curvature import Factors
from sgoif.engine import setup as engine_setup
from sgoif.engine.curvature_learner import CURVATURE_EXAMPLES
from sgoif.tracking.layers import watch
from sgoif_bench.models import ResNet9, tiny_vit


def watch_probe(name: str, layers: Any, training: bool) -> tuple[InfluenceMonitor, Tensor, Tensor]:
    """A monitor of the probe of one layer after a first step, and the batch of the second one, already scored."""
    model = make_probe(name).train(training)
    monitor = make_monitor(model, (make_inputs(name, ANCHORS, 1), make_labels(ANCHORS, 1)), layers=layers)
    train_step(monitor, model, make_inputs(name, BATCH, 2), make_labels(BATCH, 2), update=True)
    x, y = make_inputs(name, BATCH, 3), make_labels(BATCH, 3)
    train_step(monitor, model, x, y)
    return monitor, x, y


@pytest.mark.parametrize("watched", [["layer"], ["layer", "head"]], ids=["as_head", "below_head"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_kind(name: str, watched: list[str]) -> None:
    monitor, x, y = watch_probe(name, watched, training=not name.startswith("batchnorm"))
    assert [layer.name for layer in monitor.layers] == watched
    assert_scores(monitor, func_gradients(monitor.model, x, y))


@pytest.mark.parametrize("watched", [["layer"], ["layer", "head"]], ids=["as_head", "below_head"])
@pytest.mark.parametrize("name", ["batchnorm1d", "batchnorm1d_sequence", "batchnorm2d"])
def test_batch_norm_in_training(name: str, watched: list[str]) -> None:
    monitor, x, y = watch_probe(name, watched, training=True)
    assert_scores(monitor, copied_gradients(monitor.model, watched, x, y))


def test_the_two_oracles_agree() -> None:
    model = make_probe("conv_groups")
    x, y = make_inputs("conv_groups", BATCH), make_labels(BATCH)
    copies, single = copied_gradients(model, ["layer", "head"], x, y), func_gradients(model, x, y)
    assert copies.keys() == single.keys()
    for name, value in copies.items():
        torch.testing.assert_close(value, single[name])


@pytest.mark.parametrize(
    ("make", "shape"), [(TokenHead, (5, 4)), (Flipped, (2, 5, 5))], ids=["linear_on_tokens", "convolution"]
)
def test_head_with_positions(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = make()
    monitor = make_monitor(model, (torch.randn(ANCHORS, *shape), make_labels(ANCHORS)))
    x, y = torch.randn(BATCH, *shape), make_labels(BATCH)
    train_step(monitor, model, x, y)
    assert len(monitor.layers) == 1
    assert_scores(monitor, func_gradients(model, x, y))


def test_bare_linear_model() -> None:
    model = nn.Linear(4, CLASSES)
    monitor = make_monitor(model, (torch.randn(ANCHORS, 4), make_labels(ANCHORS)))
    x, y = torch.randn(BATCH, 4), make_labels(BATCH)
    train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


LAST_STAGE = ["down", "norm", "conv", "neck", "head"]


EVERYTHING = ["stem.0", "stem.1", *LAST_STAGE]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("head", ["head"]),
        ("last-stage", LAST_STAGE),
        ("all", EVERYTHING),
        ("stem.*", ["stem.0", "stem.1"]),
        (["*.0", "norm"], ["stem.0", "norm"]),
    ],
    ids=["head", "last_stage", "all", "pattern", "patterns"],
)
def test_choice_of_layers(layers: Any, expected: list[str], training: bool) -> None:
    model = SmallResNet().train(training)
    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)), layers=layers)
    assert [layer.name for layer in monitor.layers] == expected
    train_step(monitor, model, torch.randn(BATCH, 2, 8, 8), make_labels(BATCH), update=True)
    x, y = torch.randn(BATCH, 2, 8, 8), make_labels(BATCH, 5)
    train_step(monitor, model, x, y)
    oracle = copied_gradients(model, expected, x, y) if training else func_gradients(model, x, y)
    assert_scores(monitor, oracle)
    if layers == "all":
        assert_every_layer(monitor, lambda: train_step(monitor, model, x, y), oracle)


def test_resnet9_all_layers() -> None:
    model = ResNet9(2, CLASSES)
    monitor = make_monitor(
        model, (torch.randn(4, 2, 8, 8), make_labels(4)), layers="all", curvature="diagonal", projection=8
    )
    x, y = torch.randn(4, 2, 8, 8), make_labels(4, 5)
    train_step(monitor, model, x, y)
    train_step(monitor, model, x, y)
    names = [layer.name for layer in monitor.layers]
    assert len(names) == 17
    assert sum(layer.projection is not None for layer in monitor.layers) == 7
    assert_scores(monitor, copied_gradients(model, names, x, y))
    model.eval()
    train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
def test_vision_transformer(layers: str) -> None:
    model = tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=2, heads=2)
    monitor = make_monitor(model, (torch.randn(ANCHORS, 2, 8, 8), make_labels(ANCHORS)), layers=layers)
    x, y = torch.randn(BATCH, 2, 8, 8), make_labels(BATCH, 5)
    train_step(monitor, model, x, y, update=True)
    train_step(monitor, model, x, y)
    oracle = func_gradients(model, x, y)
    assert_scores(monitor, oracle)
    if layers == "all":
        assert len(monitor.layers) == 15
        assert_every_layer(monitor, lambda: train_step(monitor, model, x, y), oracle)


def test_torch_transformer_layer() -> None:
    """Attention projects without calling its linear layers as modules; everything that is called is scored."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x).mean(1))

    model = Encoder()
    monitor = make_monitor(model, (torch.randn(ANCHORS, 5, 8), make_labels(ANCHORS)), layers="all")
    names = {layer.name for layer in monitor.layers}
    assert names == {"encoder.linear1", "encoder.linear2", "encoder.norm1", "encoder.norm2", "head"}
    x, y = torch.randn(BATCH, 5, 8), make_labels(BATCH, 5)
    train_step(monitor, model, x, y, update=True)
    train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


# --- projected layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["linear", "linear_sequence_no_bias", "conv_stride", "conv_groups", "embedding_padding"]
)
@pytest.mark.parametrize("watched", [["layer"], ["layer", "head"]], ids=["as_head", "below_head"])
def test_projected_layers(name: str, watched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "HEAD_BLOCK", 8)
    monkeypatch.setattr(engine_setup, "BODY_BLOCK", 8)
    model = make_probe(name)
    monitor = make_monitor(
        model, (make_inputs(name, ANCHORS, 1), make_labels(ANCHORS, 1)), layers=watched, projection=2
    )
    assert all((block.rows, block.cols) == (2, 2) for block in monitor.layout.blocks)
    for seed in (2, 3):
        x, y = make_inputs(name, BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y)
    gradients = func_gradients(model, x, y)
    assert_scores(monitor, gradients)
    # The same number from the lifted direction and the whole gradient.
    whole = torch.zeros(BATCH, dtype=torch.float64)
    for layer, block in zip(monitor.layers, monitor.layout.split(monitor.directions.psi.sum(0)), strict=True):
        lifted = layer.parameters_from(layer.lift(block))
        for local, direction in lifted.items():
            whole -= (gradients[f"{layer.name}.{local}"] * direction).flatten(1).sum(1)
    assert relative_error(monitor.last.influence, whole) < 1e-4


def test_projections_have_orthonormal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "BODY_BLOCK", 8)
    monitor = make_monitor(small_net(), (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all", projection=4)
    projected = [layer.projection for layer in monitor.layers if layer.projection is not None]
    assert len(projected) == 2
    for projection in projected:
        for side in (projection.out, projection.inp):
            torch.testing.assert_close(side @ side.T, torch.eye(len(side)))
    again = make_monitor(small_net(), (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all", projection=4)
    assert all(
        torch.equal(a.projection.inp, b.projection.inp)
        for a, b in zip(monitor.layers, again.layers, strict=True)
        if a.projection is not None and b.projection is not None
    )


# --- the cheap way is the way taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["head", "all"])
def test_no_gradient_of_an_example_is_formed(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Probe(nn.Conv2d(2, 4, 3), 36)
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers=layers)
    train_step(monitor, model, images(BATCH, 1), make_labels(BATCH, 1))

    def refuse(self: Factors) -> Tensor:
        raise AssertionError("a per-example gradient was formed")

    monkeypatch.setattr(Factors, "gradient", refuse)
    for seed in range(8):  # curvature updates among them
        train_step(monitor, model, images(BATCH, seed), make_labels(BATCH, seed))
    assert monitor.last is not None
    with pytest.raises(AssertionError, match="was formed"):
        monitor.refresh()


# --- what the curvature is made from ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_curvature_sees_the_same_examples_in_every_layer(training: bool) -> None:
    """The Fisher of a batch larger than what is looked at below the head, against the dense matrix."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, CLASSES)).train(training)
    monitor = make_monitor(
        model, (torch.randn(ANCHORS, 4), make_labels(ANCHORS)), layers="all", curvature="fisher", damping=0.5
    )
    x, y = torch.randn(100, 4), make_labels(100)
    train_step(monitor, model, x, y)
    oracle = copied_gradients(model, ["0", "1", "3"], x, y) if training else func_gradients(model, x, y)
    rows = join_blocks(monitor, oracle)[:CURVATURE_EXAMPLES]
    dense = rows.T @ rows / len(rows)
    dense += 0.5 * dense.diagonal().mean() * torch.eye(len(dense))
    found = monitor.curvature.matvec(torch.eye(len(dense)))
    assert relative_error(found, dense) < 1e-4


@pytest.mark.parametrize("curvature", ["kfac", "diagonal", "fisher", "lowrank"])
def test_layer_that_gets_no_gradient(curvature: str) -> None:
    """Layers that a step leaves out, or whose output the loss does not use, count as zero."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 2)
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, CLASSES)
            self.skip = False

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.head(x if self.skip else self.norm(x))

    model = Partly()
    anchors = torch.randn(ANCHORS, 4), make_labels(ANCHORS)
    monitor = make_monitor(model, anchors, layers="all", curvature=curvature, curvature_every=1)
    x, y = torch.randn(BATCH, 4), make_labels(BATCH)
    for skip in (False, True, False):
        model.skip = skip
        train_step(monitor, model, x, y, update=True)
        assert monitor.last is not None
    monitor.refresh()
    assert bool(torch.isfinite(monitor.directions.psi).all())
    model.skip = True
    train_step(monitor, model, x, y)
    assert_head(monitor, func_gradients(model, x, y))


def assert_head(monitor: InfluenceMonitor, gradients: dict[str, Tensor]) -> None:
    influence, groups = expected_scores(monitor, gradients)
    assert relative_error(monitor.last.groups, groups) < 1e-4
    assert relative_error(monitor.last.influence, influence) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_keeps_its_statistics_in_full_precision(dtype: torch.dtype) -> None:
    """A variance of 90,000 is infinite in float16, and a mean of 300.7 is 300 in bfloat16."""
    norm = nn.BatchNorm2d(2).eval()
    norm.running_mean.fill_(300.7)
    norm.running_var.copy_(torch.tensor([90000.0, 1.0]))
    x = torch.randint(290, 310, (8, 2, 3, 3)).to(dtype)
    direction = torch.randn(2, 2)
    found = watch("norm", norm).response(x, direction)
    expected = (x.double() - 300.7) / torch.sqrt(norm.running_var.double() + 1e-5).view(1, 2, 1, 1)
    expected = expected * direction[:, 0].view(1, 2, 1, 1) + direction[:, 1].view(1, 2, 1, 1)
    for channel in range(2):
        assert relative_error(found[:, channel], expected[:, channel]) < 1e-2


def test_oracle_sees_a_wrong_direction() -> None:
    """The comparison itself: scores of other directions are not accepted."""
    monitor, x, y = watch_probe("conv", ["layer", "head"], training=True)
    gradients = func_gradients(monitor.model, x, y)
    assert_scores(monitor, gradients)
    monitor.directions.psi = monitor.directions.psi * 1.001
    with pytest.raises(AssertionError):
        assert_scores(monitor, gradients)
