"""What a step's scores are worth: how much the model knows about held-out data at that time.

A step at time t gets the weight

    ω_t = max(ω_min, 1 − L_t / ln C)⁴

with L_t the mean loss on the anchors and ln C the loss of a guess among C classes. The weight is small while the model
knows nothing, grows as it learns, and falls again when it memorises: its loss on held-out data then rises, often past
that of a guess. It needs no schedule and adapts to the run, since only ratios of weights matter. With the fourth power
the first epochs count for little as soon as better ones have come, so wrong labels are found earlier than with the
second.

Of a loss without classes the guess is the best constant answer to the anchors' targets, and its mean loss stands for
ln C, which is that of balanced classes: of a squared error the variance of the targets, of several labels the sum of
the entropies of their shares, of tokens the entropy of their frequencies times the tokens of an example. Where it is
not positive, as of a loss that falls below zero, all steps count alike.

Beside it, `structure` ∈ [0, 1] says how structured the label noise looks. Among the most suspicious tenth of every
batch (by margin) it is 1 − the normalised entropy of the best other label given the given one, averaged over given
labels: near 1 when every cat is called a dog, near 0 when labels are wrong at random.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sgoif.stability.running_mean import fold_mean

SUSPICIOUS = 0.1
FLOOR = 0.05
POWER = 4
LOSS_DECAY = 0.98
CONFUSION_DECAY = 0.5
"""Memory of the confusion counts, per refresh."""
COUNTED, LATEST = 1000, 2**18
"""Classes up to which all pairs are counted, and how many suspicious examples are kept, the latest, of more classes."""


class StepWeight:
    """Running training loss, the last anchor loss, the confusion of suspicious examples, and the weight.

    `applied`: steps are weighed with it; else it is only recorded.
    """

    def __init__(self, classes: int, device: torch.device, applied: bool = True, guess: float | None = None) -> None:
        self.guess = math.log(max(classes, 2)) if guess is None else guess
        self.applied = applied and self.guess > 0
        self.loss = torch.zeros(2, device=device)  # weighted sum and weight of the training loss
        self.classes = classes
        counted = classes <= COUNTED
        self.confusion = torch.zeros((classes, classes) if counted else LATEST, device=device)
        self.pairs = None if counted else torch.zeros(LATEST + 1, dtype=torch.int64, device=device)
        """Of many classes the pair of each of the latest suspicious examples, beside its count, and the next place."""
        self.train_loss = self.anchor_loss = float("nan")
        self.structure = 0.0
        self.weight = FLOOR**POWER

    @property
    def factor(self) -> float:
        """What the scores of a step count for now."""
        return self.weight if self.applied else 1.0

    def observe(self, loss: Tensor, margin: Tensor, given: Tensor, rival: Tensor) -> None:
        """Fold one batch in; stays on the device. `rival` is the best class other than the given one."""
        fold_mean(self.loss, loss, LOSS_DECAY)
        if not self.classes:
            return
        count = max(1, int(SUSPICIOUS * len(margin)))
        worst = torch.topk(margin, count, largest=False).indices
        flat = given[worst] * self.classes + rival[worst]
        if self.pairs is None:
            self.confusion.view(-1).index_add_(0, flat, torch.ones_like(flat, dtype=torch.float32))
            return
        flat = flat[: len(self.confusion)]
        places = (self.pairs[-1] + torch.arange(len(flat), device=flat.device)) % len(self.confusion)
        self.pairs.index_copy_(0, places, flat.to(torch.int64))
        self.confusion.index_fill_(0, places, 1.0)
        self.pairs[-1] += len(flat)

    def refresh(self, losses: Tensor) -> None:
        """Recompute the weight from the losses of the anchors [K]; called once per refresh of the bank."""
        known = torch.cat([self.confusion.view(-1), self.loss, losses.mean().view(1)]).cpu()  # one wait for all
        total, weight, self.anchor_loss = known[-3:].tolist()
        self.train_loss = total / weight if weight > 0 else float("nan")
        counts = known[:-3].view_as(self.confusion)
        seen = None if self.pairs is None else self.pairs[:-1].cpu()
        self.structure = concentration(counts) if seen is None else concentration_of(seen, counts, self.classes)
        self.confusion.mul_(CONFUSION_DECAY)
        if math.isfinite(self.anchor_loss) and self.guess > 0:
            self.weight = max(FLOOR, 1 - self.anchor_loss / self.guess) ** POWER

    def state_dict(self) -> dict[str, Any]:
        return {
            **({} if self.pairs is None else {"pairs": self.pairs}),
            "loss": self.loss,
            "confusion": self.confusion,
            "numbers": torch.tensor([self.anchor_loss, self.structure, self.weight], dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.copy_(state["loss"])
        self.confusion.copy_(state["confusion"])
        if self.pairs is not None:
            self.pairs.copy_(state["pairs"])
        self.anchor_loss, self.structure, self.weight = state["numbers"].tolist()


def concentration(confusion: Tensor) -> float:
    """1 − normalised entropy of the columns given the row, averaged over rows, corrected for small counts.

    With N counts in k cells a uniform row shows about (k − 1) / 2N less entropy than it has; that bias is added back.
    """
    classes = confusion.shape[1]
    counts = confusion.double().cpu()
    total = counts.sum(1)
    rows = total > 0
    if classes < 3 or not bool(rows.any()):
        return 0.0
    counts, total = counts[rows], total[rows]
    p = counts / total[:, None]
    entropy = -(p * p.clamp_min(1e-12).log()).sum(1) + (counts > 0).sum(1).sub(1).clamp_min(0) / (2 * total)
    share = (1 - entropy / math.log(classes - 1)).clamp(0, 1)
    return float((share * total).sum() / total.sum())


def concentration_of(pairs: Tensor, counts: Tensor, classes: int) -> float:
    """The same for many classes, from pairs (row · classes + column), which may repeat, and their counts."""
    there = counts > 0
    if classes < 3 or not bool(there.any()):
        return 0.0
    found, place = torch.unique(pairs[there], return_inverse=True)
    cells = torch.zeros(len(found), dtype=torch.float64).index_add_(0, place, counts[there].double())
    row = torch.unique(found // classes, return_inverse=True)[1]
    total = torch.zeros(int(row.max()) + 1, dtype=torch.float64).index_add_(0, row, cells)
    p = cells / total[row]
    entropy = torch.zeros_like(total).index_add_(0, row, -(p * p.clamp_min(1e-12).log()))
    entropy += (torch.bincount(row) - 1) / (2 * total)
    share = (1 - entropy / math.log(classes - 1)).clamp(0, 1)
    return float((share * total).sum() / total.sum())
