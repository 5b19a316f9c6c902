"""LogitNorm: cross entropy that sees only the direction of the logits, so that their length cannot grow without bound.

Wei, Xie, Cheng, Feng, An, Li: Mitigating Neural Network Overconfidence with Logit Normalization. ICML 2022.

For logits z of the label y and a temperature τ,

    L = CE(z / (τ (‖z‖ + 10⁻⁷)), y)

Score. log(1 − max_k p_k) with the plain softmax of z, without normalisation: the order of MSP, as in the paper. Cost:
one training.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood.trained.common import log_doubt, scored
from sgoif_bench.ood.trained.method import Scorer

TEMPERATURE = 0.04
"""τ of the authors' command for CIFAR-10 and of OpenOOD."""
NORM_OFFSET = 1e-7


def logitnorm_loss(logits: Tensor, labels: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Cross entropy of the logits divided by τ times their length."""
    length = logits.norm(dim=1, keepdim=True) + NORM_OFFSET
    return F.cross_entropy(logits / (temperature * length), labels)


def logitnorm(problem: Problem, outliers: Tensor | None, tell: Say, *, temperature: float = TEMPERATURE) -> Scorer:
    """Train with normalised logits; the score is the log of one minus the largest probability."""
    del outliers
    if not temperature > 0:
        raise SettingError(f"temperature = {temperature} of LogitNorm must be positive")
    model = problem.fit(
        problem.new_model(),
        problem.batches(),
        loss=lambda logits, labels, index: logitnorm_loss(logits, labels, temperature),
        on_epoch=lambda epoch: tell(f"logitnorm: epoch {epoch} of {problem.recipe.epochs}"),
    )
    return Scorer(scored(model, log_doubt), model, details={"temperature": temperature})
