"""From a name to a data set."""

from __future__ import annotations

from pathlib import Path

from sgoif.errors import SettingError
from sgoif_bench.command import Say, say
from sgoif_bench.labels.datasets.digits import digits
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData, Reader

NAMES = (
    "cifar10",
    "cifar100",
    "mnist",
    "fashion-mnist",
    "webvision",
    "webvision-mini",
    "clothing1m",
    "imagenet",
    "digits",
)
LEAST_SIZE, MOST_SIZE = 8, 1024


def load(
    name: str,
    root: str | Path | None = None,
    *,
    train: bool = True,
    size: int | None = None,
    limit: int | None = None,
    cache: str | Path | None = None,
    tell: Say = say,
) -> LabelledData:
    """Read a data set by its name from the folder `root`; the package says what is expected there.

    `size` brings all images to squares of that side: by default small images keep theirs and those of web-scale sets
    become 64×64. `limit` takes that many images, spread evenly over the published order. `cache` is the folder for the
    arrays of web-scale sets, by default ROOT/sgoif-cache. `tell` hears of progress and of what could not be read.
    """
    if name not in NAMES:
        raise SettingError(f"data set {name!r} is unknown; choose one of {', '.join(NAMES)}")
    if size is not None and not LEAST_SIZE <= size <= MOST_SIZE:
        raise SettingError(f"size = {size} must lie between {LEAST_SIZE} and {MOST_SIZE} pixels, or be left away")
    if limit is not None and limit < 2:
        raise SettingError(f"limit = {limit} is too small; at least 2 images are needed")
    if root is None and name != "digits":
        raise SettingError(f"--data ROOT is needed: the folder that holds the data set {name}")
    place = Path("." if root is None else root)
    if root is not None and not place.is_dir():
        raise SettingError(f"--data {place} is not a folder; give the one that holds the data set {name}")
    return _reader(name)(Ask(name, place, train, size, limit, None if cache is None else Path(cache), tell))


def _reader(name: str) -> Reader:
    """The function that reads this data set. All but the digits need Pillow, which is imported here and not before."""
    if name == "digits":
        return digits
    from sgoif_bench.labels.datasets import cifar, clothing1m, idx, imagenet, webvision

    return {
        "cifar10": cifar.cifar10,
        "cifar100": cifar.cifar100,
        "mnist": idx.mnist,
        "fashion-mnist": idx.fashion_mnist,
        "webvision": webvision.webvision,
        "webvision-mini": webvision.webvision_mini,
        "clothing1m": clothing1m.clothing1m,
        "imagenet": imagenet.imagenet,
    }[name]
