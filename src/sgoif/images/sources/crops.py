"""Boxes drawn on images, each an image of its own: cut out when it is asked for."""

import io
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from sgoif.core.types import Array
from sgoif.images.backends import Encoded, Files, Update, stamp
from sgoif.images.decode import decode, size_of
from sgoif.images.errors import UnreadableImageError


class Crops(Encoded):
    """Boxes [n, 4] of image files: left, top, right and bottom, in pixels or as shares of width and height.

    `told` is the file that tells of the boxes of each image file, `places` where each box stands in it.
    """

    def __init__(
        self,
        files: Sequence[str],
        owners: Sequence[int] | Array,
        boxes: Array,
        *,
        shares: bool,
        told: Sequence[str],
        places: Sequence[int] | Array,
    ) -> None:
        self._files, self._told, self._shares = list(files), list(told), shares
        self._owners = np.asarray(owners, dtype=np.int64)
        """Position of the file of each box."""
        self._places = np.asarray(places, dtype=np.int64)
        self._boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        self._last = threading.local()

    def __len__(self) -> int:
        return len(self._owners)

    def origin(self, number: int) -> tuple[str, str, int]:
        """The file that tells of a box, the image that it is drawn on, and its place in the former."""
        owner = int(self._owners[number])
        return self._told[owner], self._files[owner], int(self._places[number])

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        whole = self._whole(int(self._owners[number]), most)
        cut = whole.crop(self._place(number, whole.size))
        cut.format = whole.format
        return cut

    def _whole(self, owner: int, most: int | None) -> Image.Image:
        """The image that a box is drawn on. Boxes of one image follow each other, so each thread keeps its last one,
        unless it is one of those that would fill the memory.
        """
        last: tuple[int, Image.Image] | None = getattr(self._last, "seen", None)
        if last is not None and last[0] == owner:
            return last[1]
        whole = decode(Path(self._files[owner]), most)
        self._last.seen = None if most is None else (owner, whole)
        return whole

    def _place(self, number: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
        width, height = size
        box = self._boxes[number] * ((width, height, width, height) if self._shares else 1)
        left, top, right, bottom = np.rint(box.clip(0, (width, height, width, height))).astype(int).tolist()
        if right <= left or bottom <= top:
            raise UnreadableImageError(f"its box holds no pixel of the image, which has {width}×{height}")
        return left, top, right, bottom

    def size(self, number: int) -> tuple[int, int]:
        left, top, right, bottom = self._place(number, size_of(Path(self._files[int(self._owners[number])])))
        return right - left, bottom - top

    def encoded(self, number: int) -> bytes:
        """The box as a PNG file."""
        file = io.BytesIO()
        self.image(number).save(file, "PNG")
        return file.getvalue()

    def content(self, number: int, update: Update) -> None:
        update(self._boxes[number].tobytes())
        Files([self._files[int(self._owners[number])]]).content(0, update)

    def fingerprint(self, update: Update) -> None:
        for file in self._files:
            update(stamp(file))
        update(f"{self._shares};".encode() + self._owners.tobytes() + self._boxes.tobytes())

    def pick(self, numbers: Sequence[int]) -> "Crops":
        chosen = np.asarray(numbers, dtype=np.int64)
        owners, boxes, places = self._owners[chosen], self._boxes[chosen], self._places[chosen]
        return Crops(self._files, owners, boxes, shares=self._shares, told=self._told, places=places)


NO_BOXES = Crops([], [], np.zeros(0), shares=False, told=[], places=[])
