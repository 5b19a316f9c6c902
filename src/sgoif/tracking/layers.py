"""How each supported layer is read: inputs a, output gradients δ, and its weights as one matrix.

For a layer that is linear in its weights W (bias included as one more column), example i's gradient is
g_i = Σ_t δ_it ⊗ a_it, and for any direction ψ of the shape of W

    ψᵀ g_i = ⟨δ_i, layer(a_i; ψ)⟩ ,

so one run of the layer with ψ as its weights scores a whole batch (`response`), without any per-example gradient.

Blocks that are too large to be kept once per anchor are projected: with orthonormal rows U [r × rows] and V [s × cols]
the block lives in the r × s matrices U W Vᵀ, and a direction ψ̃ found there is lifted to Uᵀ ψ̃ V before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.core.interrupts import autocast_set
from sgoif.core.parameter_layout import Block
from sgoif.curvature.base import Factors
from sgoif.errors import LayerError


@dataclass(frozen=True)
class Projection:
    """Orthonormal rows on the output side (U) and the input side (V) of a block."""

    out: Tensor
    inp: Tensor

    @staticmethod
    def random(rows: int, cols: int, rank: int, seed: int, device: torch.device) -> Projection:
        """A seeded random projection to at most `rank` dimensions a side."""

        def orthonormal(size: int, generator: torch.Generator) -> Tensor:
            if size <= rank:
                return torch.eye(size)
            basis: Tensor = torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64))[0]
            return basis.T.float()

        generator = torch.Generator().manual_seed(seed)
        sides = orthonormal(rows, generator), orthonormal(cols, generator)
        return Projection(*(side.contiguous().to(device) for side in sides))


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

    @abstractmethod
    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        """The full matrix [rows, cols] as the layer's parameters, by their local names."""

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


