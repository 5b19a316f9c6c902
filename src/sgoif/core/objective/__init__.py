"""What training minimises: what a target looks like, what the loss of one example is, which columns a table has.

| kind             | outputs              | target of a batch                          | classes | per label |
|------------------|----------------------|--------------------------------------------|---------|-----------|
| `Classification` | [B, C], or one logit | class numbers [B], or a mixture of classes | C       |           |
| `MultiLabel`     | [B, L]               | 0 or 1 for every label, [B, L]             | none    | yes       |
| `Values`         | [B], [B, 1], [B, D]  | numbers of that shape                      | none    |           |
| `Tokens`         | [B, T, V]            | whole numbers [B, T], some to be ignored   | none    |           |

Everything else asks the `Objective` of a monitor. Scores compare the gradients of training with those of the
per-example loss ℓ_i, training being taken to minimise s Σ_i ℓ_i with one factor s per step, whatever that is:

    a torch module with a `reduction`    ℓ_i = the sum of its entries: over the D outputs, the L labels, the T tokens
    any other module or function         ℓ_i = what it gives for a batch of this example alone

A mean over all entries of a batch is Σ_i ℓ_i times one factor, also over the tokens that are not ignored, of which
examples have different numbers; a mean of every example's own mean is not, and is read only up to that difference.

Without classes the columns `margin`, `logit_margin` and the class probabilities are NaN or missing, the label is −1,
and all anchors are one group, whose column is −1, unless `groups` says otherwise.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.core.logits import is_single, two_classes
from sgoif.core.losses import Loss, is_cross_entropy, one_logit
from sgoif.core.objective.base import Columns, Objective, Target
from sgoif.core.objective.classification import Classification, check_labels
from sgoif.core.objective.tokens import Tokens
from sgoif.core.objective.values import MultiLabel, Values
from sgoif.errors import AnchorError

__all__ = [
    "Classification", "Columns", "MultiLabel", "Objective", "Target", "Tokens", "Values", "check_labels",
    "find_objective",
]  # fmt: skip

REGRESSION = (
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss),
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss),
)
"""Losses of values also where targets are whole numbers: counts, ratings, ages."""


def find_objective(loss: Loss | None, output: Tensor, targets: Sequence[Any]) -> Objective:
    """The kind of training, from the model's output for some held-out examples, their targets, and the loss."""
    count = len(targets)
    known = [_as_tensor(target) for target in targets]
    first = known[0]
    whole = first is not None and not first.is_floating_point()
    if first is not None and whole and first.dim() == 1 and len(first) > 1 and _is_per_token(output, count, len(first)):
        if loss is None or is_cross_entropy(loss):
            loss = loss if isinstance(loss, nn.Module) else nn.CrossEntropyLoss()
        return Tokens(loss, output, len(first))
    if first is None or loss is None or is_cross_entropy(loss) or not output.dim():
        return _classification(loss, output, count)
    single = output.dim() in (1, 2) and is_single(output)
    if loss is F.binary_cross_entropy_with_logits:
        loss = nn.BCEWithLogitsLoss()
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return _classification(one_logit(loss), output, count) if single else MultiLabel(loss, output.shape[1:], first)
    fits = len(output) == count and first.numel() == output[0].numel()
    if type(loss) in REGRESSION or loss in REGRESSION or (fits and not single and first.dim() > 0):
        return Values(loss, output.shape[1:], first)
    if whole or (not fits and first.numel() == 1 and all(t is not None and bool(t == t.round()) for t in known)):
        return _classification(loss, output, count)
    return Values(loss, output.shape[1:], first)


def _classification(loss: Loss | None, output: Tensor, count: int) -> Classification:
    logits = two_classes(output)
    if logits.dim() != 2 or len(logits) != count:
        raise AnchorError(
            f"the model must return logits [batch, classes]; for {count} anchors its output is {tuple(output.shape)}."
            " Values, several labels per example and tokens need loss= (nn.MSELoss(), nn.BCEWithLogitsLoss(),"
            " nn.CrossEntropyLoss() with targets [batch, tokens]) and monitor.step(index, target=y)"
        )
    return Classification(logits.shape[1], loss, single_logit=is_single(output))


def _is_per_token(output: Tensor, count: int, tokens: int) -> bool:
    """Whether this is one row of logits per token, [B, T, V] or flattened to [B T, V]."""
    if output.dim() == 3:
        return len(output) == count
    return output.dim() == 2 and len(output) == count * tokens


def _as_tensor(target: Any) -> Tensor | None:
    """A target as a tensor; None where it holds no numbers."""
    try:
        return torch.as_tensor(target).detach()
    except (TypeError, ValueError, RuntimeError):
        return None
