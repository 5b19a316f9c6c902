"""How wrong a score can be: the inequalities behind the error budget.

    solver       ‖H⁻¹g − φ‖ ≤ ‖r‖ / λ_min                                        r = g − Hφ
    averaging    |X̄ − EX| ≤ √(2V ln(3/α) / m) + 3B ln(3/α) / m                   with probability 1 − α
    misranking   P(Î_z ≤ Î_u) ≤ exp(−(Δ − b)² m / (2σ²))                          Δ > b
    gating       E_conf = (1 − c)|φᵀg|
    top-K        disjoint intervals at the cut keep the set of the K largest
    coverage     λ_min of the Gram matrix of normalised directions

Every argument may be a number or a tensor; results broadcast.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.curvature.base import to_float64
from sgoif.errors import SettingError

GRAM_ENTRIES = 2**23
"""Entries of the directions that are multiplied at a time (64 MiB)."""


def solver_error_bound(residual_norm: Tensor | float, smallest_eigenvalue: Tensor | float) -> Tensor:
    """Bound on ‖H⁻¹g − φ‖; infinite where H is not known to be positive definite."""
    smallest = _tensor(smallest_eigenvalue)
    return torch.where(smallest > 0, _tensor(residual_norm) / smallest.clamp_min(0), math.inf)


def empirical_bernstein(
    variance: Tensor | float, count: Tensor | float, bound: Tensor | float, alpha: float = 0.05
) -> Tensor:
    """Half-width W of a 1 − α confidence interval around the mean of m = `count` independent observations.

    W = √(2V ln(3/α) / m) + 3B ln(3/α) / m, where V is the sample variance and B bounds |X − EX|. With fewer than two
    observations V says nothing and W is B, the half-width that cannot be wrong; W is never larger than that.
    """
    _check_alpha(alpha)
    spread = _tensor(bound)
    m, log = _tensor(count), math.log(3 / alpha)
    used = m.clamp_min(2)
    width = (2 * _tensor(variance).clamp_min(0) * log / used).sqrt() + 3 * spread * log / used
    return torch.where(m < 2, spread, torch.minimum(width, spread))


def averaging_width(variance: Tensor | float, count: Tensor | float, alpha: float = 0.05) -> Tensor:
    """Half-width √(2V ln(1/α) / m): the first term of Bernstein's inequality for each side, for a known variance V.

    The inequality allows a miss of α on each side; the mean of independent normal observations misses with a third of
    α in all. That room is for observations that depend on each other more than is known.
    """
    _check_alpha(alpha)
    return (2 * _tensor(variance).clamp_min(0) * -math.log(alpha) / _tensor(count).clamp_min(1)).sqrt()


def misranking_bound(
    gap: Tensor | float, bias: Tensor | float, variance: Tensor | float, count: Tensor | float
) -> Tensor:
    """Bound on the chance that two examples Δ = `gap` apart swap places after m = `count` probes; 1 where Δ ≤ `bias`.

    σ² = `variance` is the variance proxy of a sub-Gaussian probe (for a gated one, E[c²]σ²). It is a bound for the true
    gap and variance; with estimates in their place it is an estimate.
    """
    excess = (_tensor(gap) - _tensor(bias)).clamp_min(0)
    # Zero over zero means no excess and no noise: nothing separates the two.
    exponent = torch.nan_to_num(excess**2 * _tensor(count) / (2 * _tensor(variance)), nan=0.0, posinf=math.inf)
    return torch.exp(-exponent)


def conf_error(confidence: Tensor | float, raw: Tensor | float) -> Tensor:
    """E_conf = (1 − c)|φᵀg|: what gating takes away from a raw score φᵀg."""
    return (1 - _tensor(confidence)) * _tensor(raw).abs()


@dataclass(frozen=True)
class TopKCertificate:
    """Whether the K largest scores are the K largest true values, given |score − truth| ≤ bound for every example."""

    k: int
    certified: bool
    """The verdict: every lower end inside exceeds every upper end outside."""
    margin: float
    """γ: smallest score inside the top K minus largest score outside; infinite when nothing is outside."""
    largest_bound: float
    """ε: the largest bound of all."""
    uniform: bool
    """The paper's stricter condition ε < γ/2, which implies the verdict."""


def top_k_certificate(scores: Tensor, bounds: Tensor | float, k: int) -> TopKCertificate:
    """Certify the top K of scores [N] with error bounds [N] (or one for all). Anything not finite certifies nothing."""
    scores = scores.detach().cpu().double()
    bounds = _tensor(bounds).detach().cpu().double().expand_as(scores)
    if scores.ndim != 1 or not 1 <= k <= len(scores):
        raise SettingError(f"expected scores [N] and 1 ≤ k ≤ N; got shape {tuple(scores.shape)} and k = {k}")
    if bool((bounds < 0).any()):
        raise SettingError("error bounds must not be negative")
    inside = torch.zeros(len(scores), dtype=torch.bool)
    inside[torch.topk(scores, k).indices] = True
    largest_bound = float(bounds.max())
    if k == len(scores):
        return TopKCertificate(k, True, math.inf, largest_bound, True)
    margin = float(scores[inside].min() - scores[~inside].max())
    certified = bool((scores - bounds)[inside].min() > (scores + bounds)[~inside].max())
    return TopKCertificate(k, certified, margin, largest_bound, certified and largest_bound < margin / 2)


def coverage(directions: Tensor) -> float:
    """λ_min of the Gram matrix of the ℓ2-normalised rows [K, P], in [0, 1]; 0 without rows.

    Rows that are zero or not finite have no direction and are left out. More rows than dimensions give 0.
    """
    rows = directions.detach()
    if not rows.numel():
        return 0.0
    # Scaling by the largest entry first keeps the squares of very small and very large rows inside the range.
    peak = to_float64(torch.linalg.vector_norm(rows, ord=torch.inf, dim=-1, keepdim=True))
    # Where the rows are, and some columns at a time: they may be many, and on the host all its threads would wake up.
    gram = peak.new_zeros(len(rows), len(rows))
    for part in rows.split(max(1, GRAM_ENTRIES // len(rows)), dim=1):
        scaled = to_float64(part) / peak
        gram += scaled @ scaled.mT
    gram = gram.cpu()
    usable = gram.diagonal() > 0  # false for what is not a number: zero by zero, infinity by infinity
    if not bool(usable.any()):
        return 0.0
    gram = gram[usable][:, usable]
    length = gram.diagonal().sqrt()
    return min(1.0, max(0.0, float(torch.linalg.eigvalsh(gram / torch.outer(length, length))[0])))


def _tensor(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else value.to(torch.get_default_dtype())
    return torch.as_tensor(value, dtype=torch.float64)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise SettingError(f"alpha is the probability of missing, so it must lie in (0, 1); got {alpha}")
