"""The score of rows of activations, as one function of tensors that never change once it is made.

    s = ½ ln κ + ½ ln ν − g ln E

`sentinel` says what these are. Everything here is in single precision, whatever precision the network answered in.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sgoif.core.logits import two_classes
from sgoif.tasks.ood.moments import SMALLEST, LayerMoments, MeanDistance
from sgoif.tasks.ood.neighbours import Neighbours
from sgoif.tasks.ood.network import pooled


class OodScore:
    """s of what `columns` gives, side by side."""

    def __init__(self, layers: Sequence[LayerMoments], neighbours: Neighbours, trust: float) -> None:
        self.device = layers[0].root.device
        self._spread = MeanDistance(layers)
        self._matrix = self._spread.matrix
        self._neighbours = neighbours
        # Measured are κ, 1 − ν and −E. Each gives a factor of exp(s): (origin + sign · what is measured) ** power.
        factors = [(0.0, 1.0, 0.5), (1.0, -1.0, 0.5), (0.0, -1.0, -trust)]
        columns = torch.tensor(factors, device=self.device, dtype=torch.float32).T
        self._origin, self._sign, self._power = columns.unsqueeze(2).unbind()

    def columns(self, images: Tensor, made: Sequence[Tensor]) -> list[Tensor]:
        """Pooled stages and features in the places of the matrix, logits, and the largest value of each input."""
        *stages, features, logits = made
        activations = [*map(pooled, stages), features.flatten(1)]
        largest = torch.linalg.vector_norm(images.float(), math.inf, tuple(range(1, images.dim())))
        return [*self._matrix.padded(activations), logits, largest.unsqueeze(1)]

    def __call__(self, rows: Tensor) -> Tensor:
        """s, [n]."""
        with torch.autocast(rows.device.type, enabled=False):
            matrix = self._matrix.from_rows(rows)
            measured = torch.empty(3, len(rows), dtype=rows.dtype, device=rows.device)
            self._spread.mean(matrix, out=measured[0])
            self._neighbours.nearest(matrix, out=measured[1])
            minus_energy(rows[:, self._matrix.columns : -1], out=measured[2])
            factors = torch.addcmul(self._origin, measured, self._sign).clamp_min_(SMALLEST)
            scores = torch.xlogy(self._power, factors).sum(0)
            # A network may make something finite of an input that is not. In evaluation no row sees another, so such an
            # input spoils only its own score, and 0 times its largest value sees to it that it does.
            return scores.add_(rows[:, -1], alpha=0).nan_to_num_(nan=math.inf, posinf=math.inf)


def minus_energy(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """−E: minus the logsumexp of the logits about their mean, [n]; a single logit is that of two classes."""
    # ln p_k = z_k − logsumexp z, so this is the mean of ln p: fewer operations than any other way.
    return torch.mean(two_classes(logits).log_softmax(1), 1, out=out)
