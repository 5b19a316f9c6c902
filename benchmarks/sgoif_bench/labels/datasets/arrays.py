"""Small data sets whose readers find arrays: into memory, as tensors."""

from __future__ import annotations

import numpy as np
import torch

from sgoif.images.backends import Arrays
from sgoif.images.sources.base import Found
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData


def from_arrays(
    ask: Ask, found: Found, classes: tuple[str, ...], superclasses: tuple[int, ...] | None = None
) -> LabelledData:
    """The wanted rows of what a reader found."""
    store = found.store
    assert isinstance(store, Arrays)
    rows = ask.rows(len(store))
    pixels = np.stack([store.raw(row) for row in rows.tolist()])
    planes = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    images = torch.from_numpy(np.ascontiguousarray(planes))
    labels = np.asarray(found.labels, dtype=np.int64)[rows]
    return LabelledData(ask.name, ask.sized(images), labels, classes, rows, ask.train, superclasses)