class LinearLayer(WatchedLayer):
    """nn.Linear on [B, ..., in]; every axis between the first and the last counts as a position."""

    def __init__(self, name: str, module: nn.Linear) -> None:
        super().__init__(name, module, module.out_features, module.in_features + (module.bias is not None))

    def _factors(self, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        batch = inputs.shape[0]
        return self._project_pair(
            inputs.reshape(batch, -1, inputs.shape[-1]), delta.reshape(batch, -1, delta.shape[-1])
        )

    def response(self, inputs: Tensor, direction: Tensor) -> Tensor:
        weights = self._weights(direction, inputs.dtype)
        return F.linear(inputs, weights["weight"], weights.get("bias"))

    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        if self.bias is None:
            return {"weight": matrix}
        return {"weight": matrix[:, :-1], "bias": matrix[:, -1]}


class ConvLayer(WatchedLayer):
    """nn.Conv2d with any stride, padding, dilation and groups."""

    module: nn.Conv2d

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        self.columns = module.weight.shape[1:].numel()
        super().__init__(name, module, module.out_channels, self.columns + (module.bias is not None))
        # Depthwise-like layers: rows see different inputs, so δ ⊗ a would be mostly zeros.
        self.elementwise = module.groups > 1 and module.out_channels * self.columns <= module.groups * (
            module.out_channels + self.columns
        )

    def _patches(self, inputs: Tensor) -> Tensor:
        """[B, groups, columns, L] input patches, in float32."""
        conv = self.module
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        padded = F.pad(inputs.float(), conv._reversed_padding_repeated_twice, mode=mode)
        patches = F.unfold(padded, _pair(conv.kernel_size), dilation=_pair(conv.dilation), stride=_pair(conv.stride))
        return patches.reshape(len(inputs), conv.groups, self.columns, -1)

    def _factors(self, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        batch, groups = len(inputs), self.module.groups
        delta = delta.float().reshape(batch, groups, self.rows // groups, -1)
        if self.elementwise:
            gradient = torch.einsum("bgrl,bgcl->bgrc", delta, self._patches(inputs)).flatten(1, 2)
            if self.bias is not None:
                gradient = torch.cat([gradient, delta.sum(-1).flatten(1).unsqueeze(-1)], dim=-1)
            return gradient.unsqueeze(1), gradient.new_ones(batch, 1, self.rows)
        if self.projection is not None:
            # The projected patches V a are a convolution with V as its kernels: no unfolded copy of the input.
            kernels = self.projection.inp[:, : self.columns].reshape(-1, *self.weight.shape[1:])
            a = self._conv(inputs.float(), kernels.repeat(groups, 1, 1, 1)).reshape(batch, groups, len(kernels), -1)
            if self.bias is not None:
                a = a + self.projection.inp[:, self.columns, None]
            u = self.projection.out.T.reshape(groups, self.rows // groups, -1)
            d = torch.einsum("bgrl,gru->bglu", delta, u)
            return a.transpose(2, 3).flatten(1, 2), d.flatten(1, 2)
        a = self._patches(inputs).transpose(2, 3).flatten(1, 2)
        if groups == 1:
            return self._project_pair(a, delta[:, 0].transpose(1, 2))
        spread = delta.new_zeros(batch, groups, delta.shape[-1], groups, self.rows // groups)
        for group in range(groups):
            spread[:, group, :, group] = delta[:, group].transpose(1, 2)
        return self._project_pair(a, spread.flatten(3).flatten(1, 2))

    def _conv(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output: Tensor = self.module._conv_forward(inputs, weight, bias)
        return output

    def response(self, inputs: Tensor, direction: Tensor) -> Tensor:
        weights = self._weights(direction, inputs.dtype)
        return self._conv(inputs, weights["weight"], weights.get("bias"))

    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        weight = matrix[:, : self.columns].reshape(self.weight.shape)
        return {"weight": weight} if self.bias is None else {"weight": weight, "bias": matrix[:, -1]}


class EmbeddingLayer(WatchedLayer):
    """nn.Embedding: a is a one-hot row, so the block is the transposed table, [dim × entries]."""

    module: nn.Embedding

    def __init__(self, name: str, module: nn.Embedding) -> None:
        if module.scale_grad_by_freq or module.max_norm is not None:
            raise LayerError(
                f"layer {name!r} rescales its gradients (scale_grad_by_freq) or weights (max_norm), so single-example"
                " gradients are not defined by it; leave it out of `layers`"
            )
        super().__init__(name, module, module.embedding_dim, module.num_embeddings)

    def _mask(self, inputs: Tensor, delta: Tensor) -> Tensor:
        if self.module.padding_idx is None:
            return delta
        return delta * (inputs != self.module.padding_idx).unsqueeze(-1)

    def _factors(self, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        batch = inputs.shape[0]
        ids, d = inputs.reshape(batch, -1), self._mask(inputs, delta).float().reshape(batch, -1, self.rows)
        if self.projection is None:
            return F.one_hot(ids, self.cols).float(), d
        return F.embedding(ids, self.projection.inp.T.contiguous()), d @ self.projection.out.T

    def response(self, inputs: Tensor, direction: Tensor) -> Tensor:
        return self._mask(inputs, F.embedding(inputs, direction.T))

    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"weight": matrix.T}


class NormLayer(WatchedLayer):
    """Scale and shift of a normalisation layer: a is the normalised input, the block is [features × (1 or 2)]."""

    elementwise = True

    def __init__(self, name: str, module: nn.Module) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        has_bias = getattr(module, "bias", None) is not None
        super().__init__(name, module, weight.numel(), 1 + has_bias)

    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with these weights. Batch statistics are recomputed and running ones never touched."""
        m = self.module
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(inputs, m.normalized_shape, weight, bias, m.eps)
        if isinstance(m, nn.RMSNorm):
            return F.rms_norm(inputs, m.normalized_shape, weight, m.eps)
        if isinstance(m, nn.GroupNorm):
            return F.group_norm(inputs, m.num_groups, weight, bias, m.eps)
        assert isinstance(m, _BATCH_NORMS)
        if m.training or m.running_mean is None or m.running_var is None:
            return F.batch_norm(inputs, None, None, weight, bias, training=True, eps=m.eps)
        mean, variance = m.running_mean.to(weight.dtype), m.running_var.to(weight.dtype)
        return F.batch_norm(inputs, mean, variance, weight, bias, training=False, eps=m.eps)

    def _channel_last(self, tensor: Tensor) -> Tensor:
        """[B, T, features] whatever the layer's layout."""
        if isinstance(self.module, (nn.LayerNorm, nn.RMSNorm)):
            return tensor.reshape(tensor.shape[0], -1, self.rows)
        return tensor.reshape(tensor.shape[0], self.rows, -1).transpose(1, 2)

    def first_factors(self, inputs: Tensor, delta: Tensor, count: int) -> Factors:
        # The statistics of a batch norm are those of the whole batch.
        whole = self.factors(inputs, delta)
        return Factors(whole.inputs[:count], whole.delta[:count], whole.elementwise)

    def _factors(self, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        unit = inputs.new_ones(self.weight.shape, dtype=torch.float32)
        normal = self._channel_last(self._normalise(inputs.float(), unit, None))
        d = self._channel_last(delta.float())
        parts = [(d * normal).sum(1)] + ([d.sum(1)] if self.cols == 2 else [])
        gradient = torch.stack(parts, dim=-1).unsqueeze(1)
        return gradient, gradient.new_ones(len(inputs), 1, self.rows)

    def response(self, inputs: Tensor, direction: Tensor) -> Tensor:
        if isinstance(self.module, _BATCH_NORMS):
            # It takes half-precision inputs with float32 weights and statistics, and autocast leaves it alone.
            weights = self._weights(direction, self.weight.dtype)
            return self._normalise(inputs, weights["weight"], weights.get("bias"))
        weights = self._weights(direction, inputs.dtype)
        with autocast_set(inputs.device.type):
            return self._normalise(inputs, weights["weight"], weights.get("bias"))

    def parameters_from(self, matrix: Tensor) -> dict[str, Tensor]:
        weights = {"weight": matrix[:, 0].reshape(self.weight.shape)}
        if self.cols == 2:
            weights["bias"] = matrix[:, 1].reshape(self.weight.shape)
        return weights


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_supported(module: nn.Module) -> bool:
    """Whether the module is of a kind that can be watched and has weights that are trained."""
    if not isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding, *_NORMS)):
        return False
    # A weight that is computed from others (by its norm, or pruned) has a graph only where the last pass kept one.
    return any(p.requires_grad for name, p in module.named_parameters() if "weight" in name)


def watch(name: str, module: nn.Module) -> WatchedLayer:
    """The reader for one module."""
    if isinstance(module, nn.Linear):
        return LinearLayer(name, module)
    if isinstance(module, nn.Conv2d):
        return ConvLayer(name, module)
    if isinstance(module, nn.Embedding):
        return EmbeddingLayer(name, module)
    if isinstance(module, _NORMS):
        return NormLayer(name, module)
    kinds = "Linear, Conv2d, Embedding, BatchNorm, LayerNorm, GroupNorm and RMSNorm"
    raise LayerError(f"layer {name!r} is a {type(module).__name__}, which cannot be watched; supported are {kinds}")


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


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
