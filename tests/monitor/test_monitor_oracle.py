"""Raw scores of a step against dot products with torch.func per-example gradients of the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.curvature import Factors
from sgoif.engine import setup as engine_setup
from sgoif.engine.curvature_learner import CURVATURE_EXAMPLES
from sgoif.errors import StepError
from sgoif.tracking.layers import watch
from sgoif_bench.models import ResNet9, digits_net, tiny_vit

BATCH, ANCHORS = 6, 9


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


# --- choice of layers -----------------------------------------------------------------------------------------------


class SmallResNet(nn.Module):
    """Convolutions, norms with in-place activations, a shortcut, two resolutions and a two-layer classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.neck = nn.Linear(6, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.down(self.stem(x))))
        x = self.relu(self.conv(x) + x)
        return self.head(F.gelu(self.neck(x.mean((2, 3)))))


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


# --- losses and how they are reduced and scaled ---------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": F.cross_entropy,
    "sum": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "loss_scale": lambda z, y: F.cross_entropy(z, y) * 2.0**16,
    "half": lambda z, y: F.cross_entropy(z, y) / 2,
}


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, CLASSES)
    )


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 2, 5, 5, generator=torch.Generator().manual_seed(seed))


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


# --- memory formats, types and compilation --------------------------------------------------------------------------


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
