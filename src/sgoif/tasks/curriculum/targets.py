"""What a network should answer to examples whose label is probably wrong, once nothing is judged any more.

What example i gives up, t_i (`weights`), goes to the network's own answer ŷ_i of the moment:

    target_i = (1 − t_i) e(y_i) + t_i e(ŷ_i)

so a wrong label is not only forgotten but replaced, and every example counts as much as every other (Arazo et al.,
Unsupervised Label Noise Modeling and Loss Correction, ICML 2019, who take t from a mixture of losses). An example that
was doubted without reason has its label back as soon as the network answers with it. While examples are still judged
there are only weights: one that is trained towards another label would be evidence for the judgement that changed it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.tasks.labels.channel import Array, Labels


def doubt_by_index(index: Labels, taken: Array) -> Tensor:
    """t by example, float32 [n], from that of some examples; it is 0 for all others."""
    found = torch.zeros(int(index.max(initial=-1)) + 1)
    found[torch.from_numpy(index)] = torch.from_numpy(np.asarray(taken, dtype=np.float32))
    return found


def blend_targets(labels: Tensor, doubt: Tensor, answers: Tensor) -> Tensor:
    """What to learn, float32 [B, C], from labels and doubts [B] and answers [B, C] whose rows sum to one."""
    share = doubt[:, None]
    return (1 - share) * F.one_hot(labels, answers.shape[1]) + share * answers


def one_hot_answers(logits: Tensor) -> Tensor:
    """e(ŷ) of a batch, [B, C]: the class that the network answers with."""
    return F.one_hot(logits.detach().argmax(1), logits.shape[1])
