"""K-FAC against curvlinops' own (empirical Fisher, expand), on networks rather than on random factors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from curvature_cases import close, random_vectors
from curvlinops import FisherType, KFACLinearOperator, KFACType
from torch import Tensor, nn

from sgoif.core.parameter_layout import Block, Layout
from sgoif.curvature import KFAC, Factors


def capture(model: nn.Module, layers: list[nn.Module], x: Tensor, y: Tensor) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Input and output gradient of the *sum* of the losses (so one example's own gradient), per layer."""
    kept: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    handles = []
    for layer in layers:

        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            output.retain_grad()
            kept[module] = (inputs[0].detach(), output)

        handles.append(layer.register_forward_hook(hook))
    F.cross_entropy(model(x), y, reduction="sum").backward()
    for handle in handles:
        handle.remove()
    return {layer: (inputs, output.grad) for layer, (inputs, output) in kept.items()}


def with_ones(inputs: Tensor) -> Tensor:
    return torch.cat([inputs, inputs.new_ones(*inputs.shape[:-1], 1)], dim=-1)


def peer_matrix(model: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor) -> Tensor:
    operator = KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        parameters,
        [(x, y)],
        fisher_type=FisherType.EMPIRICAL,
        kfac_approx=KFACType.EXPAND,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    size = sum(p.numel() for p in parameters)
    return operator @ torch.eye(size)


def order(shapes: list[tuple[int, int]]) -> Tensor:
    """For each weight of our layout (bias as last column) its place in the peer's (weight, then bias), per layer."""
    places, start = [], 0
    for rows, cols in shapes:
        weight = torch.arange(rows * (cols - 1)).reshape(rows, cols - 1) + start
        bias = torch.arange(rows).reshape(rows, 1) + start + rows * (cols - 1)
        places.append(torch.cat([weight, bias], dim=1).flatten())
        start += rows * cols
    return torch.cat(places)


def compare(curvature: KFAC, matrix: Tensor, shapes: list[tuple[int, int]]) -> None:
    places = order(shapes)
    expected = matrix[places][:, places].double()
    for part in expected.diagonal().split([rows * cols for rows, cols in shapes]):
        part += 1e-3 * part.mean()
    vectors = random_vectors(5, len(places))
    close(curvature.matvec(vectors), vectors.double() @ expected, 1e-4)
    close(curvature.diagonal(), expected.diagonal(), 1e-4)


def test_linear_network() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(12, 5), torch.randint(3, (12,))
    layers = [model[0], model[2]]
    shapes = [(4, 6), (3, 5)]
    curvature = KFAC(Layout(tuple(Block(str(i), *shape) for i, shape in enumerate(shapes))), damping=1e-3)
    kept = capture(model, layers, x, y)
    curvature.update([Factors(with_ones(a)[:, None], delta[:, None]) for a, delta in (kept[layer] for layer in layers)])
    compare(curvature, peer_matrix(model, list(model.parameters()), x, y), shapes)


def test_convolution() -> None:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(3 * 3 * 3, 4))
    x, y = torch.randn(10, 2, 6, 6), torch.randint(4, (10,))
    shapes = [(3, 2 * 9 + 1)]
    kept, delta = capture(model, [conv], x, y)[conv]
    patches = F.unfold(kept, 3, stride=2, padding=1).transpose(1, 2)
    curvature = KFAC(Layout((Block("conv", *shapes[0]),)), damping=1e-3)
    curvature.update([Factors(with_ones(patches), delta.flatten(2).transpose(1, 2))])
    compare(curvature, peer_matrix(model, list(conv.parameters()), x, y), shapes)
