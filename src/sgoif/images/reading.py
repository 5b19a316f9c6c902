"""One pass over one image: pixels at the common size, whether it is grey, a hash of its content, a thumbnail."""

import hashlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from PIL import Image

from sgoif.core.types import Array
from sgoif.images.backends import Store
from sgoif.images.decode import LargeImageError, strips
from sgoif.images.errors import UnreadableImageError
from sgoif.images.pixels import thumbnail

Seen = TypeVar("Seen")
SMALL, MEDIUM = 32, 64
SMALL_LIMIT, LEAST_NATIVE = 48, 8
SAMPLE = 512
LARGE = 20_000_000
STRIP = 4_000_000
CHUNK = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What remains of an image once it has been read."""

    pixels: Array
    """uint8 [channels, size, size]; one channel where the image is grey"""
    content: bytes
    """Equal for images whose decoded pixels are equal."""
    size: tuple[int, int]
    thumbnail: bytes
    """Empty where `pixels` is the whole image, from which a thumbnail can be made at any time."""


def common_size(store: Store) -> int:
    """The side all images are brought to: 32 for small ones, 64 for others, their own where all are tiny squares.

    Decided from the headers of up to 512 images, spread evenly.
    """
    sizes = some_sizes(store)
    if not sizes:
        return MEDIUM
    width, height = sizes[0]
    if width == height and LEAST_NATIVE <= width < SMALL and all(size == sizes[0] for size in sizes):
        return width
    return SMALL if np.median([min(size) for size in sizes]) <= SMALL_LIMIT else MEDIUM


def spread(count: int) -> list[int]:
    """Up to 512 numbers below `count`, spread evenly."""
    found: list[int] = np.linspace(0, count - 1, min(count, SAMPLE)).round().astype(int).tolist()
    return found


def some_sizes(store: Store) -> list[tuple[int, int]]:
    """Width and height by the headers of up to 512 images."""
    sizes: list[tuple[int, int]] = []
    for number in spread(len(store)):
        with suppress(UnreadableImageError):
            sizes.append(store.size(number))
    return sizes


def usual_side(store: Store) -> float | None:
    """The median shorter side of up to 512 images; None where none can be read."""
    sides = [min(size) for size in some_sizes(store)]
    return float(np.median(sides)) if sides else None


def readings(store: Store, size: int) -> Generator[Reading | str, None, None]:
    """Every image in order, brought to one size; the reason where one cannot be read."""
    return each_image(store, lambda image: read_image(image, size))


def each_image(store: Store, look: Callable[[Image.Image], Seen]) -> Generator[Seen | str, None, None]:
    """What `look` makes of every image in order, read by several threads; the reason where one cannot be read."""
    turn = threading.Lock()
    return in_threads(len(store), lambda number: look_at(store, number, look, turn))


def in_threads(count: int, work: Callable[[int], Seen]) -> Generator[Seen, None, None]:
    """What `work` returns for every number below `count`, in order, from several threads.

    Decoding, resizing and hashing release Python's lock, so threads use all cores. Only a few chunks are in flight.
    """

    def chunk(start: int) -> list[Seen]:
        return [work(number) for number in range(start, min(start + CHUNK, count))]

    workers = max(min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8), 1)
    waiting: deque[Future[list[Seen]]] = deque()
    with warnings.catch_warnings(), ThreadPoolExecutor(workers, thread_name_prefix="images") as pool:
        # Pillow warns about large images and odd metadata; both are dealt with here.
        warnings.simplefilter("ignore")
        try:
            for start in range(0, count, CHUNK):
                waiting.append(pool.submit(chunk, start))
                if len(waiting) > 4 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def look_at(
    store: Store, number: int, look: Callable[[Image.Image], Seen], turn: threading.Lock, least: int | None = None
) -> Seen | str:
    """What `look` makes of one image, `least` of its pixels a side being enough; the reason where it cannot be read."""
    try:
        try:
            return look(store.image(number, LARGE, least))
        except LargeImageError:
            # Large images one at a time: several at once would fill the memory.
            with turn:
                return look(store.image(number, None, least))
    except UnreadableImageError as error:
        return str(error)


def read_image(image: Image.Image, size: int) -> Reading:
    """All that is kept of a decoded image."""
    grey, content = _content(image)
    if grey and image.mode == "RGB":
        image = image.getchannel(0)
    square = centre_square(image, size)
    values = np.asarray(square)
    pixels = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    small = b"" if square is image else thumbnail(image)
    return Reading(np.ascontiguousarray(pixels), content, image.size, small)


def centre_square(image: Image.Image, size: int) -> Image.Image:
    """The shorter side brought to `size` with antialiasing, the centre cut out."""
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)


def _content(image: Image.Image) -> tuple[bool, bytes]:
    """Whether every pixel is grey, and a hash of the pixels that does not depend on how grey is stored."""
    shape = f"{image.width}×{image.height}".encode()
    one, three = hashlib.blake2b(b"L" + shape, digest_size=16), hashlib.blake2b(b"RGB" + shape, digest_size=16)
    if image.mode == "L":
        for part in strips(image, STRIP):
            one.update(np.asarray(part).tobytes())
        return True, one.digest()
    grey = True
    for part in strips(image, STRIP):
        strip = np.asarray(part)
        three.update(strip.tobytes())
        if grey:
            red = strip[..., 0]
            grey = bool((red == strip[..., 1]).all() and (red == strip[..., 2]).all())
            one.update(red.tobytes())
    return grey, one.digest() if grey else three.digest()
