"""A loss that wrong labels cannot pull at without bound, as far as labels are wrong at random.

Cross entropy pulls without bound at a network that contradicts a label; the reverse cross entropy, with p the
network's probabilities and q the label, lets go of what the network is sure about. Their sum (Wang et al., Symmetric
Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019, with its weights for CIFAR-10),

    SCE = 0.1 CE(q, p) + CE(p, q)        with log 0 set to −4

withstands labels that are wrong at random, and what such a network answers holds few of them. It has its price. Flips
that follow classes it learns like plain training. What a network does not know yet pulls ten times less, so without
noise it underfits, and it never learns a rare class. So it takes the place of weighed cross entropy as far as none of
that is so,

    loss_i = (1 − s) w_i CE_i + s u_i SCE_i,        s = d · caution · min_k m_k / m̄

with d how far the network's own answers are trusted (`assessment`: noise without structure, training examples fitted no
better than held-out ones), the certainty of the judgement that there is noise, and m_k the estimated true sizes of the
classes that there are (`weights`).

SCE multiplies the pull of a label with about what the network gives it. Multiplied with its weight as well, a right
label that both doubt would be left out twice. But a network that learns by heart is misled by its present answers, and
weights by all it has ever said are not. So they count the less, the more d is one,

    u_i ∝ w_i^e,        e = min(1, 5 (1 − d))

with the mean of w. What a label counts in all is then v_i = (1 − s) w_i + s u_i.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from sgoif.tasks.labels.channel import Array

ALPHA = 0.1
"""Weight of the cross entropy."""
BETA = 1.0
"""Weight of the reverse cross entropy."""
LOG_OF_ZERO = -4.0
"""What stands for log 0 in the reverse cross entropy."""
STEEP = 5.0
"""How much faster than d the weights of a robust loss go."""


class RobustWeighting(NamedTuple):
    """How much of the loss is robust, and how far that part is weighed."""

    share: float = 0.0
    """s."""
    power: float = 1.0
    """e."""
    level: float = 1.0
    """What brings the weights of that part to the mean of the others."""

    def parts(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(1 − s) w and s u."""
        return (1 - self.share) * weights, self.share * self.level * weights**self.power


def robustness(answer_trust: float, caution: float, sizes: Array, weights: Array) -> RobustWeighting:
    """By d, the caution, m [C] and w of all judged examples; a class that nobody has does not count."""
    there = sizes[sizes >= 1]
    evenness = float(there.min() / there.mean()) if len(there) else 0.0
    power = min(1.0, STEEP * (1 - answer_trust))
    return RobustWeighting(answer_trust * caution * evenness, power, float(weights.mean() / (weights**power).mean()))


def reverse_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−Σ_k p_k log q_k for every example, q the label, one-hot if it is a class, and no logarithm below −4."""
    label = labels if labels.is_floating_point() else F.one_hot(labels, logits.shape[1]).to(logits)
    return -(logits.softmax(dim=1) * label.log().clamp_min(LOG_OF_ZERO)).sum(dim=1)


def symmetric_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """SCE for every example; labels are classes [B] or probabilities [B, C]."""
    return ALPHA * F.cross_entropy(logits, labels, reduction="none") + BETA * reverse_cross_entropy(logits, labels)
