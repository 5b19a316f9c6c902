"""Data sets in miniature, in the layouts of their publishers."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 12
Bytes = NDArray[np.uint8]


def noise(seed: int, *shape: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_idx(folder: Path, split: str, images: Bytes, labels: Bytes) -> None:
    write(folder / f"{split}-images-idx3-ubyte", struct.pack(">IIII", 0x803, *images.shape) + images.tobytes())
    write(folder / f"{split}-labels-idx1-ubyte", struct.pack(">II", 0x801, len(labels)) + labels.tobytes())


def write_npz(path: Path, images: Bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=images)


def write_cifar100(root: Path, images: Bytes, kind: str = "binary") -> None:
    """The test part alone, [N, 32, 32, 3]."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    if kind == "binary":
        labels = np.zeros((len(images), 2), dtype=np.uint8)
        write(root / "cifar-100-binary/test.bin", np.concatenate([labels, rows], axis=1).tobytes())
    else:
        write(root / "cifar-100-python/test", pickle.dumps({b"data": rows, b"fine_labels": []}, protocol=2))


def picture(path: Path, image: Bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, format="PNG")


def bars(count: int, seed: int, classes: int = 10) -> tuple[Bytes, Bytes]:
    """Dim noise with one bright row or column per class: learnable in a few steps."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.uint8)
    images = generator.integers(0, 60, (count, SIDE, SIDE), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        if label < classes // 2:
            image[1 + 2 * label] = 250
        else:
            image[:, 1 + 2 * (label - classes // 2)] = 250
    return images, labels


def write_root(root: Path, train: int = 240, test: int = 60) -> Path:
    """A tiny MNIST of bars with three sets of outliers: one near, two far."""
    write_idx(root / "MNIST/raw", "train", *bars(train, 1))
    write_idx(root / "MNIST/raw", "t10k", *bars(test, 2))
    crosses = bars(40, 3)[0] | bars(40, 4)[0][::-1]
    write_idx(root / "FashionMNIST/raw", "t10k", crosses, np.zeros(40, dtype=np.uint8))
    write_npz(root / "ood/svhn.npz", noise(5, 50, 32, 32, 3))
    for number in range(30):
        picture(root / f"dtd/images/{'ab'[number % 2]}/{number:02}.png", noise(100 + number, 20, 26, 3))
    return root
