"""From images to what the network takes: one size, a fixed number of channels, normalised, in batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.audit.batches import LOOKED_AT, Normalisation
from sgoif.audit.progress import Progress
from sgoif.commands.settings import ModelSettings
from sgoif.images.backends import Store
from sgoif.images.collection import Collection, Skipped
from sgoif.images.errors import ImagesError, UnreadableImageError
from sgoif.images.pixels import thumbnail
from sgoif.images.reading import common_size, readings
from sgoif.images.text import shown

Array = np.ndarray[Any, Any]
LOOKED_AT_BYTES = 2**28
"""Pixels held at once while mean and spread are taken."""
LUMA = np.array([0.299, 0.587, 0.114])
"""What red, green and blue count for grey, as Pillow has it."""
NAMED = 5
"""Images left out that are named one by one."""


@dataclass(frozen=True)
class Preparation:
    """How an image becomes what the network takes."""

    size: int
    channels: int
    normalise: Normalisation

    def __call__(self, images: Sequence[Array]) -> Tensor:
        """Bytes [channels, size, size] of every image to one batch."""
        return self.normalise(torch.from_numpy(np.stack([in_channels(image, self.channels) for image in images])))


def in_channels(image: Array, channels: int) -> Array:
    """Grey repeated for a network that takes colour, colour weighed into grey for one that takes grey."""
    if len(image) == channels:
        return image
    if channels > 1:
        return np.broadcast_to(image, (channels, *image.shape[1:]))
    grey: Array = np.rint(np.tensordot(LUMA, image, 1))[None].astype(np.uint8)
    return grey


def preparation_for(store: Store, settings: ModelSettings) -> Preparation:
    """What was asked for, and from a look at images spread over the data what was not, as an audit chooses it."""
    size = common_size(store) if settings.image_size is None else settings.image_size
    mean, spread = settings.mean, settings.spread
    if mean is not None and spread is not None:
        whole = Normalisation(tuple(255 * value for value in mean), tuple(255 * value for value in spread))
        return Preparation(size, len(mean), whole)
    count = min(len(store), LOOKED_AT, max(1, LOOKED_AT_BYTES // (3 * size * size)))
    spread_evenly = np.unique(np.linspace(0, len(store) - 1, count).astype(np.int64)).tolist()
    found = [reading.pixels for reading in readings(store.pick(spread_evenly), size) if not isinstance(reading, str)]
    if not found:
        raise ImagesError(f"none of {count} images could be read; the data seem to be damaged")
    channels = max(map(len, found)) if settings.channels is None else settings.channels
    return Preparation(size, channels, Normalisation.of(np.stack([in_channels(image, channels) for image in found])))


def thumbnail_of(data: Collection, number: int) -> bytes | None:
    """A small picture of an image of a collection; None where it can no longer be read."""
    try:
        return thumbnail(data.image(number))
    except UnreadableImageError:  # it was there a moment ago
        return None


@dataclass(frozen=True)
class Batch:
    """Some images of a store, by their numbers, and as the network takes them."""

    numbers: list[int]
    images: Tensor


class Unreadable:
    """Images that were left out, told as they are met."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.found: list[Skipped] = []
        self._say = say

    def __call__(self, name: str, reason: str) -> None:
        self.found.append(Skipped(name, reason))
        if len(self.found) <= NAMED:
            self._say(f"left out {shown(name)}: {reason}")

    def first(self) -> str:
        """The first of them, for the message that nothing is left."""
        return f"the first, {shown(self.found[0].name)}: {self.found[0].reason}"

    def summarise(self) -> None:
        """Say how many more there were."""
        if len(self.found) > NAMED:
            self._say(f"left out {len(self.found) - NAMED} more that could not be read")


def collection_batches(
    data: Collection, prepare: Preparation, batch_size: int, what: str, unreadable: Unreadable, show: Progress
) -> Iterator[Batch]:
    """All images in order, while `what` goes on; what cannot be read is told."""
    for entry in data.skipped:
        unreadable(entry.name, entry.reason)
    show.stage(what, len(data))
    for batch in batches(data.store, prepare, batch_size, lambda n, why: unreadable(data.names[n], why)):
        yield batch
        show.advance(batch.numbers[-1] + 1, len(data))


def batches(
    store: Store, prepare: Preparation, batch_size: int, unreadable: Callable[[int, str], None]
) -> Iterator[Batch]:
    """All images in order; what cannot be read goes to `unreadable(number, reason)`."""
    numbers: list[int] = []
    pixels: list[Array] = []
    with closing(readings(store, prepare.size)) as stream:
        for number, reading in enumerate(stream):
            if isinstance(reading, str):
                unreadable(number, reading)
                continue
            numbers.append(number)
            pixels.append(reading.pixels)
            if len(numbers) == batch_size:
                yield Batch(numbers, prepare(pixels))
                numbers, pixels = [], []
    if numbers:
        yield Batch(numbers, prepare(pixels))
