"""Linear layers."""

from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.tracking.layers.base import WatchedLayer


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
