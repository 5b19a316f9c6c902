"""What the lemmas of the paper say about a run, measured: terms, what they add up to, and what is seen.

Lemma 1 of the paper bounds the error of Î = −Σ_a w_a c_a φ_aᵀg against I = −vᵀH⁻¹g by C₁E_IHVP + C₂E_cover + C₃E_mod.
Its proof bounds ‖φ̄ − H⁻¹v‖ by the least distance of H⁻¹v to a span that φ̄ lies in, which is the other way round, and
multiplies E_mod, which is an influence, with C₃, which is one too. With v = Σ_a w_a g_a this does hold:

    |Î − I| ≤ ‖g‖ ( c̄ ‖Σ_a w_a r_a‖ / λ_min + |1 − c̄| ‖H⁻¹v‖ + Σ_a w_a |c_a − c̄| ‖φ_a‖ )

A name that says bound is a theorem about the curvature surrogate; what is taken from a run alone is an estimate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.analysis.error_budget import look_at_anchors
from sgoif.anchors.gradients import ExampleGradients
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature
from sgoif.errors import SgoifError
from sgoif.solvers.base import Operator, row_norm
from sgoif.stability.bounds import coverage


@dataclass(frozen=True)
class InfluenceTerms:
    """Lemma 1 for some gradients, [B] each."""

    ihvp: Tensor
    """C₁ E_IHVP = ‖g‖ (min_α ‖H⁻¹v − Φα‖ + max_a ‖r_a‖ / λ_min)."""
    cover: Tensor
    """C₂ E_cover = ‖g‖ ‖g − P_Φ g‖ / √λ_min(G)."""
    modulation: Tensor
    """C₃ E_mod = ‖g‖ max(1 / λ_min, max_a ‖φ_a‖) (|1 − c̄| |φ̄ᵀg| + w)."""
    bound: Tensor
    """The inequality that holds."""
    seen: Tensor
    """|Î − I|."""

    @property
    def printed(self) -> Tensor:
        """The sum that the paper calls a bound."""
        return self.ihvp + self.cover + self.modulation


def influence_terms(
    operator: Operator, smallest: float, exact: Tensor, wanted: Tensor, phi: Tensor, confidence: Tensor, queries: Tensor
) -> InfluenceTerms:
    """Lemma 1 for the gradients `queries` [B, P].

    Args:
        operator: H, damped.
        smallest: λ_min of H, or less.
        exact: H⁻¹v [P] for v = Σ_a w_a g_a, w_a = c_a / Σ_u c_u.
        wanted: g_a of the anchors, [K, P].
        phi: φ_a, [K, P].
        confidence: c_a, [K].
        queries: gradients g whose influence is asked for.
    """
    c, phi, g, x = (t.double() for t in (confidence, phi, queries, exact))
    w = _shares(c)
    residual = wanted.double() - operator.matvec(phi.to(wanted.dtype)).double()
    length, norms, mean = row_norm(phi), row_norm(g), (w * c).sum()
    middle, apart = w @ phi, (c - mean).abs()
    seen = (g @ (x - (w * c) @ phi)).abs()

    unit = phi[length > 0] / length[length > 0].unsqueeze(1)
    least = coverage(unit) ** 0.5
    aside = distance_to_span(g, unit)
    cover = norms * (aside / least if least else torch.where(aside > 0, math.inf, 0.0))
    spread = apart.max() * norms * (w * length).sum()
    swing = norms * max(1 / smallest, float(length.max()))
    solving = mean * torch.linalg.vector_norm(w @ residual) / smallest
    return InfluenceTerms(
        ihvp=norms * (distance_to_span(x.unsqueeze(0), unit)[0] + row_norm(residual).max() / smallest),
        cover=cover,
        modulation=swing * ((1 - mean).abs() * (g @ middle).abs() + spread),
        bound=norms * (solving + (1 - mean).abs() * x.norm() + (w * apart) @ length),
        seen=seen,
    )


def distance_to_span(vectors: Tensor, rows: Tensor) -> Tensor:
    """‖x − P_Φ x‖ of vectors [B, P] to the span of rows [K, P]: the least ‖x − Φα‖, whatever the rows' Gram matrix is.

    The paper's lemma 5 has this with a factor 1 / λ_min(G) of at least one.
    """
    if not len(rows):
        return row_norm(vectors)
    basis = torch.linalg.svd(rows.double(), full_matrices=False)
    kept = basis.Vh[basis.S / basis.S[0] > 1e-12 * max(rows.shape)]
    x = vectors.double()
    return row_norm(x - (x @ kept.T) @ kept)


def deviation_share(tolerances: Tensor, smallest: float, norm: float, delta: float, rest: float = 0.0) -> float:
    """Bound on the share of refreshes at which the score of a trusted anchor errs by more than δ (equation 13).

    A trusted anchor has ‖r‖ ≤ τ_t, so that ‖H⁻¹g_v − φ_v‖ ≤ τ_t / λ_min; an error above δ then needs
    τ_t / λ_min > (δ − rest) / ‖g‖. The answer is the share of the tolerances τ_t [T] of which that is so.

    Args:
        tolerances: τ_t, one per refresh.
        smallest: λ_min of the curvature, the least of those refreshes.
        norm: ‖g‖ of the example asked about.
        delta: δ.
        rest: all errors but the solver's.
    """
    return float((tolerances.double() / smallest * norm > delta - rest).double().mean())


@dataclass(frozen=True)
class PolyakLojasiewicz:
    """Estimates from a run of the inequality ‖∇L‖² ≥ 2μ (L − L*), with the least loss seen in the place of L*."""

    mu: float
    """The largest μ for which it holds at all refreshes but that of the least loss."""
    predicted: float
    """Part of L − L* that gradient flow with this μ leaves from the first refresh to the one before the least loss."""
    seen: float
    """The part that was left. Above `predicted` where steps are too long or too noisy for the flow to describe them."""


def polyak_lojasiewicz(history: Sequence[Mapping[str, float]]) -> PolyakLojasiewicz:
    """What `monitor.history` says of the condition that the convergence of the paper rests on.

    The loss is that of the anchors and the gradient that of the watched layers: with fewer layers ‖∇L‖² is less, so a
    μ that is found holds for the whole network too.
    """
    columns = ("anchor_loss", "gradient_power", "step", "learning_rate")
    loss, power, step, rate = (torch.tensor([e[name] for e in history], dtype=torch.float64) for name in columns)
    if len(loss) < 3 or not bool(torch.isfinite(loss).all()):
        raise SgoifError(f"{len(loss)} refreshes are too few to look at the course of a loss; at least 3 are needed")
    least = int(loss.argmin())
    above = loss[: max(least, 1)] - loss[least]
    if not bool((above > 0).all()):
        raise SgoifError("the loss of the held-out examples never fell, so there is no decrease to look at")
    count = len(above)
    mu = float((power[:count] / (2 * above)).min())
    flowed = float((rate[: count - 1] * step[:count].diff()).sum())
    return PolyakLojasiewicz(
        mu=mu,
        predicted=math.exp(-2 * mu * flowed),
        seen=float(above[-1] / above[0]),
    )


@full_precision
def terms_of_anchors(gradients: ExampleGradients, curvature: Curvature) -> InfluenceTerms:
    """Lemma 1 for the anchors' own gradients at the weights as they are, all anchors being one pool."""
    g, phi = look_at_anchors(gradients, curvature)
    c = gradients.bank.confidence
    exact = curvature.solve(_shares(c).unsqueeze(0) @ g)[0]
    return influence_terms(curvature, curvature.spectrum().smallest, exact, g, phi, c, g)


def _shares(confidence: Tensor) -> Tensor:
    """w_a = c_a / Σ_u c_u."""
    return confidence / confidence.sum().clamp_min(torch.finfo(confidence.dtype).tiny)
