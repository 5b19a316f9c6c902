"""MNIST and Fashion-MNIST. Their files have the same names, so each is looked for in its own folders first."""

from __future__ import annotations

from collections.abc import Sequence

from sgoif.images.sources import idx
from sgoif.images.sources.base import Request
from sgoif_bench.labels.datasets.arrays import from_arrays
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData
from sgoif_bench.labels.datasets.places import Place, find

DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MNIST_FOLDERS = ("MNIST/raw", "mnist", "MNIST")
FASHION_FOLDERS = ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST", "data/fashion")
ENDINGS = ("-idx3-ubyte", "-idx3-ubyte.gz", ".idx3-ubyte", ".idx3-ubyte.gz")


def mnist(ask: Ask) -> LabelledData:
    """Handwritten digits, 28×28."""
    return _read(ask, MNIST_FOLDERS, DIGITS)


def fashion_mnist(ask: Ask) -> LabelledData:
    """Ten kinds of clothes, 28×28."""
    return _read(ask, FASHION_FOLDERS, CLOTHES)


def _read(ask: Ask, folders: Sequence[str], classes: tuple[str, ...]) -> LabelledData:
    stem = f"{'train' if ask.train else 't10k'}-images"
    places = [Place(folder, (stem + ending,)) for folder in (*folders, "raw", ".") for ending in ENDINGS]
    expected = f"{stem}{ENDINGS[0]} or {stem}{ENDINGS[1]}, with its labels beside it, in ROOT or in ROOT/{folders[0]}"
    folder, place = find(ask, places, expected)
    return from_arrays(ask, idx.read(Request(folder / place.contents[0])), classes)
