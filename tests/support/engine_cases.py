"""Models to watch, and the same scores the slow way: per-example gradients in float64, then plain dot products."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sgoif import InfluenceMonitor

CLASSES = 3
NEVER = 10**9

PerExample = Callable[[Tensor, Tensor], Tensor]


class Probe(nn.Module):
    """One layer to look at, a bounded nonlinearity, and a linear head."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x)).flatten(1))


class TokenHead(nn.Module):
    """A head that runs on every token and is averaged afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).mean(1)


class Flipped(nn.Module):
    """A 1×1 classifier convolution that is averaged over pixels: a net without any linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 4, 3, padding=1)
        self.classifier = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.body(x))).mean((2, 3))


def _affine(layer: nn.Module) -> nn.Module:
    """Weights, shifts and running statistics away from their trivial start."""
    with torch.no_grad():
        for tensor in [*layer.parameters(), *layer.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return layer


IMAGE = (4, 6, 5)
# name -> (layer, shape of one input)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear_no_bias": (lambda: nn.Linear(6, 5, bias=False), (6,)),
    "linear_sequence": (lambda: nn.Linear(4, 5), (7, 4)),
    "linear_sequence_no_bias": (lambda: nn.Linear(4, 5, bias=False), (7, 4)),
    "linear_two_axes": (lambda: nn.Linear(4, 5), (2, 3, 4)),
    "conv": (lambda: nn.Conv2d(4, 5, 3), IMAGE),
    "conv_no_bias": (lambda: nn.Conv2d(4, 5, 3, bias=False), IMAGE),
    "conv_stride": (lambda: nn.Conv2d(4, 5, 3, stride=(2, 1), padding=(1, 2)), IMAGE),
    "conv_same": (lambda: nn.Conv2d(4, 5, (2, 3), padding="same"), IMAGE),
    "conv_valid": (lambda: nn.Conv2d(4, 5, (2, 3), padding="valid"), IMAGE),
    "conv_reflect": (lambda: nn.Conv2d(4, 5, 3, padding=(1, 2), padding_mode="reflect"), IMAGE),
    "conv_circular": (lambda: nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular", stride=2), IMAGE),
    "conv_dilation": (lambda: nn.Conv2d(4, 5, 3, padding=2, dilation=(2, 1)), IMAGE),
    "conv_groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), IMAGE),
    "conv_groups_all": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(2, 1), dilation=(1, 2), groups=2, bias=False),
        IMAGE,
    ),
    "conv_depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), IMAGE),
    "conv_depthwise_no_bias": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), IMAGE),
    "conv_pointwise": (lambda: nn.Conv2d(4, 5, 1), IMAGE),
    "embedding": (lambda: nn.Embedding(9, 3), (5,)),
    "embedding_padding": (lambda: nn.Embedding(9, 3, padding_idx=2), (5,)),
    "embedding_single": (lambda: nn.Embedding(9, 3), ()),
    "batchnorm1d": (lambda: _affine(nn.BatchNorm1d(6)), (6,)),
    "batchnorm1d_sequence": (lambda: _affine(nn.BatchNorm1d(4)), (4, 5)),
    "batchnorm2d": (lambda: _affine(nn.BatchNorm2d(4)), IMAGE),
    "layernorm": (lambda: _affine(nn.LayerNorm(4)), (5, 4)),
    "layernorm_no_bias": (lambda: _affine(nn.LayerNorm(4, bias=False)), (5, 4)),
    "layernorm_image": (lambda: _affine(nn.LayerNorm([4, 6, 5])), IMAGE),
    "groupnorm": (lambda: _affine(nn.GroupNorm(2, 4)), IMAGE),
    "rmsnorm": (lambda: _affine(nn.RMSNorm(4)), (5, 4)),
    "rmsnorm_eps": (lambda: _affine(nn.RMSNorm(4, eps=0.1)), (5, 4)),
}


