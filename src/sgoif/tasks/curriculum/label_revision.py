"""Labels for a second training, by what was believed at the end of the first.

A network that learned wrong labels before they lost their weight, and judged with what it knew at the time, has been
misled for good where a fresh one has not. With t_i what example i gives up by the last judgement (`weights`), and p_i
what the network at the end of its training answers to the image as it is,

    label_i = (1 − t_i) e(y_i) + t_i p_i

so every example counts as much as every other and none is lost: as far as a label is believed it is the label that is
learned, and where it is not, a network teaches another (Hinton et al., Distilling the Knowledge in a Neural Network,
2015). The answer is soft, for where the first network was in doubt the second should not be sure. `targets` asks the
network that is being trained, which confirms it in its mistakes; here the one that answers has learned nothing from its
own answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.batches import read_items, to_device
from sgoif.core.data import isolated_random_state
from sgoif.core.logits import two_classes
from sgoif.core.objective import check_labels
from sgoif.errors import SettingError
from sgoif.tasks.curriculum.targets import blend_targets
from sgoif.tracking.evaluation import evaluation, forward

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

BATCH = 256


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
