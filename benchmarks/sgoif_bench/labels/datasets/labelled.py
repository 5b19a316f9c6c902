"""What a data set is to the comparison, and what is asked of a reader of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.command import Say

if TYPE_CHECKING:
    from sgoif.images import Skipped

Labels = NDArray[np.int64]
UNKNOWN = -1
RESIZED_AT_ONCE = 4096


@dataclass(frozen=True)
class LabelledData:
    """Images with the labels they were published with."""

    name: str
    images: Tensor
    """uint8 [N, C, H, W]; of a large data set mapped from disk, so read it in parts"""
    labels: Labels
    classes: tuple[str, ...]
    rows: Labels
    """The position of every image in the published order; not 0, 1, 2 ... where only some of them were read."""
    train: bool = True
    superclasses: tuple[int, ...] | None = None
    """The superclass of each class, where the classes have some."""
    clean_labels: Labels | None = None
    """For sets whose labels are wrong as they are published: the right class where somebody has looked, -1 where nobody
    has. For the judge alone; no method may see it. None: the labels are taken to be right."""
    skipped: tuple[Skipped, ...] = ()
    """What could not be read, and why."""

    def __post_init__(self) -> None:
        sizes = {len(self.images), len(self.labels), len(self.rows)}
        if self.clean_labels is not None:
            sizes.add(len(self.clean_labels))
        if len(sizes) > 1 or len(self.labels) == 0:
            raise SettingError(f"{self.name}: {len(self.images)} images do not go with {len(self.labels)} labels")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise SettingError(
                f"{self.name} has labels from {self.labels.min()} to {self.labels.max()}, "
                f"but its classes are 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def verified(self) -> NDArray[np.bool_]:
        """Where the right class is known: everywhere, unless the labels were noisy from the start."""
        known = np.ones(len(self), dtype=np.bool_)
        if self.clean_labels is not None:
            known[self.clean_labels == UNKNOWN] = False
        return known


@dataclass(frozen=True)
class Ask:
    """One call of `load`."""

    name: str
    root: Path
    train: bool
    size: int | None
    limit: int | None
    cache: Path | None
    tell: Say

    @property
    def split(self) -> str:
        """The usual name of the part that is asked for."""
        return "train" if self.train else "test"

    def rows(self, total: int) -> Labels:
        """Which of so many examples are wanted: all, or as many as the limit says, spread evenly."""
        wanted = total if self.limit is None else min(self.limit, total)
        return np.linspace(0, total - 1, wanted).round().astype(np.int64)

    def sized(self, images: Tensor) -> Tensor:
        """Images at the size that is asked for, by default their own."""
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        resized = images.new_empty((*images.shape[:2], self.size, self.size))
        for start in range(0, len(images), RESIZED_AT_ONCE):
            part = slice(start, start + RESIZED_AT_ONCE)
            resized[part] = F.interpolate(images[part], (self.size, self.size), mode="bilinear", antialias=True)
        return resized


Reader = Callable[[Ask], LabelledData]
