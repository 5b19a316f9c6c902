"""Layouts that images come in, each in its own file; the first whose `matches` says yes is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sgoif.images.sources import cifar, coco, folder, huggingface, idx, manifest, npz, webdataset, yolo
from sgoif.images.sources.base import Found, Request


@dataclass(frozen=True)
class Layout:
    """How to recognise and read one layout, and which options mean something to it."""

    matches: Callable[[Path], bool]
    read: Callable[[Request], Found]
    options: frozenset[str]


COLUMNS = frozenset({"image_column", "label_column"})

LAYOUTS: dict[str, Layout] = {
    "npz": Layout(npz.matches, npz.read, COLUMNS | {"split"}),
    "huggingface": Layout(huggingface.matches, huggingface.read, COLUMNS | {"split", "root"}),
    "manifest": Layout(manifest.matches, manifest.read, COLUMNS | {"split", "root"}),
    "webdataset": Layout(webdataset.matches, webdataset.read, frozenset({"split", "every_split"})),
    "coco": Layout(coco.matches, coco.read, frozenset({"split", "root", "every_split"})),
    "yolo": Layout(yolo.matches, yolo.read, frozenset({"split", "every_split"})),
    "cifar": Layout(cifar.matches, cifar.read, frozenset({"split"})),
    "idx": Layout(idx.matches, idx.read, frozenset({"split"})),
    "folder": Layout(folder.matches, folder.read, frozenset({"split", "follow_links", "every_split"})),
}
"""In the order they are tried: what has a mark of its own first, a plain folder last."""
