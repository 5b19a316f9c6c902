"""The features of a collection: from the cache where they are there, else decoded by threads and computed meanwhile."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sgoif.backbones import Backbone
from sgoif.core.types import Array
from sgoif.errors import ModelError
from sgoif.features.store import KEY, FeatureStore, cache_folder
from sgoif.images.backends import Store
from sgoif.images.collection import Collection, Skipped
from sgoif.images.errors import UnreadableImageError
from sgoif.images.reading import in_threads, look_at

Progress = Callable[[int, int], None]
Work = Callable[[], Array]
AT_ONCE = {"cpu": 16, "cuda": 128}
"""Images whose features are computed and written together."""
TOLD_EVERY = 256
"""Images after which progress is told of where all of them are in the cache."""
SPARE = 2
"""How many times the pixels needed a JPEG is decoded to at least, in each direction."""


@dataclass(frozen=True, eq=False)
class Features:
    """What a network makes of the images of a collection."""

    array: Array
    """float16 [readable images, width]; mapped from the cache where it lies there in this order"""
    rows: Array
    """int64: the numbers in the collection of the images that the rows belong to"""
    unreadable: list[Skipped]
    """Images that were left out, and why."""
    size: int
    """Pixels a side that the network saw."""
    backbone: str
    """Name of the network."""
    reused: int
    """How many of the rows were in the cache before."""


def extract_features(
    collection: Collection,
    backbone: Backbone,
    size: int | None = None,
    cache: Path | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    progress: Progress | None = None,
) -> Features:
    """The features of all images, whatever their labels; those that were computed before come from the cache.

    What is kept belongs to the content of an image and not to its name: a file that was moved keeps its features, one
    that was changed is read anew. A run that was cut short goes on where it was; several may use one cache.

    Args:
        collection: what `open_images` or `open_unlabelled` opened.
        backbone: what `load_backbone` loaded.
        size: one of `backbone.sizes`; `backbone.size` where not given. `choose_resolution` finds one.
        cache: the folder to keep them in; `cache_folder()` where not given. What is in it may be deleted at any time.
        device: where the network runs.
        progress: called now and then with the number of images that are done, and of all.

    Example:
        ```python
        import numpy as np

        from sgoif.backbones import load_backbone
        from sgoif.features import choose_resolution, extract_features
        from sgoif.images import open_images

        images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
        np.savez("digits.npz", x=images, y=np.arange(20) % 2)
        try:
            backbone = load_backbone("lite0")                        # pip install 'sgoif[pretrained]'
        except ImportError as error:
            print(error)
        else:
            collection = open_images("digits.npz")
            size, why = choose_resolution(backbone, collection)      # 160
            features = extract_features(collection, backbone, size)
            features.array, features.rows                            # [20, 1280] float16, [20] int64
        ```
    """
    size = backbone.checked_size(size)
    store = FeatureStore(cache or cache_folder(), backbone.digest, size, backbone.width)
    stored = store.read()
    before = stored.where
    keys: list[bytes | None] = []
    reasons: dict[bytes | int, str] = {}
    waiting: dict[bytes, Array] = {}
    at_once = images_at_once(device)
    under_way: deque[tuple[list[bytes], Work]] = deque()

    def finish(left: int = 0) -> None:
        """Compute what waits for it, and keep what is computed; so many computations may be left under way."""
        if waiting:
            work = partial(features_of, backbone, list(waiting.values()), size, device)
            under_way.append((list(waiting), begin(work)))
            waiting.clear()
        while len(under_way) > left:
            store.append(under_way[0][0], under_way[0][1]())
            under_way.popleft()
        if progress is not None:
            progress(len(keys) - sum(len(unfinished) for unfinished, _ in under_way), len(collection))

    reader = _Reader(collection.store, size, before)
    with _computing(device) as (begin, together), closing(in_threads(len(collection), reader)) as stream:
        for number, (key, seen) in enumerate(stream):
            keys.append(key)
            if isinstance(seen, str):
                reasons[number if key is None else key] = seen
            elif key is not None and seen is not None:
                waiting[key] = seen
            if len(waiting) == at_once or (not waiting and number % TOLD_EVERY == TOLD_EVERY - 1):
                finish(together)
        finish()
    if any(key not in before for key in keys):
        stored = store.read()
    told = [reasons.get(number if key is None else key) for number, key in enumerate(keys)]
    kept = {number: key for number, key in enumerate(keys) if key is not None and told[number] is None}
    return Features(
        array=stored.of(list(kept.values())),
        rows=np.array(list(kept), dtype=np.int64),
        unreadable=[Skipped(name, why) for name, why in zip(collection.names, told, strict=True) if why is not None],
        size=size,
        backbone=backbone.name,
        reused=sum(key in before for key in kept.values()),
    )


def images_at_once(device: torch.device) -> int:
    """Images whose features are computed and written together on this device."""
    return AT_ONCE.get(device.type, AT_ONCE["cuda"])


def features_of(backbone: Backbone, pixels: Sequence[Array], size: int, device: torch.device) -> Array:
    """Rows of float16 for images as `square_pixels` gives them."""
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(device)
    rows = backbone.features(images, size).half().cpu().numpy()
    if not np.isfinite(rows).all():
        raise ModelError(f"backbone {backbone.name!r} gives features too large for 16 bits, or no numbers")
    return rows


@contextmanager
def _computing(device: torch.device) -> Generator[tuple[Callable[[Work], Work], int], None, None]:
    """What begins a piece of work and returns what waits for its end; how many may be under way while images are read.

    On a GPU work is done in the thread that waits. On a CPU there are threads that run the network with one OpenMP
    thread each. Several OpenMP threads of one network wait for each other after every layer, and wait busily: where a
    core was taken, by threads that decode or by another process, that took twice the CPU seconds and more.
    """
    if device.type != "cpu":
        yield lambda work: work, 0
        return
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, "features", torch.set_num_threads, (1,)) as pool:
            yield lambda work: pool.submit(work).result, threads
    finally:
        torch.set_num_threads(threads)  # threads that begin later would have one as well


class _Reader:
    """Key and pixels of an image; pixels only where neither the cache nor an image before it has them."""

    def __init__(self, store: Store, size: int, known: Iterable[bytes]) -> None:
        self._store, self._size, self._taken = store, size, set(known)
        self._taking, self._turn = threading.Lock(), threading.Lock()

    def __call__(self, number: int) -> tuple[bytes | None, Array | str | None]:
        try:
            key = content_key(self._store, number)
            with self._taking:
                if key in self._taken:
                    return key, None
                self._taken.add(key)
            seen = look_at(self._store, number, self._pixels, self._turn, SPARE * self._size)
            # Features of another content must never be kept under this key.
            same = isinstance(seen, str) or content_key(self._store, number) == key
            return key, seen if same else "it was written to while it was read"
        except UnreadableImageError as error:
            return None, str(error)

    def _pixels(self, image: Image.Image) -> Array:
        return square_pixels(image, self._size)


def square_pixels(image: Image.Image, size: int) -> Array:
    """An image as networks look at it: uint8 [size, size, 3], its sides stretched alike or not."""
    side = (size, size)
    square = image if image.size == side else image.resize(side, Image.Resampling.BILINEAR)
    return np.asarray(square.convert("RGB"))


def content_key(store: Store, number: int) -> bytes:
    """The key of an image: a digest of what is stored for it."""
    found = hashlib.blake2b(digest_size=KEY)
    store.content(number, found.update)
    return found.digest()
