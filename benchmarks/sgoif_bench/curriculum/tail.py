"""Long-tailed versions of a data set: the classes shrink exponentially.

With C classes, n the size of the smallest class and a ratio of 1:ρ, class k keeps its first

    n_k = round(n ρ^(−k/(C−1)))

examples in the published order, the first class all n and the last n/ρ (Cao et al., Learning Imbalanced Datasets with
Label-Distribution-Aware Margin Loss, NeurIPS 2019). The test set stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sgoif.errors import SettingError
from sgoif_bench.labels.datasets import LabelledData


def tail_sizes(smallest: int, classes: int, ratio: float) -> list[int]:
    """How many examples each class keeps."""
    return [max(1, round(smallest * ratio ** (-k / max(classes - 1, 1)))) for k in range(classes)]


def tailed(data: LabelledData, ratio: float) -> LabelledData:
    """The data set with exponentially fewer examples from class to class."""
    counts = np.bincount(data.labels, minlength=len(data.classes))
    if counts.min() == 0:
        raise SettingError(f"{data.name} has no example of class {data.classes[int(counts.argmin())]!r} to shrink")
    sizes = tail_sizes(int(counts.min()), len(data.classes), ratio)
    kept = np.sort(np.concatenate([np.flatnonzero(data.labels == k)[:size] for k, size in enumerate(sizes)]))
    clean = data.clean_labels
    return replace(
        data,
        images=data.images[torch.from_numpy(kept)],
        labels=data.labels[kept],
        rows=data.rows[kept],
        clean_labels=None if clean is None else clean[kept],
    )
