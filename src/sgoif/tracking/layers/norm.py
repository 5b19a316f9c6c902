"""Normalisation layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.core.interrupts import autocast_set
from sgoif.curvature.base import Factors
from sgoif.tracking.layers.base import WatchedLayer

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


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
