"""Out-of-distribution sets by name, each looked for below a root in the layouts of its publisher and of OpenOOD.

| name          | what is looked for below ROOT                                                                       |
|---------------|-----------------------------------------------------------------------------------------------------|
| cifar10       | cifar-10-batches-bin/ or cifar-10-batches-py/: the test part                                        |
| cifar100      | cifar-100-binary/ or cifar-100-python/: the test part, which may be there alone                     |
| mnist         | MNIST/raw/ or mnist/ with t10k-images-idx3-ubyte, plain or .gz                                      |
| fashion-mnist | FashionMNIST/raw/ or fashion-mnist/ with the same name of file                                      |
| svhn          | test_32x32.mat, in ROOT or in svhn/ (needs scipy), or a folder svhn/                                |
| texture       | the Describable Textures: dtd/images/, dtd/ or texture/                                             |
| tin           | Tiny-ImageNet: tiny-imagenet-200/val/images/, tin/ or tiny-imagenet/                                |
| places365     | val_256/ or places365/                                                                              |
| others        | a folder of their name; notMNIST also as notMNIST_small/, NINCO also as NINCO/NINCO_OOD_classes/    |

A folder counts with all image files below it. Before any of that come OpenOOD's own lists, which leave out images that
show what the in-distribution set shows: benchmark_imglist/SET/test_NAME.txt, lines of a path and a number, with the
images below images_classic/ or images_largescale/. And every set can be an array: ood/NAME.npz with `x`, bytes
[N, H, W, 3] or [N, H, W].
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError, SettingError
from sgoif.images.decode import SUFFIXES
from sgoif.images.sources import idx
from sgoif.images.sources.base import Request
from sgoif.images.sources.safe_pickle import read_pickle
from sgoif_bench.labels.datasets.idx import ENDINGS, FASHION_FOLDERS, MNIST_FOLDERS
from sgoif_bench.labels.datasets.listed import lines_of
from sgoif_bench.labels.recipes import file_identity
from sgoif_bench.ood.pictures import Files, Pictures, Stack
from sgoif_bench.ood.trained.procedural import Procedural

Array = NDArray[np.uint8]
LISTS = "benchmark_imglist"
LISTED_BELOW = ("images_classic", "images_largescale", ".")
CIFAR_PIXELS = 3 * 32 * 32
PROCEDURAL = Path("procedural")
"""What --outliers calls generated pictures, unless there is a folder or file of that name."""


@dataclass(frozen=True)
class OodSet:
    """Where a set can lie."""

    folders: tuple[str, ...] = ()
    published: tuple[tuple[str, Callable[[Path], Array]], ...] = ()
    """Files of the publisher with what reads them as [N, H, W, 3] or [N, H, W]."""
    arrays: tuple[str, ...] = ()
    """Other names of the array below ood/."""
    listed: tuple[str, ...] = ()
    """Names in OpenOOD's lists, where they are not its own."""


@dataclass(frozen=True)
class Found:
    """A set that is there."""

    name: str
    source: str
    """Where, below the root."""
    pictures: Pictures


def find(name: str, root: Path, in_distribution: str) -> Found | None:
    """A set from the first of its places that is there, or None; what is there but damaged is an error."""
    known = SETS[name]
    for place in _list_places(name, in_distribution):
        if (root / place).is_file() and (paths := _listed(root, root / place)):
            return Found(name, place, Files(paths))
    for place, read in known.published:
        if (root / place).is_file():
            return Found(name, place, _stack(read(root / place), place))
    for place in _array_places(name):
        if (root / place).is_file():
            return Found(name, place, _stack(read_npz(root / place), place))
    for place in (*known.folders, name):
        if (root / place).is_dir() and (paths := images_below(root / place)):
            return Found(name, f"{place}/", Files(paths))
    return None


def expected(name: str, in_distribution: str) -> str:
    """Where a set is looked for, for the message that says it was not found."""
    known = SETS[name]
    lists = _list_places(name, in_distribution)[0]
    published = [place for place, _ in known.published][:1]
    folders = [f"{place}/" for place in (*known.folders, name)][:2]
    return ", ".join([*published, *_array_places(name)[:1], *(folders if not published else folders[-1:]), lists])


def read_outliers(path: Path) -> Pictures:
    """Images without labels to train with: a folder, an array in the layout of ood/NAME.npz, or generated ones."""
    if path == PROCEDURAL and not path.exists():
        return Procedural()
    if path.is_dir():
        if paths := images_below(path):
            return Files(paths)
        raise SettingError(f"--outliers {path} holds no image files")
    if path.is_file():
        return _stack(read_npz(path), path.name)
    raise SettingError(f"--outliers {path} is neither a folder of images nor an .npz file with `x`, nor procedural")


