"""All watched weights of a network, none of them projected: what the methods here take gradients of."""

from __future__ import annotations

from torch import Tensor, nn

from sgoif.core.parameter_layout import Layout
from sgoif.curvature.base import Factors
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch
from sgoif_bench.fidelity.study import Study


class WholeWatch(QueryWatch):
    """Sees gradients of every watched layer as they are: linear, convolution, embedding and norm layers."""

    def __init__(self, study: Study, model: nn.Module) -> None:
        super().__init__(study, model, OnlineSettings(principal=False))
        for layer in self.layers:
            layer.projection = None
        self.layout = Layout(tuple(layer.block for layer in self.layers))

    def drawn(self, x: Tensor) -> list[Factors]:
        """Factors of images with labels drawn from the model."""
        return self._sampled(x)
