"""The data sets of the comparison, in the files of their publishers below ROOT.

| name          | what is expected below ROOT                                                               |
|---------------|-------------------------------------------------------------------------------------------|
| photos        | photos/, a folder with a subfolder of images for every class                              |
| svhn          | train_32x32.mat, in ROOT or in svhn/ (needs scipy), or ood/svhn.npz with `x` and `y`      |
| textures      | dtd/images/, a subfolder for every class, or ood/dtd.npz with `x` and `y`                 |
| digits        | nothing: scikit-learn carries them; all 1,797                                             |
| others        | as for `sgoif-bench labels`: cifar10, cifar100, mnist, fashion-mnist                      |

What people said of CIFAR is read from ROOT/CIFAR-10_human.pt and CIFAR-100_human.pt, or from cifar10n.npz and
cifar100n.npz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.datasets import LabelledData, load
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.loops.digits import all_digits
from sgoif_bench.noise import NoisyLabels

PLANTED = ("symmetric-15", "class-dependent-15")


@dataclass(frozen=True)
class Pictured:
    """What is known of a data set before it is read."""

    side: int | None
    """Of its images; None: they have many sizes and are read at the one the network sees."""
    noises: tuple[str, ...] = PLANTED
    """Compared where no noises are asked for."""
    mirror: bool = True
    """Whether a mirrored image still shows its class."""
    human: tuple[str, ...] = ()
    """Files of what people said, the first that is there."""


SETS: Mapping[str, Pictured] = {
    "photos": Pictured(None, (*PLANTED, "instance-15")),
    "cifar10": Pictured(
        32, ("human-aggregate", "human-random1", "human-worst"), human=("CIFAR-10_human.pt", "cifar10n.npz")
    ),
    "cifar100": Pictured(32, ("human-noisy",), human=("CIFAR-100_human.pt", "cifar100n.npz")),
    "svhn": Pictured(32, mirror=False),
    "textures": Pictured(32),
    "fashion-mnist": Pictured(28),
    "mnist": Pictured(28, mirror=False),
    "digits": Pictured(8, mirror=False),
}

FOLDERS = {"photos": "photos", "textures": "dtd/images"}
"""Where the data sets lie that are files of images."""


def read(name: str, root: str | None, size: int, limit: int | None, tell: Say) -> LabelledData:
    """A data set; `size` is what images of many sizes are brought to."""
    if name == "digits":
        return some(all_digits(), limit)
    if name not in ("photos", "svhn", "textures"):
        return load(name, root, limit=limit, tell=tell)
    if root is None:
        raise SettingError(f"--data ROOT is needed: the folder that holds {name}")
    found = _FOUND[name](Path(root), size)
    if found is None:
        raise SettingError(f"{name} is not in {root}; expected is {_EXPECTED[name]}")
    return some(found, limit)


def noisy(name: str, noise: str, data: LabelledData, seed: int, root: str | None) -> NoisyLabels:
    """The labels of a data set after this noise."""
    files = [Path(root or ".") / file for file in SETS[name].human]
    return make_noise(noise, data, seed, next((file for file in files if file.is_file()), None))


def some(data: LabelledData, limit: int | None) -> LabelledData:
    """So many of the examples, spread evenly."""
    if limit is None or limit >= len(data):
        return data
    rows = np.linspace(0, len(data) - 1, limit).round().astype(np.int64)
    images = data.images[torch.from_numpy(rows)]
    return LabelledData(data.name, images, data.labels[rows], data.classes, data.rows[rows])


def folder(name: str, path: Path, size: int) -> LabelledData | None:
    """A folder with one subfolder per class, every image brought to a square."""
    if not path.is_dir():
        return None
    from PIL import Image

    from sgoif.images import open_images

    found = open_images(path, layout="folder")
    pixels = np.empty((len(found), 3, size, size), dtype=np.uint8)
    for number in range(len(found)):
        square = found.image(number).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        pixels[number] = np.asarray(square).transpose(2, 0, 1)
    return _labelled(name, pixels, found.labels, tuple(found.class_names))


def originals(name: str, root: str | None, rows: NDArray[np.int64]) -> list[Path] | None:
    """The publishers' own files of some images, where each has one."""
    path = Path(root or ".") / FOLDERS.get(name, "")
    if name not in FOLDERS or not path.is_dir():
        return None
    from sgoif.images import open_images

    found = open_images(path, layout="folder")
    return [file for row in rows.tolist() if (file := found.file(row)) is not None]


def _archive(name: str, path: Path) -> LabelledData | None:
    """An .npz with images `x` [N, H, W, 3] and class numbers `y`."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels = archive["x"], archive["y"].astype(np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{path} is not an .npz archive with images `x` and labels `y` ({error})") from error
    classes = tuple(str(number) for number in range(int(labels.max()) + 1))
    return _labelled(name, images.transpose(0, 3, 1, 2), labels, classes)


def _mat(name: str, path: Path) -> LabelledData | None:
    """SVHN's own file, in which the class of a zero is 10."""
    if not path.is_file():
        return None
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtraError("scipy", "demo", f"Reading {path.name}") from error
    content = loadmat(path)
    labels = content["y"].ravel().astype(np.int64) % 10
    return _labelled(name, content["X"].transpose(3, 2, 0, 1), labels, tuple("0123456789"))


def _labelled(name: str, pixels: NDArray[Any], labels: NDArray[Any], classes: tuple[str, ...]) -> LabelledData:
    images = torch.from_numpy(np.require(pixels, dtype=np.uint8, requirements=["C", "W"]))
    return LabelledData(name, images, labels.astype(np.int64), classes, np.arange(len(labels)))


def _svhn(root: Path, size: int) -> LabelledData | None:
    del size
    places = (root / "train_32x32.mat", root / "svhn" / "train_32x32.mat")
    published = next((path for path in places if path.is_file()), places[0])
    return _mat("svhn", published) or _archive("svhn", root / "ood" / "svhn.npz")


def _textures(root: Path, size: int) -> LabelledData | None:
    return folder("textures", root / FOLDERS["textures"], size) or _archive("textures", root / "ood" / "dtd.npz")


_FOUND: Mapping[str, Callable[[Path, int], LabelledData | None]] = {
    "photos": lambda root, size: folder("photos", root / FOLDERS["photos"], size),
    "svhn": _svhn,
    "textures": _textures,
}
_EXPECTED = {
    "photos": "photos/ with a subfolder for every class",
    "svhn": "train_32x32.mat or ood/svhn.npz",
    "textures": "dtd/images/ with a subfolder for every class, or ood/dtd.npz",
}
