"""Clothing1M: clothes from online shops with the class their text suggests, about 38% of them wrong.

    ROOT/noisy_train_key_list.txt, clean_train_key_list.txt, clean_test_key_list.txt    a path per line
    ROOT/noisy_label_kv.txt, clean_label_kv.txt                                         lines "images/0/0/NAME.jpg 3"
    ROOT/images/

The lists may also lie in ROOT/annotations. None of the million noisy training images has been looked at, but about
25,000 of the clean training images have both labels. They are read too, with the noisy label as the given one: on them,
and on them alone, a method can be judged.
"""

from __future__ import annotations

from pathlib import Path

from sgoif.images import Skipped
from sgoif_bench.labels.datasets.labelled import UNKNOWN, Ask, LabelledData
from sgoif_bench.labels.datasets.listed import Listing, lines_of, load_listing, pairs_of
from sgoif_bench.labels.datasets.places import Place, find

CLASSES = (
    "T-Shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Down Coat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)
FOLDERS = (".", "clothing1m", "Clothing1M", "clothing1M")
LISTS = (".", "annotations")
TRAIN = ("noisy_train_key_list.txt", "noisy_label_kv.txt", "clean_train_key_list.txt", "clean_label_kv.txt")
TEST = ("clean_test_key_list.txt", "clean_label_kv.txt")


def clothing1m(ask: Ask) -> LabelledData:
    """For training the noisy labels, and the right ones beside them where known; for the test the right ones."""
    wanted = TRAIN if ask.train else TEST
    places = [Place(f"{folder}/{lists}", wanted) for folder in FOLDERS for lists in LISTS]
    found, _ = find(ask, places, f"Clothing1M with ROOT/images/ and the lists {', '.join(wanted)} in ROOT")
    folder = found.parent if found.name == LISTS[1] else found
    listing = Listing(folder, CLASSES, clean=[])
    clean = dict(pairs_of(found / "clean_label_kv.txt", len(CLASSES)))
    if not ask.train:
        _add(listing, found / "clean_test_key_list.txt", clean, clean)
        return load_listing(ask, listing)
    noisy = dict(pairs_of(found / "noisy_label_kv.txt", len(CLASSES)))
    _add(listing, found / "noisy_train_key_list.txt", noisy, clean)
    _add(listing, found / "clean_train_key_list.txt", noisy, clean, optional=True)
    return load_listing(ask, listing)


def _add(listing: Listing, keys: Path, given: dict[str, int], clean: dict[str, int], *, optional: bool = False) -> None:
    """The files of a list with their labels. A file without one is reported, unless that is to be expected."""
    for _, name in lines_of(keys):
        if name in given:
            listing.add(name, given[name], clean.get(name, UNKNOWN))
        elif not optional:
            listing.skipped.append(Skipped(name, f"listed in {keys.name} but without a label"))
