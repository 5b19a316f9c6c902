"""What several of the methods that train share: scores from logits, a network without its head, clustering."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.ood.trained.method import Score

DISTANCES_AT_ONCE = 2**24
"""Distances to centres that are held at the same time while clustering."""


def log_doubt(logits: Tensor) -> Tensor:
    """log(1 − max_k p_k) of the softmax: the order of 1 − MSP, without the ties it has where p is rounded to 1."""
    top = logits.argmax(dim=1, keepdim=True)
    return logits.scatter(1, top, -torch.inf).logsumexp(dim=1) - logits.logsumexp(dim=1)


def scored(model: nn.Module, rule: Callable[[Tensor], Tensor]) -> Score:
    """Images to `rule(logits)`, in evaluation mode and full precision."""
    model.eval()

    @torch.no_grad()
    def score(images: Tensor) -> Tensor:
        return rule(model.eval()(images).float())

    return score


def headless(model: nn.Module) -> tuple[nn.Module, int]:
    """The network with nothing in place of its last linear layer, and how many features come out of it.

    The network itself is changed. What it does after that layer, such as a constant factor, it still does.
    """
    head = last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    if not name:
        raise SettingError("the network is a single linear layer: without it there are no features")
    model.set_submodule(name, nn.Identity())
    return model, head.in_features


class Tap:
    """Within its context, keeps what went into the network's last linear layer in the latest forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._head = last_linear(model)
        self._kept: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """[n, D], with their graph."""
        if self._kept is None:
            raise SettingError("no forward pass has reached the network's last linear layer yet")
        return self._kept

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._kept = inputs[0]

    def __enter__(self) -> Self:
        self._handle = self._head.register_forward_pre_hook(self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()
        self._kept = None


def without_decay(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Take weight decay from some of the optimizer's parameters; they stay on its schedule."""
    chosen = {id(parameter) for parameter in parameters}
    groups = []
    for group in optimizer.param_groups:
        free = [parameter for parameter in group["params"] if id(parameter) in chosen]
        kept = [parameter for parameter in group["params"] if id(parameter) not in chosen]
        # The one-cycle schedule keeps its bounds in the group, so a copy of the group follows it too.
        groups += [{**group, "params": kept}] if kept else []
        groups += [{**group, "params": free, "weight_decay": 0.0}] if free else []
    optimizer.param_groups[:] = groups


def check_outliers(problem: Problem, outliers: Tensor | None, method: str) -> Tensor:
    """The outliers if they can stand beside the problem's images; else an error that says what is wrong."""
    if outliers is None:
        raise SettingError(f"{method} learns from a set of images without labels, and none was given; name one")
    wanted = tuple(problem.images.shape[1:])
    if outliers.dtype != torch.uint8 or tuple(outliers.shape[1:]) != wanted or not len(outliers):
        raise SettingError(
            f"{method} was given images without labels as {outliers.dtype} {list(outliers.shape)}; "
            f"they must be torch.uint8 [M, {', '.join(map(str, wanted))}] with M ≥ 1, like those to be learned"
        )
    return outliers


def nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of every point and the squared distance to it, never all distances at once."""
    rows = max(1, DISTANCES_AT_ONCE // len(centres))
    norms = centres.square().sum(dim=1)
    found = [(norms - 2 * part @ centres.T).min(dim=1) for part in points.split(rows)]
    distances = torch.cat([part.values for part in found]) + points.square().sum(dim=1)
    return torch.cat([part.indices for part in found]), distances.clamp_min(0)


def kmeans(points: Tensor, clusters: int, iterations: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from randomly chosen points: the cluster of every point, and the centres.

    A cluster that has become empty takes over the point that lies farthest from its centre, so that none is lost.
    """
    if not 1 <= clusters <= len(points):
        raise SettingError(f"clusters = {clusters} must lie between 1 and {len(points)}, the number of points")
    if iterations < 1:
        raise SettingError(f"iterations = {iterations} of k-means must be at least 1")
    start = torch.randperm(len(points), generator=generator, device=points.device)[:clusters]
    centres, before = points[start], None
    for _ in range(iterations):
        which = _fill_empty(*nearest(points, centres), clusters)
        if before is not None and torch.equal(which, before):
            break
        before = which
        sizes = torch.bincount(which, minlength=clusters).clamp_min(1)
        centres = torch.zeros_like(centres).index_add_(0, which, points) / sizes.unsqueeze(1)
    return _fill_empty(*nearest(points, centres), clusters), centres


def _fill_empty(which: Tensor, distances: Tensor, clusters: int) -> Tensor:
    sizes = torch.bincount(which, minlength=clusters)
    empty = (sizes == 0).nonzero().flatten().tolist()
    if not empty:
        return which
    filled, counts = which.clone(), sizes.tolist()
    farthest = iter(distances.argsort(descending=True, stable=True).tolist())
    for cluster in empty:
        # A cluster's only point must stay, or the hole would merely move.
        point = next(point for point in farthest if counts[int(filled[point])] > 1)
        counts[int(filled[point])] -= 1
        filled[point] = cluster
        counts[cluster] = 1
    return filled
