"""What `monitor.history` holds: one entry per refresh of the bank."""

import math
from dataclasses import asdict

import torch
from torch import Tensor

from sgoif.anchors.bank import AnchorBank
from sgoif.solvers.base import Solution
from sgoif.stability.controller import StabilityController, Tolerance
from sgoif.stability.step_weight import StepWeight


def entry(
    step: int,
    bank: AnchorBank,
    solution: Solution,
    tolerance: Tolerance,
    coverage: float,
    step_weight: StepWeight,
    controller: StabilityController,
    probes: int,
    learning_rate: float,
    gradient: Tensor,
) -> dict[str, float]:
    """Residuals, tolerance, confidence, cost, losses and further signals of one refresh.

    The solution and the gradients are those of this rank's anchors, `probes` the products that the signals took.
    """
    odd = torch.isinf(bank.residual)
    residual = bank.residual[~odd] if bool((~odd).any()) else bank.residual.new_zeros(1)
    confidence = bank.confidence.cpu()
    spent = torch.tensor([float(solution.norms.rhs.double().square().sum()), solution.products], dtype=torch.float64)
    power, used = bank.communicator.total(spent).tolist()
    mean = bank.communicator.total(gradient.sum(0)) / len(bank)
    return {
        "step": step,
        "residual_mean": float(residual.mean()),
        "residual_median": float(residual.median()),
        "residual_relative": float(residual.norm()) / max(math.sqrt(power), 1e-30),
        **asdict(tolerance),
        "confidence_mean": float(confidence.mean()),
        "pass_share": float((confidence > 0).float().mean()),
        "coverage": coverage,
        "products": used + probes,
        "anomalies": float(odd.sum()),
        "replaced": float(bank.replaced),
        "train_loss": step_weight.train_loss,
        "anchor_loss": step_weight.anchor_loss,
        "gradient_power": float(mean.square().sum()),
        "learning_rate": learning_rate,
        "step_weight": step_weight.weight,
        "gap": controller.signals.gap,
        "probe_variance": controller.signals.variance,
        "energy": controller.signals.energy,
    }
