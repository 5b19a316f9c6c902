"""A labelled collection of images, wherever they lie: names, labels, and every image on demand."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image

from sgoif.core.types import Array
from sgoif.images.backends import Store
from sgoif.images.errors import UnreadableImageError
from sgoif.images.text import shown


@dataclass(frozen=True)
class Skipped:
    """Something that was left out, and why."""

    name: str
    reason: str
    damaged: bool = False
    """It ought to be an image, and cannot be read."""


@dataclass(frozen=True)
class ManifestRows:
    """Which columns and rows of a manifest the images came from."""

    image_column: str
    label_column: str
    rows: Sequence[int]


@dataclass(eq=False)
class Collection:
    """Images with a name and a label each. Nothing is decoded before it is asked for."""

    names: list[str]
    """Unique and stable: the path below `root` with forward slashes, or "train/17" for an image without a file."""
    labels: Array
    """int64, positions in `class_names`; −1 where there is none"""
    class_names: list[str]
    layout: str
    source: Path
    """The absolute path that was opened."""
    store: Store
    root: Path | None = None
    """Where the names of files start."""
    split: str | None = None
    splits: list[str] | None = None
    """The split of each image where all were opened; `split` is then the one whose labels matter."""
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Choices made on the way that a person should hear of."""
    manifest: ManifestRows | None = None

    def __len__(self) -> int:
        return len(self.names)

    def file(self, number: int) -> Path | None:
        """The file that holds the image; None where images share a file."""
        return self.store.file(number)

    def image(self, number: int) -> Image.Image:
        """Decoded and upright, mode "L" or "RGB"; `UnreadableImageError` where that fails."""
        try:
            return self.store.image(number)
        except UnreadableImageError as error:
            raise UnreadableImageError(f"{shown(self.names[number])}: {error}") from error

    def digest(self) -> str:
        """Changes when names, labels, classes or the data behind them change."""
        sha = hashlib.sha256()
        for part in (self.names, self.class_names):
            sha.update(f"{len(part)};".encode())
            for text in part:
                encoded = text.encode("utf-8", "surrogatepass")
                sha.update(f"{len(encoded)}:".encode() + encoded)
        sha.update(np.ascontiguousarray(self.labels, dtype=np.int64).tobytes())
        self.store.fingerprint(sha.update)
        return sha.hexdigest()

    def pick(self, numbers: Sequence[int]) -> Self:
        """Some of the images, with all classes."""
        chosen = [int(number) for number in numbers]
        manifest = self.manifest
        if manifest is not None:
            manifest = replace(manifest, rows=[manifest.rows[number] for number in chosen])
        return replace(
            self,
            names=[self.names[number] for number in chosen],
            labels=self.labels[chosen],
            store=self.store.pick(chosen),
            splits=None if self.splits is None else [self.splits[number] for number in chosen],
            manifest=manifest,
        )
