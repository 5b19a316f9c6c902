"""Labels that people gave, such as CIFAR-10N and CIFAR-100N, read from the files they are published or kept in.

    FILE.npz          arrays by key
    FILE.pt           the published CIFAR-10_human.pt: a dictionary of arrays that torch saved
    FILE.npy          one array of labels, or a structured array whose fields are the keys
    FILE.txt or .csv  one label per line; where there are several columns, a first line that names them

No file is allowed to run code: .npz and .npy are read without pickle, .pt by torch's `weights_only` reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SettingError
from sgoif_bench.noise.labels import NoisyLabels, checked_labels

Columns = Mapping[str, Any]
NAMELESS = ""
"""Stands for the key in a file that has one column and no name for it."""
CLEAN = "clean_label"


def human(
    labels: ArrayLike, path: str | Path, key: str, classes: int, rows: NDArray[np.int64] | None = None
) -> NoisyLabels:
    """The labels under `key` of a file in place of the true ones.

    `rows` are the positions of the labels in the file where it has more than are wanted. A file that also has the true
    labels, as `clean_label`, is compared with the given ones: another order would make nearly every label wrong.
    """
    true, file = checked_labels(labels), Path(path)
    columns = _columns(file)
    given = _column(columns, key, file)
    if rows is None and len(given) != len(true):
        raise SettingError(f"{file} has {len(given)} labels under {key!r} for {len(true)} images")
    rows = np.arange(len(true)) if rows is None else rows
    if rows.max() >= len(given):
        raise SettingError(f"{file} has {len(given)} labels under {key!r}, none for image {rows.max()}")
    given = given[rows]
    if given.min() < 0 or given.max() >= classes:
        raise SettingError(f"labels must go from 0 to {classes - 1}; {key!r} of {file} has {given.min()}-{given.max()}")
    if CLEAN in columns and not np.array_equal(_column(columns, CLEAN, file)[rows], true):
        raise SettingError(
            f"the true labels that {file} holds as {CLEAN!r} are not those of the images: it is for other images, or "
            "for the same images in another order"
        )
    return NoisyLabels(given, given != true)


def read_human(path: str | Path, key: str) -> NDArray[np.int64]:
    """The labels under a key of a file, in the order of the file."""
    return _column(_columns(Path(path)), key, Path(path))


def _columns(path: Path) -> Columns:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise SettingError(f"human labels are read from {', '.join(READERS)} files, not from {path}")
    if not path.is_file():
        raise SettingError(f"the file of human labels {path} does not exist")
    try:
        return reader(path)
    except SettingError:
        raise
    except Exception as error:  # a damaged file fails in any way it likes
        reason = str(error).partition("\n")[0]
        raise SettingError(f"{path} cannot be read as human labels without running code in it: {reason}") from error


def _column(columns: Columns, key: str, path: Path) -> NDArray[np.int64]:
    if key not in columns and NAMELESS not in columns:
        raise SettingError(f"{path} has no labels {key!r}; it has {', '.join(columns)}")
    values = np.asarray(columns[key if key in columns else NAMELESS])
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise SettingError(
            f"{key!r} of {path} is {values.dtype} {list(values.shape)}; expected is one class number per image"
        )
    return values.astype(np.int64)


def _npz(path: Path) -> Columns:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive}


def _npy(path: Path) -> Columns:
    values = np.load(path, allow_pickle=False)
    return {NAMELESS: values} if values.dtype.names is None else {name: values[name] for name in values.dtype.names}


def _torch(path: Path) -> Columns:
    """What torch saved, where it is a dictionary of tensors or of numpy arrays of whole numbers."""
    rebuild = np.empty(0).__reduce__()[0]
    safe: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    safe += [np.ndarray, (np.dtype, "numpy.dtype"), *(type(np.dtype(code)) for code in "bBhHiIlLqQ")]
    with torch.serialization.safe_globals(safe):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping):
        return {str(name): values for name, values in content.items()}
    return {NAMELESS: content}


def _text(path: Path) -> Columns:
    """Lines of numbers with blanks, commas or semicolons between; the first line may name the columns."""
    lines = [
        re.split(r"[\s,;]+", line.strip()) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if not lines:
        raise SettingError(f"{path} is empty; expected is one label per line")
    named = any(not cell.lstrip("-").isdigit() for cell in lines[0])
    rows = np.array([[int(cell) for cell in line] for line in lines[named:]], dtype=np.int64)
    if not named and rows.shape[1] > 1:
        raise SettingError(f"{path} has {rows.shape[1]} columns and no line that names them; put one first")
    return {name: rows[:, number] for number, name in enumerate(lines[0] if named else [NAMELESS])}


READERS: dict[str, Callable[[Path], Columns]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".pt": _torch,
    ".pth": _torch,
    ".txt": _text,
    ".csv": _text,
    ".tsv": _text,
}
