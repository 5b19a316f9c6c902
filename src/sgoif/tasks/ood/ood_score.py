"""The score of what a network has seen, as one function of tensors that never change once it is made.

    s = ½ ln κ + ½ ln ν − g ln E

`sentinel` says what these are. Everything here is in single precision, whatever precision the network answered in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sgoif.core.logits import two_classes
from sgoif.tasks.ood.moments import SMALLEST, LayerMoments, MeanDistance
from sgoif.tasks.ood.neighbours import Neighbours
from sgoif.tasks.ood.network import Seen, pooled


class OodScore:
    """s of batches that the network has seen; infinite where the input or what came of it is not a number."""

    def __init__(self, layers: Sequence[LayerMoments], neighbours: Neighbours, trust: float) -> None:
        self.device = layers[0].root.device
        self._spread = MeanDistance(layers)
        self._matrix = self._spread.matrix
        self._neighbours = neighbours
        # Measured are κ, 1 − ν and −E. Each gives a factor of exp(s): (origin + sign · what is measured) ** power.
        factors = [(0.0, 1.0, 0.5), (1.0, -1.0, 0.5), (0.0, -1.0, -trust)]
        columns = torch.tensor(factors, device=self.device, dtype=torch.float32).T
        self._origin, self._sign, self._power = columns.unsqueeze(2).unbind()

    def __call__(self, seen: Seen) -> Tensor:
        """s, [n]."""
        with torch.autocast(seen.logits.device.type, enabled=False):
            matrix = self._matrix.join([*map(pooled, seen.stages), seen.features.flatten(1)])
            measured = torch.empty(3, len(matrix), dtype=matrix.dtype, device=matrix.device)
            self._spread.mean(matrix, out=measured[0])
            self._neighbours.nearest(matrix, out=measured[1])
            minus_energy(seen.logits, out=measured[2])
            factors = torch.addcmul(self._origin, measured, self._sign).clamp_min_(SMALLEST)
            scores = torch.xlogy(self._power, factors).sum(0)
            # A network may make something finite of an input that is not. In evaluation no row sees another, so such an
            # input spoils only its own score, and 0 times its largest value sees to it that it does.
            images = seen.images.float()
            largest = torch.linalg.vector_norm(images, math.inf, tuple(range(1, images.dim())))
            return scores.add_(largest, alpha=0).nan_to_num_(nan=math.inf, posinf=math.inf)


def minus_energy(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """−E: minus the logsumexp of the logits about their mean, [n]; a single logit is that of two classes."""
    # ln p_k = z_k − logsumexp z, so this is the mean of ln p: fewer operations than any other way.
    return torch.mean(two_classes(logits).log_softmax(1), 1, out=out)
