"""A data set with wrong labels as the audit is given it: a folder of image files, with a subfolder for every class.

Files are numbered at random, so that their order tells nothing of the right labels.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from sgoif_bench.labels.datasets.labelled import Labels


def write_folder(folder: Path, labels: Labels, seed: int, images: Tensor, files: Sequence[Path] | None) -> Labels:
    """Write images under their labels, `files` as they are where there are such; returns the number of each image."""
    from PIL import Image

    numbers = np.random.default_rng((seed, len(labels))).permutation(len(labels))
    for row, (number, label) in enumerate(zip(numbers.tolist(), labels.tolist(), strict=True)):
        place = folder / f"{label:03d}"
        place.mkdir(parents=True, exist_ok=True)
        if files is None:
            pixels = images[row].permute(1, 2, 0).squeeze(2).numpy()
            Image.fromarray(pixels).save(place / f"{number:06d}.png")
        else:
            _take(files[row], place / f"{number:06d}{files[row].suffix}")
    return numbers


def _take(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(file, target)
