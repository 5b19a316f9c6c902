"""scikit-learn's handwritten digits: 1,797 images of 8×8 pixels that come with the package."""

from __future__ import annotations

import numpy as np
import torch

from sgoif.errors import MissingExtraError
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData

BRIGHTEST = 16
TEST_EVERY = 5


def digits(ask: Ask) -> LabelledData:
    """Four images of five for training and every fifth for the test, since no test set is published."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo", "The digits data set") from error
    pixels, labels = load_digits(return_X_y=True)
    is_test = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
    part = np.flatnonzero(is_test != ask.train)
    rows = part[ask.rows(len(part))]
    grey = np.rint(pixels[rows].reshape(-1, 1, 8, 8) * (255 / BRIGHTEST)).astype(np.uint8)
    return LabelledData(
        ask.name,
        ask.sized(torch.from_numpy(grey)),
        labels[rows].astype(np.int64),
        tuple(str(digit) for digit in range(10)),
        rows,
        ask.train,
    )
