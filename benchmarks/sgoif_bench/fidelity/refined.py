"""Per-query influence with directions refined on the exact curvature: what K-FAC's approximation costs.

At the start of every scored epoch a few conjugate gradients lead on from K-FAC's directions, with K-FAC for their
preconditioner,

    (G + Λ) φ_q = g_q   from   φ_q = (H + Λ)⁻¹ g_q ,        G v = Jᵀ (∇²ℓ) J v ,

where G is the Gauss–Newton matrix of all watched weights on examples that K-FAC has seen, H is K-FAC and Λ its damping,
layer by layer. With R = (H + Λ)^(−1/2) and φ = Rψ that is R(G + Λ)R ψ_q = R g_q from ψ_q = R g_q.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sgoif.curvature.exact import ExactGGN
from sgoif.curvature.kfac import KFAC
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.tracking.functional_model import watched_output
from sgoif_bench.fidelity.online import QueryWatch

STEPS = 5
EXAMPLES = 256
"""Of those that K-FAC has seen: a product costs a pass over them for every query."""


class PreconditionedGGN(ExactGGN):
    """R(G + Λ)R."""

    def __init__(self, output: Callable[[Tensor], Tensor], point: Tensor, kfac: KFAC) -> None:
        super().__init__(output, _loss, point, damping=0.0)
        self.kfac, self.ridge = kfac, ridge(kfac)

    def matvec(self, vectors: Tensor) -> Tensor:
        vectors = self.root(vectors)
        return self.root(super().matvec(vectors) + self.ridge * vectors)

    def root(self, vectors: Tensor) -> Tensor:
        """R applied to vectors [K, P]."""
        return self.kfac.apply_function(vectors, torch.rsqrt)


def ridge(kfac: KFAC) -> Tensor:
    """Λ, [P]: K-FAC's share of the mean diagonal of every layer."""
    blocks = kfac.layout.split(kfac.diagonal().unsqueeze(0))
    means = torch.cat([block.mean().expand(block.numel()) for block in blocks])
    return means * kfac.damping / (1 + kfac.damping)


class RefinedWatch(QueryWatch):
    """Solves every query further than K-FAC does."""

    def _inverse(self) -> Callable[[Tensor], Tensor]:
        images = self._curvature_images()
        kfac = self._kfac(self._sampled(images))
        output, point = watched_output(self.model, self.layers, self.layout, images[:EXAMPLES])
        exact = PreconditionedGGN(output, point, kfac)
        solver = ConjugateGradient(iterations=STEPS, sketch=0)

        def solve(vectors: Tensor) -> Tensor:
            start = exact.root(vectors)
            return exact.root(solver.solve(exact, start, start).phi)

        return solve


def _loss(logits: Tensor) -> Tensor:
    """Cross-entropy with any labels: its second derivative does not depend on them."""
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))
