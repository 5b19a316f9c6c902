"""The resolution that images are looked at: large enough for what is in them, and done in time."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sgoif.backbones import Backbone
from sgoif.backbones.base import ENLARGED
from sgoif.features.extraction import content_key, extract_features
from sgoif.features.store import FeatureStore, cache_folder
from sgoif.images.collection import Collection
from sgoif.images.errors import UnreadableImageError
from sgoif.images.reading import in_threads, spread, usual_side

FIRST, TIMED = 16, 32
"""Images that are timed at first, which takes longer, and then where those took too long."""


def choose_resolution(
    backbone: Backbone,
    collection: Collection,
    seconds: float = 600.0,
    cache: Path | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> tuple[int, str]:
    """The size for `extract_features`, and a sentence that says why.

    The least of `backbone.sizes` that is five times the shorter side of the images, at most `backbone.size`. On a CPU a
    smaller one where all images, but for those in the cache, would take longer than `seconds` at it.
    """
    side = usual_side(collection.store) or float(backbone.size)
    wanted = backbone.resolution_for(side)
    reason = (
        f"{wanted} pixels, the network's own size"
        if wanted == backbone.size
        else f"{wanted} pixels, {ENLARGED} times the {side:g} of the images or more"
    )
    if device.type != "cpu":
        return wanted, reason
    sizes = [size for size in backbone.sizes if size <= wanted]
    missing = _missing(backbone, collection, sizes, cache)
    full = 0.0
    for size in reversed(sizes):
        count = round(len(collection) * missing[size])
        # Where most of the features are there at a smaller size, no better luck with the clock gives them up.
        there = any(missing[smaller] < 0.5 for smaller in sizes if smaller < size)
        most = seconds / 2 if there else seconds
        needed = count * _seconds_each(backbone, collection, size, most / count) if count > FIRST + TIMED else 0.0
        full = needed if size == wanted else full
        if needed <= most:
            break
    if size == wanted:
        return size, reason
    return size, f"{size} pixels: {_duration(needed)} to compute, where {wanted} pixels would take {_duration(full)}"


def _missing(backbone: Backbone, collection: Collection, sizes: list[int], cache: Path | None) -> dict[int, float]:
    """The share of the images that are not in the cache at each size, by up to 512 of them."""
    folder = cache or cache_folder()
    there = {size: FeatureStore(folder, backbone.digest, size, backbone.width).read().where for size in sizes}
    sample = spread(len(collection))
    if not any(there.values()) or not sample:
        return dict.fromkeys(sizes, 1.0)

    def key(place: int) -> bytes:
        try:
            return content_key(collection.store, sample[place])
        except UnreadableImageError:
            return b""

    keys = list(in_threads(len(sample), key))
    return {size: sum(each not in found for each in keys if each) / len(keys) for size, found in there.items()}


def _seconds_each(backbone: Backbone, collection: Collection, size: int, most: float) -> float:
    """Seconds an image, decoding included; no more than a first look where that shows that they are at most so many."""
    chosen = np.random.default_rng(0).choice(len(collection), FIRST + TIMED, replace=False)
    each = 0.0
    for numbers in (chosen[:FIRST], chosen[FIRST:]):
        with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
            started = time.perf_counter()
            extract_features(collection.pick(numbers.tolist()), backbone, size, Path(folder))
            each = (time.perf_counter() - started) / len(numbers)
        if each <= most:
            break
    return each


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{seconds:,.0f} seconds"
