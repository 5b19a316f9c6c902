"""WebVision 1.0: the thousand classes of ImageNet as found by Google and Flickr, about a fifth of the labels wrong.

    ROOT/info/train_filelist_google.txt, train_filelist_flickr.txt    lines "google/q0001/NAME.jpg 0"
    ROOT/info/val_filelist.txt                                        lines "val000001.jpg 0"
    ROOT/info/synsets.txt                                             names of the classes, where it is there
    ROOT/google/, ROOT/flickr/, ROOT/val_images_256/ (or val_images/)

Which training labels are wrong nobody knows; the validation images were labelled by people.
"""

from __future__ import annotations

from pathlib import Path

from sgoif_bench.labels.datasets.labelled import UNKNOWN, Ask, LabelledData
from sgoif_bench.labels.datasets.listed import Listing, lines_of, load_listing, pairs_of
from sgoif_bench.labels.datasets.places import Place, find

CLASSES, MINI_CLASSES = 1000, 50
FOLDERS = (".", "webvision", "WebVision")
VALIDATION_FOLDERS = ("val_images_256", "val_images", "val")


def webvision(ask: Ask) -> LabelledData:
    """Both parts, Google's first."""
    return _read(ask, ("google", "flickr"), CLASSES)


def webvision_mini(ask: Ask) -> LabelledData:
    """The first 50 classes of Google's part: what most papers report on."""
    return _read(ask, ("google",), MINI_CLASSES)


def _read(ask: Ask, parts: tuple[str, ...], classes: int) -> LabelledData:
    lists = tuple(f"info/train_filelist_{part}.txt" for part in parts) if ask.train else ("info/val_filelist.txt",)
    expected = "WebVision 1.0 with its lists in ROOT/info/, lines of a path and a class, and the images below ROOT"
    folder, _ = find(ask, [Place(place, lists) for place in FOLDERS], f"{expected}: {', '.join(lists)}")
    listing = Listing(folder, _names(folder)[:classes], clean=[])
    prefix = ""
    for name in lists:
        for number, (path, label) in enumerate(pairs_of(folder / name, CLASSES)):
            if number == 0 and not ask.train:
                prefix = _validation_folder(folder, path)
            if label < classes:
                listing.add(prefix + path, label, UNKNOWN if ask.train else label)
    return load_listing(ask, listing)


def _validation_folder(folder: Path, first: str) -> str:
    """Where the validation images lie, which their list does not say: in the usual folder with the first of them."""
    there = [place for place in VALIDATION_FOLDERS if (folder / place / first).is_file()]
    return f"{there[0] if there else VALIDATION_FOLDERS[0]}/"


def _names(folder: Path) -> tuple[str, ...]:
    """The lines "n01440764 tench, Tinca tinca" without their number, or the numbers of the classes."""
    file = folder / "info/synsets.txt"
    lines = [line for _, line in lines_of(file)] if file.is_file() else []
    if len(lines) != CLASSES:
        return tuple(str(number) for number in range(CLASSES))
    return tuple(line.partition(" ")[2] or line for line in lines)