def outliers_identity(path: Path) -> str:
    """A short name of what a folder or file of outliers holds, or of the generated ones."""
    if path == PROCEDURAL and not path.exists():
        return f"{PROCEDURAL}-{len(Procedural())}"
    if path.is_file():
        return file_identity(path)
    digest = hashlib.sha256()
    for image in images_below(path):
        digest.update(f"{image.relative_to(path).as_posix()} {image.stat().st_size};".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def shares_images(outliers: Path, root: Path, found: Found) -> bool:
    """Whether a folder or file of outliers is a set that is there, a copy of its file, or holds some of its images."""
    source = root / found.source
    if outliers.is_file() and source.is_file():
        same_size = outliers.stat().st_size == source.stat().st_size
        return same_size and file_identity(outliers) == file_identity(source)
    if not outliers.is_dir() or not isinstance(found.pictures, Files):
        return False
    tested = {path.resolve() for path in found.pictures.paths}
    return any(path.resolve() in tested for path in images_below(outliers))


def images_below(folder: Path) -> list[Path]:
    """Image files at any depth, in the order of their paths."""
    found: list[Path] = []
    for here, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += [Path(here, name) for name in files if os.path.splitext(name)[1].lower() in SUFFIXES]
    return sorted(path for path in found if not path.name.startswith("."))


def read_npz(path: Path) -> Array:
    """The array `x` of an archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = archive["x"]
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{path} is not an .npz archive with images `x` ({error})") from error
    return found  # type: ignore[no-any-return]


def _list_places(name: str, in_distribution: str) -> list[str]:
    return [f"{LISTS}/{in_distribution}/test_{each}.txt" for each in SETS[name].listed or (name.replace("-", "_"),)]


def _array_places(name: str) -> list[str]:
    return [f"ood/{each}.npz" for each in (name, *SETS[name].arrays)]


def _stack(images: Array, place: str) -> Stack:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
        raise SettingError(
            f"{place} holds {images.dtype} of shape {list(images.shape)}; expected are bytes [N, H, W, 3] or [N, H, W]"
        )
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return Stack(torch.from_numpy(np.require(planes, requirements=["C", "W"])))


def _listed(root: Path, file: Path) -> list[Path]:
    """The images of a list where they are there; none where they are not."""
    names = list(_names(file))
    for below in LISTED_BELOW:
        if names and (root / below / names[0]).is_file():
            return [root / below / name for name in names]
    return []


def _names(file: Path) -> Iterator[str]:
    """The paths of a list: a line is a path, or a path and a number."""
    for number, line in lines_of(file):
        path, _, label = line.rpartition(" ")
        name = path.strip() if path and label.lstrip("-").isdigit() else line
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise SettingError(f"{file}, line {number}: {name!r} leads out of the folder of images")
        yield name


def _binary(path: Path, head: int) -> Array:
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % (CIFAR_PIXELS + head):
        raise SettingError(f"{path} has {len(content):,} bytes, not a whole number of records: unpack it again")
    return _planes(content.reshape(-1, CIFAR_PIXELS + head)[:, head:])


def _pickled(path: Path) -> Array:
    data = read_pickle(path).get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != CIFAR_PIXELS:
        raise SettingError(f"{path} does not hold the images of a CIFAR file: unpack it again")
    return _planes(data)


def _planes(rows: Array) -> Array:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _idx(path: Path) -> Array:
    store = idx.read(Request(path)).store
    return np.stack([np.asarray(store.image(row)) for row in range(len(store))])


def _mat(path: Path) -> Array:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtraError("scipy", "demo", f"Reading {path.name}") from error
    try:
        images = loadmat(path)["X"]
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise SettingError(f"{path} is not SVHN's file of cropped digits ({error})") from error
    return images.transpose(3, 0, 1, 2)  # type: ignore[no-any-return]


def _cifar(binary: str, python: str, head: int) -> tuple[tuple[str, Callable[[Path], Array]], ...]:
    return (binary, lambda path: _binary(path, head)), (python, _pickled)


def _idx_files(folders: tuple[str, ...]) -> tuple[tuple[str, Callable[[Path], Array]], ...]:
    return tuple((f"{folder}/t10k-images{ending}", _idx) for folder in folders for ending in ENDINGS)


SETS: dict[str, OodSet] = {
    "cifar10": OodSet(published=_cifar("cifar-10-batches-bin/test_batch.bin", "cifar-10-batches-py/test_batch", 1)),
    "cifar100": OodSet(published=_cifar("cifar-100-binary/test.bin", "cifar-100-python/test", 2)),
    # Unlike for training, the root itself is no place for these: two sets cannot share their names of files there.
    "mnist": OodSet(published=_idx_files(MNIST_FOLDERS)),
    "fashion-mnist": OodSet(published=_idx_files(FASHION_FOLDERS), listed=("fashionmnist",)),
    "notmnist": OodSet(("notMNIST_small", "notMNIST")),
    "svhn": OodSet(published=(("test_32x32.mat", _mat), ("svhn/test_32x32.mat", _mat))),
    "texture": OodSet(("dtd/images", "dtd", "textures"), arrays=("dtd", "textures"), listed=("texture", "textures")),
    "tin": OodSet(("tiny-imagenet-200/val/images", "tiny-imagenet"), arrays=("tiny-imagenet",)),
    "places365": OodSet(("val_256", "places365/val_256")),
    "ssb-hard": OodSet(("ssb_hard",)),
    "ninco": OodSet(("NINCO/NINCO_OOD_classes", "NINCO")),
    "inaturalist": OodSet(("iNaturalist",)),
    "openimage-o": OodSet(("openimage_o",)),
    "species": OodSet(("Species",)),
    "imagenet-o": OodSet(("imagenet_o",)),
}
