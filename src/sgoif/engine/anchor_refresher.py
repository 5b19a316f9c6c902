"""Looking at the anchors: the part of a refresh that needs the model as it is at that moment.

What is solved and decided with the gradients may wait: on a GPU the results are then there when the host asks for them,
while the device has other work. Meanwhile the gradients of a head are kept as factors, which are smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sgoif.anchors.bank import anchor_pass
from sgoif.core.losses import Loss
from sgoif.curvature.base import Factors
from sgoif.device.timing import Clock
from sgoif.tracking.capture import Capture

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

Gradients = Tensor | list[Factors]
"""Of the anchors, [own, P]; factors where the head alone is watched."""


class Look(NamedTuple):
    """What a look at the anchors gave."""

    step: int
    gradients: Gradients
    losses: Tensor
    logits: Tensor
    pace: tuple[float, float, int]
    """What training was like then: `pace` below."""
    clock: Clock
    seconds: float
    """That it took the host."""
    after: torch.cuda.Event | None
    """Where a GPU has finished it; None: the rest of the refresh comes at once."""


def at_anchors(monitor: InfluenceMonitor, capture: Capture | None = None) -> tuple[Gradients, Tensor, Tensor]:
    """Gradients of this rank's anchors, the losses and logits of all anchors."""
    bank, ranks, size = monitor.anchors, monitor.ranks, monitor.anchor_batch
    losses, logits = [], []
    factored: list[Factors] = []
    gradients = torch.empty_like(bank.phi) if len(monitor.layers) > 1 else None
    done, mine = 0, bank.own.stop - bank.own.start
    # A sharded model runs on all ranks or on none, so one without anchors left looks at any of them once more.
    for _ in range(ranks.turns(len(bank), size)):
        kept = min(size, mine - done)
        first = bank.own.start + done if kept else 0
        found, loss, output = at_examples(monitor, *bank.member_batch(slice(first, first + max(kept, 1))), capture)
        if gradients is not None:
            _clean(joined(monitor, found)[:kept], gradients[done : done + kept])
        elif kept and not isinstance(found, Tensor):
            factored += found
        losses.append(loss[:kept])
        logits.append(output[:kept])
        done += kept
    whole = factored if gradients is None else gradients
    return whole, ranks.gathered(torch.cat(losses)), ranks.gathered(torch.cat(logits))


def at_examples(
    monitor: InfluenceMonitor, inputs: Any, labels: Tensor, capture: Capture | None = None, loss: Loss | None = None
) -> tuple[Gradients, Tensor, Tensor]:
    """Gradients, losses and logits of held-out examples, in the precision of training."""
    watching, loss = capture or monitor._capture, loss or monitor.loss
    given = (monitor.model, watching, monitor.layers, loss, inputs, labels, monitor._autocast)
    try:
        if len(monitor.layers) == 1:
            return anchor_pass(*given, lambda factors: factors)
        parts, losses, logits = anchor_pass(*given, Factors.gradient)
    except RuntimeError as error:
        monitor._capture.conversions.explain(error)
        raise
    return monitor.layout.join(parts), losses, logits


def whole(monitor: InfluenceMonitor, found: Gradients) -> Tensor:
    """Gradients of this rank's anchors, [own, P]."""
    if isinstance(found, Tensor):
        return found
    gradients, done = torch.empty_like(monitor.anchors.phi), 0
    for factors in found:
        count = len(factors.delta)
        _clean(joined(monitor, [factors]), gradients[done : done + count])
        done += count
    return gradients


def joined(monitor: InfluenceMonitor, found: Gradients) -> Tensor:
    """Gradients of one batch, [B, P]."""
    return found if isinstance(found, Tensor) else monitor.layout.join([factors.gradient() for factors in found])


def pace(monitor: InfluenceMonitor) -> tuple[float, float, int]:
    """Learning rate and weight decay of the head at this moment, and the number of examples known."""
    weights = [p for name, p in monitor.head.module.named_parameters() if name != "bias"]  # also if parametrized
    groups = monitor.optimizer.param_groups
    group = next((g for g in groups if any(p is w for p in g["params"] for w in weights)), {})
    return float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0)), monitor.ledger.used


def _clean(gradients: Tensor, out: Tensor) -> None:
    """Zero where they are not finite."""
    torch.nan_to_num(gradients, posinf=0, neginf=0, out=out)
