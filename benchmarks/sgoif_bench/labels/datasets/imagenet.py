"""ImageNet (ILSVRC 2012), or any set in the same layout: ROOT/train/CLASS/ and ROOT/val/CLASS/ with image files."""

from __future__ import annotations

from pathlib import Path

from sgoif.errors import SettingError
from sgoif.images import ImagesError
from sgoif.images.sources import folder as folders
from sgoif.images.sources.base import Request
from sgoif.images.sources.base import listing as entries_of
from sgoif.images.text import as_unicode, few
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData
from sgoif_bench.labels.datasets.listed import Listing, load_listing
from sgoif_bench.labels.datasets.places import Place, find

FOLDERS = (".", "imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")


def imagenet(ask: Ask) -> LabelledData:
    """Classes are the folders of the training part by the alphabet, for the validation part too."""
    split = "train" if ask.train else "val"
    expected = "a folder per class: ROOT/train/n01440764/*.JPEG and ROOT/val/n01440764/*.JPEG"
    root, _ = find(ask, [Place(place, (f"{split}/",)) for place in FOLDERS], expected)
    try:
        found = folders.read(Request(root, split))
    except ImagesError as error:
        raise SettingError(f"{error}. Expected is {expected}") from error
    classes = _class_folders(root / "train") or tuple(sorted(set(found.labels)))
    unknown = sorted(set(found.labels) - set(classes))
    if unknown:
        raise SettingError(f"{root / split} has classes that {root / 'train'} lacks: {few(unknown)}")
    number = {name: place for place, name in enumerate(classes)}
    labels = [number[label] for label in found.labels]
    listing = Listing(root, classes, found.names, labels, skipped=found.skipped, store=found.store)
    return load_listing(ask, listing)


def _class_folders(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return tuple(as_unicode(entry.name) for entry in entries_of(folder) if entry.is_dir())
