"""What a network should answer to examples whose label is probably wrong, once nothing is judged any more.

What example i gives up, t_i (`weights`), goes to the network's own answer ŷ_i of the moment:

    target_i = (1 − t_i) e(y_i) + t_i e(ŷ_i)

so a wrong label is not only forgotten but replaced, and every example counts as much as every other (Arazo et al.,
Unsupervised Label Noise Modeling and Loss Correction, ICML 2019, who take t from a mixture of losses). An example that
was doubted without reason has its label back as soon as the network answers with it. While examples are still judged
there are only weights: one that is trained towards another label would be evidence for the judgement that changed it.

*A second training.* A network that learned wrong labels before they lost their weight has been misled for good where a
fresh one has not. With t_i by the last judgement, and p_i what the network at the end answers to the image as it is,

    label_i = (1 − t_i) e(y_i) + t_i p_i

so as far as a label is believed it is the label that is learned, and where it is not, a network teaches another (Hinton
et al., Distilling the Knowledge in a Neural Network, 2015). The answer is soft, for where the first network was in
doubt the second should not be sure. A network that is being trained confirms itself in its mistakes; here the one that
answers has learned nothing from its own answers.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.batches import read_items, to_device
from sgoif.core.data import isolated_random_state
from sgoif.core.logits import two_classes
from sgoif.core.objective import check_labels
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tracking.evaluation import evaluation, forward

BATCH = 256


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


def revise(monitor: InfluenceMonitor, doubt: Tensor, dataset: Dataset[Any]) -> Tensor:
    """The labels of every item of a data set, float32 [N, C] on the CPU, with t by index; 0 where there is none."""
    size = _size(dataset, len(doubt))
    doubt = F.pad(doubt, (0, size - len(doubt)))
    found = torch.empty(size, monitor.classes)
    with isolated_random_state(monitor.device), evaluation(monitor.model), torch.no_grad():
        for some in torch.arange(size).split(BATCH):
            inputs, given = read_items(dataset, some)
            labels = check_labels(given, len(some), monitor.classes, monitor.device)
            assert labels is not None
            answers = two_classes(forward(monitor.model, to_device(inputs, monitor.device)).float()).softmax(1)
            found[some] = blend_targets(labels, doubt[some].to(monitor.device), answers).cpu()
    return found


def _size(dataset: Dataset[Any], judged: int) -> int:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise SettingError(f"labels are revised for a data set with a length and items, not {type(dataset).__name__}")
    size = len(dataset)
    if size < judged:
        raise SettingError(
            f"the data set has {size} examples, but labels up to index {judged - 1} were judged. Give the whole data"
            " set, numbered as in training, with the transforms of the evaluation data"
        )
    return size
