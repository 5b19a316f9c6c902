"""Small folders of images, decisions about them, and what lies in a folder."""

from __future__ import annotations

import csv
import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sgoif.core.score_table import to_cell

Row = tuple[str, str, str, str]


HEADER = ["path", "decision", "given_label", "new_label", "source"]


def picture(seed: int, width: int = 8, height: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def save(seed: int, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)
    return path


def decide(path: Path, source: Path, rows: Sequence[Row]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows([to_cell(cell) for cell in (*row, str(source))] for row in rows)
    return path


def decide_splits(path: Path, source: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    """The same with new splits, the fifth of the cells."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*HEADER, "new_split"])
        writer.writerows([to_cell(cell) for cell in (*cells[:4], str(source), cells[4])] for cells in rows)
    return path


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Contents and times of everything below a folder."""
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in sorted(files)}


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


def no_clones(*_: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


FIRST: list[Row] = [
    ("cat/0.png", "relabel", "cat", "dog"),
    ("cat/deep/er/0.png", "relabel", "cat", "owl"),
    ("cat/1.png", "drop", "cat", ""),
    ("dog/2.png", "keep", "dog", ""),
    ("owl/3.png", "relabel", "owl", "owl"),
]
