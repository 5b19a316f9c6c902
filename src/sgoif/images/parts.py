"""What was read of images before a run was cut short: the next one takes it over and reads on behind it.

A part holds what was read of the next few hundred images, in a file that is complete before it takes its name, which is
the number of the first of them. A part that is damaged, or of other images, counts as not there.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.core.serialization import DAMAGE, load_state, save_state
from sgoif.core.types import Array
from sgoif.errors import StateError
from sgoif.images.containment import contained_file
from sgoif.images.measurements import ROW
from sgoif.images.reading import Reading

FOLDER = ".reading"
MOST_IMAGES, MOST_BYTES = 1024, 2**24
"""Of a part: images, and bytes of their pixels. A kill costs what was read since the last part."""

Read = tuple[Reading, Array] | str
"""An image and its row of measurements, or the reason why it cannot be read."""


def remove_parts(folder: Path) -> None:
    """Remove all parts in a folder of images, when they are no longer needed."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


class Parts:
    """The parts in a folder of images that are being prepared."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """`identity`, in terms of JSON, tells these images and their size from others; it has the keys images, size."""
        self.folder, self._identity = folder, dict(identity)
        self.taken = 0
        """Images that were taken over so far."""

    def read(self) -> Iterator[Read]:
        """The images that are there, from the first on."""
        while True:
            try:
                found = self._part(self.taken)
            except (StateError, *DAMAGE):
                return
            if not found:
                return
            self.taken += len(found)
            yield from found

    def keep(self, images: Iterable[Read]) -> Iterator[Read]:
        """Pass on the images behind those that were taken over, and write them meanwhile."""
        part: list[Read] = []
        first, size, disk_full = self.taken, 0, False
        for found in images:
            if not disk_full:
                part.append(found)
                size += 0 if isinstance(found, str) else found[0].pixels.nbytes
                if len(part) >= MOST_IMAGES or size >= MOST_BYTES:
                    disk_full = not self._written(part, first)
                    first += len(part)
                    part, size = [], 0
            yield found

    def _written(self, part: list[Read], first: int) -> bool:
        """Write a part; False where there is no room for it: parts only save time, so they give way to the images."""
        images = [found for found in part if not isinstance(found, str)]
        side = self._identity["size"]
        channels = max((len(reading.pixels) for reading, _ in images), default=1)
        pixels = np.empty((len(images), channels, side, side), dtype=np.uint8)
        for place, (reading, _) in enumerate(images):
            pixels[place] = reading.pixels  # grey ones are told by their rows
        rows = np.concatenate([np.zeros(0, ROW), *(row for _, row in images)])
        thumbnails = np.frombuffer(b"".join(reading.thumbnail for reading, _ in images), dtype=np.uint8)
        state = {
            "of": self._identity,
            "count": len(part),
            "unreadable": [[place, found] for place, found in enumerate(part) if isinstance(found, str)],
            "lengths": [len(reading.thumbnail) for reading, _ in images],
            "pixels": torch.from_numpy(pixels),
            "rows": torch.from_numpy(rows.view(np.uint8)),
            "thumbnails": torch.from_numpy(thumbnails.copy()),
        }
        try:
            save_state(self.folder / FOLDER / f"{first}.npz", state)
        except OSError:
            remove_parts(self.folder)
            return False
        return True

    def _part(self, first: int) -> list[Read]:
        """The images of a part; none where it is of other images. What a damaged one raises is in `DAMAGE`."""
        state = load_state(contained_file(self.folder, f"{FOLDER}/{first}.npz"))
        if state["of"] != self._identity or not 0 < state["count"] <= self._identity["images"] - first:
            return []
        rows, pixels, thumbnails = (state[name].numpy() for name in ("rows", "pixels", "thumbnails"))
        rows = rows.view(ROW)
        side = self._identity["size"]
        if pixels.dtype != np.uint8 or pixels.shape[1:] not in ((1, side, side), (3, side, side)):
            raise ValueError(f"pixels are {pixels.dtype} {list(pixels.shape)}")
        ends = [0, *np.cumsum(state["lengths"], dtype=np.int64).tolist()]
        images: Iterator[Read] = (
            (
                Reading(
                    planes[:1] if row["grey"] else planes,
                    row["content"].tobytes(),
                    (int(row["width"]), int(row["height"])),
                    thumbnails[start:end].tobytes(),
                ),
                rows[place : place + 1],
            )
            for place, (row, planes, (start, end)) in enumerate(zip(rows, pixels, pairwise(ends), strict=True))
        )
        unreadable = dict(state["unreadable"])
        return [str(unreadable[place]) if place in unreadable else next(images) for place in range(state["count"])]
