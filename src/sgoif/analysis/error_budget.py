"""The error of a score, taken apart and measured."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.anchors.gradients import ExampleGradients
from sgoif.core.batches import taken
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature
from sgoif.curvature.exact import ExactGGN
from sgoif.errors import SgoifError
from sgoif.solvers.base import row_norm
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.stability.bounds import conf_error, solver_error_bound
from sgoif.tracking.functional_model import watched_output


@dataclass(frozen=True)
class ErrorBudget:
    """Mean absolute error of a raw influence by cause, measured on the anchors' own gradients.

    All parts are in units of `monitor.last.influence`, averaged over the anchors as queries g:

    - `solver`: |(ψ − ψ*)ᵀg|, ψ* being the exact solution under the same curvature surrogate;
    - `curvature`: |(ψ* − ψ_GGN)ᵀg|, ψ_GGN solved with the exact Gauss–Newton matrix of a batch of anchors (nan where
      the loss has no second derivative);
    - `projection`: |ψᵀg| times the share of gradient norm that projected layers do not see (0 without projection);
    - `linearisation`: gᵀH⁻¹g / 2n, the second-order term of adding one example to n;
    - `confidence`: Σ_v w_v (1 − c_v)|φ_vᵀg|, what the gate takes away;
    - `bound`: ‖r_ψ‖/λ_min · ‖g‖, which `solver` can never exceed.
    """

    solver: float
    curvature: float
    projection: float
    linearisation: float
    confidence: float
    bound: float

    @property
    def total(self) -> float:
        """Sum of the five parts: a bound on the mean error where each part is right."""
        return self.solver + self.curvature + self.projection + self.linearisation + self.confidence


def look_at_anchors(gradients: ExampleGradients, curvature: Curvature) -> tuple[Tensor, Tensor]:
    """g_v at the weights as they are and φ_v, of all anchors, [K, P] each; raises where nothing was scored yet."""
    if not curvature.ready:
        raise SgoifError("there is no score yet, so there is no error to measure; run at least one step first")
    bank = gradients.bank
    with gradients.captured() as capture:
        own = gradients.of_anchors(capture)[0]
    return bank.communicator.gathered(own), bank.communicator.gathered(bank.phi)


@dataclass(frozen=True)
class ErrorView:
    """What the error of a score is measured with."""

    gradients: ExampleGradients
    curvature: Curvature
    examples: int
    """Training examples."""

    @property
    def device(self) -> torch.device:
        return self.gradients.bank.device

    @full_precision
    def measure(self, most: int = 128) -> ErrorBudget:
        """Measure the parts of `ErrorBudget` at the current weights, the exact curvature with so many anchors."""
        source, curvature = self.gradients, self.curvature
        g, phi = look_at_anchors(source, curvature)
        bank = source.bank
        weights = bank.weights()
        psi = (weights.unsqueeze(1) * phi).sum(0)
        wanted = (weights.unsqueeze(1) * g).sum(0, keepdim=True)
        exact = curvature.solve(wanted)[0]
        smallest = curvature.spectrum().smallest

        rows = torch.arange(min(most, len(bank)))
        inputs, labels = bank.batch(bank.members[rows])
        objective, count = source.objective, len(labels)
        output, point = watched_output(
            source.model, source.layers, source.layout, inputs, lambda z: objective.held_out_answer(z, count)
        )
        ggn = ExactGGN(output, lambda z: source.loss(z, labels).mean(), point, damping=smallest)
        try:
            ggn_psi = ConjugateGradient(iterations=50, tolerance=1e-4).solve(ggn, wanted, exact.unsqueeze(0)).phi[0]
        except RuntimeError:  # a loss or layer without the second derivative this needs
            ggn_psi = torch.full_like(exact, torch.nan)

        c = bank.confidence
        mixing = weights / c.clamp_min(torch.finfo(c.dtype).tiny)  # w_v alone
        lost = conf_error(c.unsqueeze(1), phi @ g.T)
        residual = wanted[0] - curvature.matvec(psi.unsqueeze(0))[0]
        bound = solver_error_bound(row_norm(residual), residual.new_tensor(smallest))
        return ErrorBudget(
            solver=float((g @ (psi - exact)).abs().mean()),
            curvature=float((g @ (exact - ggn_psi)).abs().mean()),
            projection=float((g @ psi).abs().mean()) * self._unseen_share(inputs, labels),
            linearisation=float((g * curvature.solve(g)).sum(1).mean()) / (2 * max(self.examples, 1)),
            confidence=float((mixing.unsqueeze(1) * lost).sum(0).mean()),
            bound=float(bound * row_norm(g).mean()),
        )

    def _unseen_share(self, inputs: Any, labels: Tensor, most: int = 16) -> float:
        """Share of the gradient norm outside the projected blocks, over a few anchors."""
        source = self.gradients
        projections = [layer.projection for layer in source.layers]
        if not any(projections):
            return 0.0
        few = taken(inputs, torch.arange(min(most, len(labels))))
        square = []
        try:
            with source.captured() as capture:
                for keep in (True, False):
                    for layer, projection in zip(source.layers, projections, strict=True):
                        layer.projection = projection if keep else None
                    gradient = source.joined(source.of(few, labels[:most], capture).gradients)
                    square.append(gradient.double().square().sum(1))
        finally:
            for layer, projection in zip(source.layers, projections, strict=True):
                layer.projection = projection
        seen, whole = square
        return float((1 - seen / whole.clamp_min(1e-30)).clamp_min(0).sqrt().mean())
