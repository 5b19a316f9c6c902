"""The digits that every loop trains on: all 1,797, with labels made wrong as asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sgoif_bench.labels.datasets import LabelledData, load
from sgoif_bench.labels.noises import make_noise


@dataclass(frozen=True)
class Digits:
    """Images of zero mean and unit spread, given and right labels."""

    images: Tensor
    given: NDArray[np.int64]
    right: NDArray[np.int64]

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """Which labels are wrong."""
        return np.asarray(self.given != self.right)

    def dataset(self) -> TensorDataset:
        """Pairs of an image and its given label."""
        return TensorDataset(self.images, torch.from_numpy(self.given))


def noisy_digits(noise: str, seed: int, limit: int | None = None) -> Digits:
    """The digits with this noise, or the first so many of them."""
    data = all_digits()
    given = make_noise(noise, data, seed).labels
    images = data.images.float()
    images = (images - images.mean()) / images.std()
    return Digits(images[:limit], given[:limit], data.labels[:limit])


def all_digits() -> LabelledData:
    """Training and test part of the data set in the published order: loops hold out examples of their own."""
    parts = [load("digits", None, train=train) for train in (True, False)]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows)
    images = torch.cat([part.images for part in parts])[torch.from_numpy(order)]
    labels = np.concatenate([part.labels for part in parts])[order]
    return LabelledData("digits", images, labels, parts[0].classes, rows[order])
