"""What a step's scores are worth: how much the model knows about held-out data at that time.

A step at time t gets the weight

    ω_t = max(ω_min, 1 − L_t / ln C)⁴

with L_t the mean loss on the anchors and ln C the loss of a guess among C classes: small while the model knows nothing,
and again when it memorises. Only ratios of weights matter. With the fourth power the first epochs count for little as
soon as better ones have come, so wrong labels are found earlier than with the second.

Of a loss without classes the guess is the best constant answer to the anchors' targets, and its mean loss stands for
ln C, which is that of balanced classes: of a squared error the variance of the targets, of several labels the sum of
the entropies of their shares, of tokens the entropy of their frequencies times the tokens of an example. Where it is
not positive, as of a loss that falls below zero, all steps count alike.
"""

import math
from typing import Any

import torch
from torch import Tensor

from sgoif.stability.running_mean import fold_mean

FLOOR = 0.05
POWER = 4
LOSS_DECAY = 0.98


class StepWeight:
    """Running training loss, the last anchor loss, and the weight.

    `guess` is the mean loss of a guess. `applied`: steps are weighed with it; else it is only recorded.
    """

    def __init__(self, guess: float, device: torch.device, *, applied: bool) -> None:
        self.guess = guess
        self.applied = applied and guess > 0
        self.loss = torch.zeros(2, device=device)  # weighted sum and weight of the training loss
        self.train_loss = self.anchor_loss = float("nan")
        self.weight = FLOOR**POWER
        self.proxy = 1.0
        """β̃ over what it was at the first refresh."""
        self.proxy_power = 0.0
        """What the weight is multiplied with is β̃ to this power."""
        self._first_proxy: float | None = None

    @property
    def factor(self) -> float:
        """What the scores of a step count for now."""
        return (self.weight if self.applied else 1.0) * math.pow(self.proxy, self.proxy_power)

    def observe(self, loss: Tensor) -> None:
        """Fold the losses of one batch in; stays on the device."""
        fold_mean(self.loss, loss, LOSS_DECAY)

    def refresh(self, losses: Tensor) -> None:
        """Recompute the weight from the losses of the anchors [K]; called once per refresh of the bank."""
        total, weight, self.anchor_loss = torch.cat([self.loss, losses.mean().view(1)]).tolist()  # one wait for all
        self.train_loss = total / weight if weight > 0 else float("nan")
        if math.isfinite(self.anchor_loss) and self.guess > 0:
            self.weight = max(FLOOR, 1 - self.anchor_loss / self.guess) ** POWER

    def observe_proxy(self, beta: float) -> None:
        """Take the β̃ of a refresh."""
        self._first_proxy = self._first_proxy or beta
        self.proxy = min(max(beta / self._first_proxy, 1e-3), 1e3)

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "numbers": torch.tensor([self.anchor_loss, self.weight], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.copy_(state["loss"])
        self.anchor_loss, self.weight = state["numbers"].tolist()
