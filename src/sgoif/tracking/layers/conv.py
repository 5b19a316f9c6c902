"""Convolutions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.tracking.layers.base import WatchedLayer


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
        sides = conv._reversed_padding_repeated_twice
        padded = F.pad(inputs.float(), sides, mode=mode)
        patches = F.unfold(padded, conv.kernel_size, dilation=conv.dilation, stride=conv.stride)
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
