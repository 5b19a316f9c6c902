"""scikit-learn's handwritten digits, digits taken for others that look alike, and a network small enough for them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sgoif.audit.networks import conv_block
from sgoif.errors import MissingExtraError

CLASSES = 10
FLIPS: Mapping[int, int] = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
"""Which digit is taken for which: 2→7, 3→8, 5↔6, 7→1."""


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images float32 [1797, 1, 8, 8] with zero mean and unit spread, and labels; they come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo", "The digits data set") from error
    pixels, labels = load(return_X_y=True)
    images = pixels.reshape(-1, 1, 8, 8).astype(np.float32)
    return (images - images.mean()) / images.std(), labels.astype(np.int64)


def flip_labels(
    labels: NDArray[np.int64], flips: Mapping[int, int], count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels of which `count`, drawn from the classes in `flips`, are made wrong, and the mask of the wrong ones."""
    candidates = np.flatnonzero(np.isin(labels, list(flips)))
    chosen = np.random.default_rng(seed).choice(candidates, size=count, replace=False)
    noisy = labels.copy()
    noisy[chosen] = [flips[int(label)] for label in labels[chosen]]
    return noisy, noisy != labels


def digits_net(classes: int = 10, width: int = 16) -> nn.Sequential:
    """A small convolutional network for 1×8×8 images."""
    return nn.Sequential(
        conv_block(1, width),
        conv_block(width, 2 * width, pool=True),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, classes),
    )
