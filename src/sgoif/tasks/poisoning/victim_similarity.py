"""How near training examples are to inputs that get a wrong answer: whitened, centred, one-sided.

Victims v get the label t that is wrong for them. Among the training examples labelled t, with features w_i and w_v as
`geometry` places them about the mean of class t,

    k_i = uᵀ w_i,     u ∝ Σ_v (w_vᵀ w̄) w_v,     w̄ the mean of the victims

An example of t has k > 0 as far as it differs from its class in the way the victims do. A victim that is an ordinary
member of class t lies near its mean and adds little to u; one step of the power iteration gives victims that agree
with each other more weight still.

One victim is a noisy direction, and examples that share its cause know better. So k is refined: with the posteriors r
of a mixture (`mixture`) and the mean of the others in the upper mode, each example left out of its own,

    k_i ← ½ uᵀ w_i + ½ d₍₋ᵢ₎ᵀ w_i / ‖d‖,     d₍₋ᵢ₎ = Σ_{j≠i} r_j w_j / Σ_{j≠i} r_j

Gradients play no part. They are what influence is made of, and they vanish for examples that are fitted, poison first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.core.precision import full_precision
from sgoif.tasks.poisoning.mixture import Mixture, Values, fit_mixture, robust_units

REFINEMENTS = 2
AGREEING = 3
"""Victims from which on those that agree with each other count more."""
APART = 3.0
"""Separation of the two modes below which there is nothing to refine with."""


@dataclass(frozen=True)
class VictimSimilarity:
    """The examples of one class and the victims that get its label."""

    values: Values
    """k in robust units of the class, [n]; higher = nearer to the victims."""
    mixture: Mixture
    """Of the values."""
    victims: Values
    """The victims along the same direction, in the same units."""


@full_precision
def direction_of(victims: Tensor) -> Tensor:
    """u, a unit vector [D], of victims [V, D]."""
    mean = victims.mean(0)
    towards = victims.T @ (victims @ mean) if len(victims) >= AGREEING else mean
    return torch.nn.functional.normalize(towards, dim=0)


@full_precision
def victim_similarity(whitened: Tensor, victims: Tensor) -> VictimSimilarity:
    """Similarity of examples [n, D] to victims [V, D]."""
    direction = direction_of(victims)
    plain = whitened @ direction
    squares = whitened.square().sum(1)
    values, seen = _in_units(plain, victims @ direction)
    found = _mixture_of(values, seen)
    for _ in range(REFINEMENTS):
        if found.mixture.separation < APART:
            break
        weight = torch.from_numpy(found.mixture.posterior(found.values)).to(whitened)
        total = weight.sum()
        if float(total) < 2:
            break
        towards = weight @ whitened
        length = (towards / total).norm().clamp_min(torch.finfo(towards.dtype).tiny)
        others = (whitened @ towards - weight * squares) / (total - weight).clamp_min(1e-6) / length
        values, seen = _in_units(plain + others, victims @ direction + victims @ towards / total / length)
        found = _mixture_of(values, seen)
    return found


def _in_units(values: Tensor, victims: Tensor) -> tuple[Values, Values]:
    own = values.double().cpu().numpy()
    return robust_units(own), robust_units(victims.double().cpu().numpy(), own)


def _mixture_of(values: Values, victims: Values) -> VictimSimilarity:
    middle = float(victims.mean())
    return VictimSimilarity(values, fit_mixture(values, (0.5 * middle, middle)), victims)
