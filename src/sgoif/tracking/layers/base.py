"""How each supported layer is read: inputs a, output gradients δ, and its weights as one matrix.

For a layer that is linear in its weights W (bias included as one more column), example i's gradient is
g_i = Σ_t δ_it ⊗ a_it, and for any direction ψ of the shape of W

    ψᵀ g_i = ⟨δ_i, layer(a_i; ψ)⟩ ,

so one run of the layer with ψ as its weights scores a whole batch (`response`), without any per-example gradient.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgoif.core.parameter_layout import Block
from sgoif.curvature.base import Factors
from sgoif.tracking.layers.projection import Projection


@dataclass(frozen=True)
class Response:
    """The outputs of a layer with a direction for its weights, up to a scale."""

    outputs: Tensor
    scale: Tensor | None = None

    def dot(self, delta: Tensor) -> Tensor:
        """⟨δ_i, response_i⟩ for every example of a batch, in float32."""
        score = dot(delta, self.outputs)
        return score if self.scale is None else score * self.scale


class WatchedLayer(ABC):
    """One layer under watch. Subclasses say how the layer turns inputs and output gradients into factors."""

    elementwise = False

    def __init__(self, name: str, module: nn.Module, rows: int, cols: int) -> None:
        self.name = name
        self.module = module
        self.rows = rows
        self.cols = cols
        self.projection: Projection | None = None
        self._prepared: tuple[Tensor, torch.dtype, dict[str, Tensor]] | None = None

    @property
    def block(self) -> Block:
        """The block as the engine keeps it: projected where a projection is set."""
        if self.projection is None:
            return Block(self.name, self.rows, self.cols)
        return Block(self.name, len(self.projection.out), len(self.projection.inp))

    def project(self, rank: int, seed: int) -> None:
        """Keep at most `rank` dimensions on each side. Elementwise layers are small and stay whole."""
        if not self.elementwise and (self.rows > rank or self.cols > rank):
            self.projection = Projection.random(self.rows, self.cols, rank, seed, self.weight.device)

    @property
    def weight(self) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def bias(self) -> Tensor | None:
        bias = getattr(self.module, "bias", None)
        return bias if isinstance(bias, Tensor) else None

    def lift(self, blocks: Tensor) -> Tensor:
        """Blocks [..., r, s] as full weight matrices [..., rows, cols]."""
        if self.projection is None:
            return blocks
        out, inp = self.projection.out.to(blocks.dtype), self.projection.inp.to(blocks.dtype)
        return out.T @ blocks @ inp

    def factors(self, inputs: Tensor, delta: Tensor) -> Factors:
        """Float32 factors of a batch, projected where a projection is set."""
        a, d = self._factors(inputs, delta)
        return Factors(a, d, self.elementwise)

    def first_factors(self, inputs: Tensor, delta: Tensor, count: int) -> Factors:
        """Factors of the first `count` examples of a batch."""
        return self.factors(inputs[:count], delta[:count])

    def zero_factors(self, count: int) -> Factors:
        """Factors of `count` examples whose loss does not depend on this layer."""
        block, device = self.block, self.weight.device
        columns = (block.rows, block.cols) if self.elementwise else (block.cols,)
        shape = (count, 1, *columns)
        return Factors(
            torch.zeros(shape, device=device), torch.zeros(count, 1, block.rows, device=device), self.elementwise
        )

    @abstractmethod
    def _factors(self, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]: ...

    def respond(self, inputs: Tensor, direction: Tensor) -> Response:
        """layer(a; ψ), ready to be scored. In float16 ψ is brought to unit size first: H⁻¹g knows no bounds."""
        if not _in_half(inputs):
            return Response(self.response(inputs, direction))
        size = torch.linalg.vector_norm(direction, dim=1).max().clamp_min(torch.finfo(direction.dtype).tiny)
        return Response(self.response(inputs, direction / size), size)

    @abstractmethod
    def response(self, inputs: Tensor, direction: Tensor) -> Tensor:
        """The layer's output for `inputs` with the full matrix `direction` as its weights."""

    def _weights(self, direction: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """`direction` as parameters of a type, laid out like the layer's own; kept until another direction comes."""
        if self._prepared is None or self._prepared[0] is not direction or self._prepared[1] != dtype:
            layout = torch.contiguous_format
            if self.weight.dim() == 4 and self.weight.is_contiguous(memory_format=torch.channels_last):
                layout = torch.channels_last
            parts = self.parameters_from(direction)
            ready = {
                name: part.to(dtype).contiguous(memory_format=layout if part.dim() == 4 else torch.contiguous_format)
                for name, part in parts.items()
            }
            self._prepared = direction, dtype, ready
        return self._prepared[2]

    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        """The full matrix [rows, cols] as the layer's parameters, by their local names."""
        if self.bias is None:
            return {"weight": matrix.reshape(self.weight.shape)}
        return {"weight": matrix[:, :-1].reshape(self.weight.shape), "bias": matrix[:, -1]}

    def _project_pair(self, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Append the bias column to a [B, T, cols'] and project both sides, in float32."""
        a, d = a.float(), d.float()
        if self.projection is None:
            if self.bias is not None:
                a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
            return a, d
        v = self.projection.inp
        columns = a.shape[-1]
        projected = a @ v[:, :columns].T
        if self.bias is not None:
            projected = projected + v[:, columns]
        return projected, d @ self.projection.out.T


def dot(delta: Tensor, response: Tensor) -> Tensor:
    """⟨δ_i, response_i⟩ for every example of a batch, in float32."""
    if delta.dim() == 4 and response.is_contiguous(memory_format=torch.channels_last):
        delta, response = delta.permute(0, 2, 3, 1), response.permute(0, 2, 3, 1)
    if delta.dtype == torch.float16:  # a scaled loss leaves no room for a sum
        delta = delta.float()
    rows = delta.reshape(len(delta), 1, -1)
    return torch.bmm(rows, response.to(delta.dtype).reshape(len(delta), -1, 1)).reshape(-1).float()


def _in_half(tensor: Tensor) -> bool:
    """Whether a layer with this input computes in float16."""
    kind = tensor.device.type
    autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
    return autocast or tensor.dtype == torch.float16
