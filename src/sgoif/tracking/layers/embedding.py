"""Embeddings."""

from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.errors import LayerError
from sgoif.tracking.layers.base import WatchedLayer


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
