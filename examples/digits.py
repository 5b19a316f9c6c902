"""Data and model of the examples for training frameworks: digits with some wrong labels, and a small network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from sgoif.tasks import LabelErrors


def noisy_digits(seed: int, share: float = 0.1) -> tuple[TensorDataset, set[int]]:
    """1,797 images of 8×8 pixels, a share of them with another label than theirs, and the indices of those."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    wrong = generator.choice(len(labels), round(share * len(labels)), replace=False)
    labels[wrong] = (labels[wrong] + generator.integers(1, 10, len(wrong))) % 10
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    return TensorDataset(images, torch.tensor(labels)), set(wrong.tolist())


def network() -> nn.Module:
    """Two convolutions and a linear head."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def hits(errors: LabelErrors, wrong: set[int]) -> float:
    """Print what was found; the share of wrong labels among as many of the most suspicious as are wrong."""
    table = errors.table()
    order = np.argsort(-np.nan_to_num(table["probability_wrong"]), kind="stable")
    top = table["index"][order][: len(wrong)]
    share = float(np.mean([int(index) in wrong for index in top]))
    print(errors)
    print(f"{len(wrong)} labels are wrong; {share:.0%} of the {len(top)} most suspicious are among them.")
    for row in order[:5]:
        print(
            f"  {table['index'][row]:5d}  given {table['given_label'][row]}  suggested {table['predicted_label'][row]}"
            f"  P(wrong) {table['probability_wrong'][row]:.3f}"
        )
    return share
