"""The images that are written: of a data set, in its own files where it has such, or generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sgoif_bench.command import Say
from sgoif_bench.findings.changes import Picture, encoded
from sgoif_bench.pretrained.sets import SETS, originals, read

GENERATED = "generated"
NAMES = (GENERATED, *SETS)
FOREIGN = {"photos": "svhn", "svhn": "textures", "textures": "svhn"}
"""Whose images are off topic in a data set; textures, or what was generated otherwise, in all others."""
SIDE, CLASSES, COUNT = 48, 6, 900
"""Of generated images."""
READ = 32
"""Pixels a side at which photos are read where only their labels are asked for."""


@dataclass(frozen=True)
class Pictures:
    """Labelled images."""

    labels: NDArray[np.int64]
    classes: Sequence[str]
    image: Callable[[int], Picture]
    """Image of a row, in colour."""
    files: Sequence[Path] | None = None
    """The publishers' own."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def suffix(self) -> str:
        """How a file that is written anew ends."""
        return ".png" if self.files is None else ".jpg"

    def file(self, row: int) -> tuple[bytes, str]:
        """Content and ending of the file of a row, as it was published where it was."""
        if self.files is not None:
            return self.files[row].read_bytes(), self.files[row].suffix.lower()
        return encoded(self.image(row), ".png"), ".png"


def pictures(name: str, root: str | None, limit: int | None, tell: Say) -> Pictures:
    """The images of a data set."""
    if name == GENERATED:
        return generated(limit or COUNT)
    data = read(name, root, READ, limit, tell)
    files = originals(name, root, data.rows)
    classes = [word.replace("/", "-") for word in data.classes]
    if files is not None:
        return Pictures(data.labels, classes, lambda row: Image.open(files[row]).convert("RGB"), files)
    pixels = data.images

    def image(row: int) -> Picture:
        planes = pixels[row].permute(1, 2, 0).numpy()
        return Image.fromarray(planes[..., 0] if planes.shape[2] == 1 else planes).convert("RGB")

    return Pictures(data.labels, classes, image)


def foreign(name: str, root: str | None, tell: Say) -> Pictures:
    """Images that do not belong to it."""
    other = FOREIGN.get(name, "textures")
    if name == GENERATED or root is None:
        return Pictures(np.zeros(COUNT, dtype=np.int64), ["chequered"], chequered)
    return pictures(other, root, None, tell)


def generated(count: int) -> Pictures:
    """Clouds with contrast at every scale, as in photographs; each class has its colours and its direction."""
    labels = np.arange(count) % CLASSES

    def image(row: int) -> Picture:
        rng = np.random.default_rng((row, count))
        label = int(labels[row])
        across, down = np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE))
        angle = np.pi * label / CLASSES
        along = across * np.cos(angle) + down * np.sin(angle)
        length = np.sqrt(across**2 + down**2 + 3 * along**2)
        length[0, 0] = np.inf
        waves = rng.normal(size=(3, SIDE, SIDE)) + 1j * rng.normal(size=(3, SIDE, SIDE))
        clouds = np.fft.ifft2(waves / length).real
        clouds = clouds[:1] + 0.4 * clouds
        clouds *= rng.uniform(35, 60) / clouds.std()
        tint = 128 + 40 * np.cos(2 * np.pi * (label / CLASSES + np.arange(3) / 3)) + rng.normal(0, 25, 3)
        return Image.fromarray(np.clip(clouds + tint[:, None, None], 0, 255).astype(np.uint8).transpose(1, 2, 0).copy())

    return Pictures(labels, [f"cloud {letter}" for letter in "abcdef"], image)


def chequered(row: int) -> Picture:
    """Squares of two colours."""
    rng = np.random.default_rng((1, row))
    colours = rng.integers(0, 256, (2, 3))
    place = np.add.outer(np.arange(SIDE), np.zeros(SIDE, int)) // int(rng.integers(3, 9))
    return Image.fromarray(colours[(place + place.T) % 2].astype(np.uint8))
