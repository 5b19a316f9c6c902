"""Small heads, and slow ways to get the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.log import AuditLog, read_log
from sgoif.tasks.unlearning.newton import FittedHead, fit_head

L2 = 0.01


def blobs(
    count: int = 60, width: int = 4, classes: int = 3, seed: int = 0, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Overlapping clouds in float64, one per class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    features = spread * torch.randn(count, width, generator=generator, dtype=torch.float64)
    features[torch.arange(count), labels % width] += 1.5
    return features, labels


def head_data(count: int = 60, width: int = 4, classes: int = 3, seed: int = 0, **options: Any) -> HeadData:
    return HeadData(*blobs(count, width, classes, seed), classes, **options)


def fitted_head(count: int = 60, width: int = 4, classes: int = 3, seed: int = 0, l2: float = L2) -> FittedHead:
    return fit_head(head_data(count, width, classes, seed), l2)


def extended(data: HeadData) -> Tensor:
    """ã written out."""
    x = data.constant * data.features.double()
    return torch.cat([x, torch.full((len(x), 1), data.constant, dtype=torch.float64)], 1) if data.bias else x


def slow_loss(data: HeadData, l2: float, rows: Tensor, w: Tensor) -> Tensor:
    """L over these rows as its formula has it."""
    logits = extended(data)[rows] @ w.view(data.classes, -1).T
    return cross_entropy(logits, data.labels[rows]) + 0.5 * l2 * w.square().sum()


def slow_gradient(data: HeadData, l2: float, rows: Tensor, w: Tensor) -> Tensor:
    at = w.clone().requires_grad_(True)
    return torch.autograd.grad(slow_loss(data, l2, rows, at), at)[0]


def slow_hessian(data: HeadData, l2: float, rows: Tensor, w: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda v: slow_loss(data, l2, rows, v), w)  # type: ignore[no-any-return]


def slow_optimum(data: HeadData, l2: float, rows: Tensor) -> Tensor:
    """Trained from zeros by an optimizer that knows nothing of this package."""
    w = torch.zeros(data.parameters, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [w], max_iter=2000, tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe", history_size=50
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = slow_loss(data, l2, rows, w)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return w.detach()


def others(count: int, rows: Tensor) -> Tensor:
    """All rows but these."""
    stay = torch.ones(count, dtype=torch.bool)
    stay[rows] = False
    return stay.nonzero().squeeze(1)


class Small(nn.Module):
    """A body and a head, the logits scaled as in ResNet-9."""

    def __init__(self, classes: int = 3, scale: float = 1.0, bias: bool = True, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(6, classes, bias=bias)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)) * self.scale
        return out


def small(seed: int = 0, **options: Any) -> Small:
    """In training mode, as after a training loop."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Small(**options)
        with torch.no_grad():
            for _ in range(20):
                model(torch.randn(32, 4))
    return model


def make(count: int = 80, log: str | AuditLog | None = "log.jsonl", **options: Any) -> Unlearner:
    features, labels = blobs(count + 40)
    held = features[count:], labels[count:]
    ids = [f"img/{number}.png" for number in range(count)]
    return Unlearner.from_features(features[:count], labels[:count], ids, held_out=held, l2=L2, log=log, **options)


def kinds(path: str | Path = "log.jsonl") -> list[str]:
    return [entry.kind for entry in read_log(path)]
