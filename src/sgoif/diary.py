"""What `monitor.history` holds: one entry per refresh of the bank."""

from __future__ import annotations

from torch import Tensor

from sgoif.anchors import AnchorBank
from sgoif.solvers.base import Solution
from sgoif.stability.competence import Competence
from sgoif.stability.controller import Signals, Tolerance


def entry(
    step: int,
    bank: AnchorBank,
    gradient: Tensor,
    solution: Solution,
    tolerance: Tolerance,
    coverage: float,
    odd: Tensor,
    competence: Competence,
    signals: Signals,
) -> dict[str, float]:
    """Residuals, tolerance, confidence, cost, losses and signals of one refresh; `odd` masks anomalous anchors."""
    residual = bank.residual[~odd] if bool((~odd).any()) else bank.residual.new_zeros(1)
    return {
        "step": step,
        "residual_mean": float(residual.mean()),
        "residual_median": float(residual.median()),
        "residual_relative": float(residual.norm() / gradient.norm().clamp_min(1e-30)),
        "tau": tolerance.tau,
        "kappa": tolerance.kappa,
        "beta": tolerance.beta,
        "condition": tolerance.condition,
        "confidence_mean": float(bank.confidence.mean()),
        "pass_share": float((bank.confidence > 0).float().mean()),
        "coverage": coverage,
        "products": float(solution.products),
        "anomalies": float(odd.sum()),
        "replaced": float(bank.replaced),
        "train_loss": competence.train_loss,
        "anchor_loss": competence.anchor_loss,
        "structure": competence.structure,
        "step_weight": competence.weight,
        "gap": signals.gap,
        "probe_variance": signals.variance,
        "energy": signals.energy,
    }
