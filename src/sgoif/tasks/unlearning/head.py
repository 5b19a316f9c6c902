"""The convex head: multinomial logistic regression with an L2 penalty on frozen features.

    L(w)  = 1/n Σ_i ℓ(W ã_i, y_i) + λ/2 ‖w‖²,         ã = [a, c],   W [C, D + 1],   w = W read row by row
    ∇L(w)  = 1/n Σ_i (p_i − e_{y_i}) ⊗ ã_i + λ w
    ∇²L(w) = 1/n Σ_i (diag p_i − p_i p_iᵀ) ⊗ ã_i ã_iᵀ + λ I   ≽  λ I

a are the inputs of the network's last linear layer, ℓ the cross-entropy and p the softmax of the logits. c = 1 is the
constant whose weight is the bias; a head without a bias has none. The bias is penalised like the rest, since the
certificate needs curvature of at least λ in every direction.

The objective without some examples S of the n is of the same form with n − |S| in place of n: what is summed over S is
taken off the sum over all, so nothing is copied. Everything is computed in float64, chunk by chunk; features are kept
in float64 only where they are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from sgoif.errors import SettingError

KEEP_DOUBLE = 512 * 2**20
"""Bytes up to which features are kept in float64, and probabilities from one product to the next."""
CHUNK = 2**22
"""Numbers in a chunk of features or of logits."""


class HeadData:
    """Inputs of a head with their labels.

    `features` are [n, D] in any floating type. Where a network multiplies the outputs of its last layer by a constant,
    ã = constant · [a, 1].
    """

    def __init__(
        self, features: Tensor, labels: Tensor, classes: int, *, constant: float = 1.0, bias: bool = True
    ) -> None:
        self.features, self.labels = features, labels.to(features.device, torch.int64)
        self.classes, self.constant, self.bias = classes, float(constant), bias
        self._double = self._extended(features) if len(features) * self.width * 8 <= KEEP_DOUBLE else None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.features.device

    @property
    def width(self) -> int:
        """Length of ã."""
        return int(self.features.shape[1]) + self.bias

    @property
    def parameters(self) -> int:
        """Length of w."""
        return self.classes * self.width

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """ã of these rows, float64."""
        return self._double[rows] if self._double is not None else self._extended(self.features[rows])

    def _extended(self, features: Tensor) -> Tensor:
        plain = self.constant * features.double()
        if not self.bias:
            return plain
        return torch.cat([plain, plain.new_full((len(plain), 1), self.constant)], dim=1)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ã, y) of all rows in order."""
        size = max(1, CHUNK // max(self.width, self.classes))
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield self.inputs(part), self.labels[part]

    def take(self, rows: Tensor) -> HeadData:
        """Some of the rows, copied."""
        return HeadData(self.features[rows], self.labels[rows], self.classes, constant=self.constant, bias=self.bias)

    def norms(self) -> Tensor:
        """‖ã_i‖ of every row."""
        return torch.cat([torch.linalg.vector_norm(x, dim=1) for x, _ in self.chunks()])

    @cached_property
    def longest(self) -> float:
        """The largest ‖ã_i‖."""
        return float(self.norms().max()) if len(self) else 0.0

    def logits(self, w: Tensor) -> Tensor:
        """W ã of every row, [n, C]."""
        matrix = w.view(self.classes, self.width)
        return torch.cat([x @ matrix.T for x, _ in self.chunks()])


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """p − e_y, the gradient of the loss by the logits, [b, C]."""
    delta = torch.softmax(logits, dim=1)
    delta[torch.arange(len(labels), device=labels.device), labels] -= 1
    return delta


@dataclass(frozen=True)
class Objective:
    """L over the rows of some data, with a few of them left out."""

    data: HeadData
    l2: float
    """λ, above 0, as `UnlearnerSettings` sees to."""
    without: Tensor | None = field(default=None)
    """Rows that are left out, each once."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingError(f"all {len(self.data)} examples are left out; at least one has to stay")

    @property
    def size(self) -> int:
        """Examples that count."""
        return len(self.data) - (0 if self.without is None else len(self.without))

    def leaving_out(self, rows: Tensor) -> Objective:
        """The same without these rows too."""
        both = rows if self.without is None else torch.cat([self.without, rows])
        return Objective(self.data, self.l2, both)

    def parts(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """(ã, y, sign): everything with +1, then what is left out with −1."""
        for x, y in self.data.chunks():
            yield x, y, 1.0
        if self.without is not None and len(self.without):
            size = max(1, CHUNK // max(self.data.width, self.data.classes))
            for rows in self.without.split(size):
                yield self.data.inputs(rows), self.data.labels[rows], -1.0

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        """L and ∇L at w, [P]."""
        matrix = w.view(self.data.classes, self.data.width)
        total = w.new_zeros(())
        gradient = torch.zeros_like(matrix)
        for x, y, sign in self.parts():
            logits = x @ matrix.T
            total += sign * torch.nn.functional.cross_entropy(logits, y, reduction="sum")
            gradient += sign * (residuals(logits, y).T @ x)
        value = float(total) / self.size + 0.5 * self.l2 * float(w @ w)
        return value, gradient.reshape(-1) / self.size + self.l2 * w

    def gradient(self, w: Tensor) -> Tensor:
        """∇L at w, [P]."""
        return self.value_and_gradient(w)[1]

    def curvature(self, w: Tensor) -> HeadCurvature:
        """∇²L at w."""
        return HeadCurvature(self, w)

    def slopes(self, w: Tensor, direction: Tensor) -> Tensor:
        """⟨ψ, ∇ℓ_i⟩ at w for every row of the data and one direction ψ [P], without any penalty; [n]."""
        matrix, along = (v.view(self.data.classes, self.data.width) for v in (w, direction))
        found = [(residuals(x @ matrix.T, y) * (x @ along.T)).sum(1) for x, y in self.data.chunks()]
        return torch.cat(found)


class HeadCurvature:
    """∇²L at one point, as an operator on rows [K, P]; see `sgoif.solvers.base.Products`."""

    def __init__(self, objective: Objective, w: Tensor) -> None:
        self.objective = objective
        self._matrix = w.view(objective.data.classes, objective.data.width)
        count = len(objective.data) + len(objective.data if objective.without is None else objective.without)
        self._kept: list[Tensor] | None = [] if count * objective.data.classes * 8 <= KEEP_DOUBLE else None

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """(ã, p, sign) of every chunk; p is computed once where it fits."""
        kept = self._kept
        filled = bool(kept)
        for number, (x, _, sign) in enumerate(self.objective.parts()):
            if kept is not None and filled:
                yield x, kept[number], sign
                continue
            p = torch.softmax(x @ self._matrix.T, dim=1)
            if kept is not None:
                kept.append(p)
            yield x, p, sign

    def matvec(self, vectors: Tensor) -> Tensor:
        """∇²L v for rows v."""
        classes, width = self._matrix.shape
        count = len(vectors)
        stacked = vectors.reshape(count * classes, width)
        total = torch.zeros_like(stacked)
        for x, p, sign in self._parts():
            together = max(1, CHUNK // max(1, len(x) * classes))
            for first in range(0, count, together):
                rows = slice(first * classes, (first + together) * classes)
                u = (x @ stacked[rows].T).view(len(x), -1, classes)
                pu = p[:, None] * u
                curved = pu - p[:, None] * pu.sum(-1, keepdim=True)
                total[rows] += sign * (curved.reshape(len(x), -1).T @ x)
        return total.view(count, -1) / self.objective.size + self.objective.l2 * vectors

    def dense(self) -> Tensor:
        """The whole matrix, [P, P]."""
        classes, width = self._matrix.shape
        blocks = self._matrix.new_zeros(classes, classes, width, width)
        for x, p, sign in self._parts():
            for c in range(classes):
                for d in range(c + 1):
                    weight = p[:, c] * (float(c == d) - p[:, d])
                    blocks[c, d] += sign * (x.T @ (weight[:, None] * x))
        for c in range(classes):
            for d in range(c):
                blocks[d, c] = blocks[c, d]  # each block is symmetric itself
        matrix = blocks.permute(0, 2, 1, 3).reshape(classes * width, classes * width) / self.objective.size
        matrix.diagonal().add_(self.objective.l2)
        return matrix