def make_inputs(name: str, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = LAYERS[name][1]
    if name.startswith("embedding"):
        return torch.randint(9, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def make_labels(count: int, seed: int = 0, classes: int = CLASSES) -> Tensor:
    """Labels in random order, every class among them."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % classes


def make_probe(name: str) -> Probe:
    layer = LAYERS[name][0]()
    with torch.no_grad():
        features = layer.eval()(make_inputs(name, 2)).flatten(1).shape[1]
    return Probe(layer.train(), features)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def make_monitor(model: nn.Module, anchors: tuple[Tensor, Tensor], **options: Any) -> InfluenceMonitor:
    """A monitor that refreshes once, trusts every anchor, and has directions of an ordinary size."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"refresh_every": NEVER, "gate": "none", "damping": 0.3, "layers": "head", "body_share": 1.0} | options
    return InfluenceMonitor(model, optimizer, anchors, **options)


def train_step(
    monitor: InfluenceMonitor,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    target: Tensor | None = None,
    update: bool = False,
) -> None:
    with monitor.step(torch.arange(len(x)), target=target):
        loss(run(x), y).backward()
    if update:
        monitor.optimizer.step()
    monitor.optimizer.zero_grad()


# --- the slow way ---------------------------------------------------------------------------------------------------


def as_block(module: nn.Module, gradients: dict[str, Tensor]) -> Tensor:
    """Per-example parameter gradients [B, ...] of one module as the matrices [B, rows, cols] the engine speaks of."""
    weight = gradients["weight"]
    batch = len(weight)
    if isinstance(module, nn.Embedding):
        return weight.transpose(1, 2)
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        matrix = weight.reshape(batch, weight.shape[1], -1)
    else:
        matrix = weight.reshape(batch, -1, 1)
    if "bias" in gradients:
        matrix = torch.cat([matrix, gradients["bias"].reshape(batch, -1, 1)], dim=2)
    return matrix


def _local(layer_name: str, local: str) -> str:
    return f"{layer_name}.{local}" if layer_name else local


def join_blocks(monitor: InfluenceMonitor, gradients: dict[str, Tensor]) -> Tensor:
    """Per-example gradients by parameter name as float64 vectors [B, P], projected where the engine projects."""
    parts = []
    for layer in monitor.layers:
        mine = {p: gradients[_local(layer.name, p)] for p, _ in layer.module.named_parameters(recurse=False)}
        block = as_block(layer.module, mine).double()
        if layer.projection is not None:
            block = layer.projection.out.double() @ block @ layer.projection.inp.double().T
        parts.append(block.flatten(1))
    return torch.cat(parts, dim=1)


def func_gradients(
    model: nn.Module, x: Tensor, y: Tensor, loss: PerExample = cross_entropy, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """vmap(grad) over single examples, by parameter name; batch norm must be in evaluation mode."""
    exact = copy.deepcopy(model).to(dtype)
    for module in exact.modules():  # the copy carries the monitor's hooks
        module._forward_hooks.clear()
    parameters = {name: p.detach() for name, p in exact.named_parameters()}
    buffers = dict(exact.named_buffers())

    def single(weights: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(exact, (weights, buffers), (inputs.unsqueeze(0),))
        return loss(logits, label.unsqueeze(0)).sum()

    inputs = x.to(dtype) if x.is_floating_point() else x
    return vmap(grad(single), in_dims=(None, 0, 0))(parameters, inputs, y)


def copied_gradients(
    model: nn.Module, names: Sequence[str], x: Tensor, y: Tensor, loss: PerExample = cross_entropy
) -> dict[str, Tensor]:
    """Gradients of the summed loss with respect to one copy of a layer's weights per example, by parameter name.

    The definition of Σ δ_i ⊗ a_i when examples interact (batch norm in training mode): every example gets its own copy
    of the watched weights, all equal, and the loss of the whole batch is differentiated with respect to each.
    """
    exact = copy.deepcopy(model).double()
    for module in exact.modules():
        module._forward_hooks.clear()
    copies: dict[str, Tensor] = {}

    def replace(name: str, module: nn.Module) -> None:
        mine = {
            p: value.detach().expand(len(x), *value.shape).clone().requires_grad_(True)
            for p, value in module.named_parameters(recurse=False)
        }
        copies.update({_local(name, p): value for p, value in mine.items()})
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.training:

            def normalised(inputs: Tensor) -> Tensor:
                axes = [0, *range(2, inputs.dim())]
                mean = inputs.mean(axes, keepdim=True)
                variance = inputs.var(axes, unbiased=False, keepdim=True)
                shape = (*inputs.shape[:2], *[1] * (inputs.dim() - 2))
                unit = (inputs - mean) / torch.sqrt(variance + module.eps)
                return unit * mine["weight"].reshape(shape) + mine["bias"].reshape(shape)

            module.forward = normalised  # type: ignore[method-assign]
            return
        plain = copy.deepcopy(module)

        def one_by_one(inputs: Tensor) -> Tensor:
            rows = [
                functional_call(plain, {p: value[i] for p, value in mine.items()}, (inputs[i : i + 1],))
                for i in range(len(inputs))
            ]
            return torch.cat(rows)

        module.forward = one_by_one  # type: ignore[method-assign]

    for name in names:
        replace(name, exact.get_submodule(name))
    total = loss(exact(x.double()), y).sum()
    return dict(zip(copies, torch.autograd.grad(total, list(copies.values())), strict=True))


def expected_scores(monitor: InfluenceMonitor, gradients: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """−ψᵀ g_i over all watched layers [B], and −ψ_gᵀ g_i over the last one [B, G]."""
    assert monitor.directions.psi is not None
    vectors, directions = join_blocks(monitor, gradients), monitor.directions.psi.double()
    start = monitor.layout.offsets[-2]
    return -(vectors @ directions.sum(0)), -(vectors[:, start:] @ directions[:, start:].T)


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    assert float(expected.abs().max()) > 0, "an oracle of zeros proves nothing"
    return float((found.double() - expected).norm() / expected.norm())


def assert_scores(monitor: InfluenceMonitor, gradients: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    """Influence, its share below the head, and group scores of the last step against the oracle."""
    assert monitor.last is not None
    influence, groups = expected_scores(monitor, gradients)
    assert relative_error(monitor.last.groups, groups) < tolerance
    assert relative_error(monitor.last.influence, influence) < tolerance
    if len(monitor.layers) > 1:
        below = monitor.last.influence - monitor.last.groups.sum(1)
        assert relative_error(below, influence - groups.sum(1)) < tolerance


def only_layer(monitor: InfluenceMonitor, number: int, directions: Tensor) -> None:
    """Keep the directions of one watched layer (and of the head, which carries the groups)."""
    offsets = monitor.layout.offsets
    kept = torch.zeros_like(directions)
    for start, stop in {(offsets[number], offsets[number + 1]), (offsets[-2], offsets[-1])}:
        kept[:, start:stop] = directions[:, start:stop]
    monitor.directions.psi = kept
    monitor.directions.lift()


def assert_every_layer(
    monitor: InfluenceMonitor, run: Callable[[], None], gradients: dict[str, Tensor], tolerance: float = 1e-4
) -> None:
    """Scores with the direction of one layer at a time, so that a large layer cannot hide a wrong small one."""
    assert monitor.directions.psi is not None
    directions = monitor.directions.psi.clone()
    for number in range(len(monitor.layers)):
        only_layer(monitor, number, directions)
        run()
        assert_scores(monitor, gradients, tolerance) if number < len(monitor.layers) - 1 else None
    monitor.directions.psi = directions
    monitor.directions.lift()
