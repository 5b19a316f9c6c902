"""The images of a run: the data sets of `sgoif_bench.labels.datasets`, and small pictures of three further kinds.

What is expected below ROOT for these:

    svhn        ood/svhn.npz          crops of house numbers, arrays x [n, 32, 32, 3] and y
    textures    ood/dtd.npz           the same
    photos      photos/CLASS/*.jpg    brought to 64×64 pixels

People's labels of CIFAR-10 and CIFAR-100 are ROOT/cifar10n.npz and ROOT/cifar100n.npz.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif_bench.errors import read_archive
from sgoif_bench.judgement.runs import Run
from sgoif_bench.labels.datasets import NAMES, LabelledData, load
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.noise import NoisyLabels, class_dependent, next_class

ARRAYS = {"svhn": "ood/svhn.npz", "textures": "ood/dtd.npz"}
PHOTOS, SIDE = "photos", 64
PEOPLE = {"cifar10": "cifar10n.npz", "cifar100": "cifar100n.npz"}


@lru_cache(maxsize=2)
def read_set(name: str, root: Path) -> LabelledData:
    """All training images of a data set."""
    if name in NAMES:
        return load(name, root)
    if name in ARRAYS:
        archive = read_archive(root / ARRAYS[name])
        return _labelled(name, archive["x"], archive["y"].astype(np.int64))
    if name == PHOTOS:
        return _photos(root / PHOTOS)
    raise SettingError(f"data set {name!r} is unknown; choose one of {', '.join((*NAMES, *ARRAYS, PHOTOS))}")


def _photos(folder: Path) -> LabelledData:
    from PIL import Image

    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; expected is one folder of JPEG files for each class in it")
    files = sorted(folder.glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    pixels = np.empty((len(files), SIDE, SIDE, 3), dtype=np.uint8)
    for row, file in enumerate(files):
        with Image.open(file) as picture:
            pixels[row] = np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX))
    return _labelled(PHOTOS, pixels, np.array([classes.index(file.parent.name) for file in files], dtype=np.int64))


def _labelled(name: str, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> LabelledData:
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    classes = tuple(str(label) for label in range(int(labels.max()) + 1))
    return LabelledData(name, images, labels, classes, np.arange(len(labels)))


def drawn(run: Run, root: Path) -> tuple[LabelledData, NoisyLabels]:
    """The images of a run, and their labels with its noise."""
    data = read_set(run.set, root)
    if run.size is not None and run.size < len(data):
        generator = np.random.default_rng((run.seed, run.size))
        some = np.sort(generator.choice(len(data), size=run.size, replace=False))
        data = replace(data, images=data.images[some], labels=data.labels[some], rows=data.rows[some])
    if run.noise.startswith("next-"):
        rate, flips = float(run.noise.removeprefix("next-")) / 100, next_class(len(data.classes))
        return data, class_dependent(data.labels, flips, seed=run.seed, overall=rate)
    people = root / PEOPLE[run.set] if run.set in PEOPLE else None
    return data, make_noise(run.noise, data, run.seed, people)
