"""A folder in which findings are planted at known rates, and the same images with nothing planted.

Both have splits and classes, and files with random numbers. Of every kind that is about images or groups of images
`rate` of all images are planted, at least `LEAST`, each in images of their own; of a kind with several parts, such as
the ways in which a copy was changed, as many of each part. Every kind that is about classes is planted once, in classes
of their own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from sgoif.errors import SettingError
from sgoif_bench.findings import changes
from sgoif_bench.findings.changes import Change, encoded
from sgoif_bench.findings.pictures import Pictures

TRAIN, VAL, TEST = "train", "val", "test"
SHARES = {TRAIN: 0.8, VAL: 0.1, TEST: 0.1}
LEAST = 8
RARE, RARE_IMAGES = "rare", 3
GIVING = {"the number of pixels": changes.narrowed, "the colour of the border": changes.framed}
Made = Callable[[], tuple[bytes, str]]
"""Makes content and ending of a file."""
Spoil = Callable[[bytes, str, np.random.Generator], tuple[bytes, str]]
STEP = 10
"""Between the numbers of files that are added."""
FRAMES = 3


class Plant(NamedTuple):
    """What was planted in a file; the files of one group share the number."""

    kind: str
    part: str
    number: int


@dataclass(frozen=True)
class File:
    """A file that is to be written."""

    split: str
    label: str
    number: int
    row: int
    """Of the data set; −1 for an image of another."""
    content: Made
    """Bytes and ending, made when they are written."""
    plants: tuple[Plant, ...] = ()


@dataclass
class Tree:
    """A folder: what is to be written, and what has been planted."""

    files: list[File]
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes that kinds about classes were planted in."""

    def write(self, folder: Path) -> dict[str, File]:
        """Write all files; returns them by their names."""
        written = {}
        for file in self.files:
            content, suffix = file.content()
            name = f"{file.split}/{file.label}/{file.number:06d}{suffix}"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            written[name] = file
        return written


def clean(pictures: Pictures, seed: int) -> Tree:
    """The images as they are."""
    rng = np.random.default_rng((seed, len(pictures)))
    splits = rng.choice(list(SHARES), len(pictures), p=list(SHARES.values()))
    numbers = rng.permutation(len(pictures))
    return Tree(
        [
            File(str(split), pictures.classes[label], int(number), row, _as_is(pictures, row))
            for row, (split, label, number) in enumerate(zip(splits, pictures.labels.tolist(), numbers, strict=True))
        ]
    )


def planted(pictures: Pictures, strangers: Pictures, seed: int, rate: float) -> Tree:
    """The images of `clean`, and what is to be found."""
    return _Planter(pictures, strangers, seed, rate).plant()


class _Planter:
    """Chooses images that nothing was done to yet, and changes or copies them."""

    def __init__(self, pictures: Pictures, strangers: Pictures, seed: int, rate: float) -> None:
        self.pictures, self.strangers = pictures, strangers
        self.tree = clean(pictures, seed)
        self.rng = np.random.default_rng((seed, len(pictures), 1))
        self.giving = list(GIVING)[seed % len(GIVING)]
        self.count = max(LEAST, round(rate * len(pictures)))
        self.others = iter(self.rng.permutation(len(strangers)).tolist())
        self.groups = 0
        self.free = len(pictures)

    def plant(self) -> Tree:
        """All kinds, those about classes first."""
        self._classes()
        left = [row for row in self.rng.permutation(len(self.pictures)).tolist() if self._is_plain(row)]
        needed = self.count * (len(IN_PLACE) + len(COPIED) + 2)
        if needed > len(left):
            raise SettingError(
                f"{len(self.pictures):,} images are too few to plant {self.count} findings of every part of every kind"
                f" ({needed:,}); take more images or a lower --rate"
            )
        chosen = iter(left)
        for kind, part, change in IN_PLACE:
            for row in self._some(chosen):
                self._alter(row, self._plant(kind, part), change)
        for kind, part, change, elsewhere in COPIED:
            for row in self._some(chosen):
                self._copy(row, self._plant(kind, part), change, elsewhere)
        for row in self._some(chosen):
            self._burst(row)
        for row in self._some(chosen):
            self._move(row, "class-outlier", self._another(self.tree.files[row].label))
        return self.tree

    def _some(self, chosen: Iterator[int]) -> Sequence[int]:
        return [next(chosen) for _ in range(self.count)]

    def _plant(self, kind: str, part: str) -> Plant:
        self.groups += 1
        return Plant(kind, part, self.groups)

    def _is_plain(self, row: int) -> bool:
        file = self.tree.files[row]
        return file.split == TRAIN and file.label != RARE

    def _another(self, label: str) -> str:
        others = [name for name in self.pictures.classes if name != label]
        return others[int(self.rng.integers(len(others)))]

    def _classes(self) -> None:
        """One class gives itself away, one gets two names, one is split at random, one is all but missing."""
        names = self.pictures.classes
        if len(names) < 5:
            raise SettingError(
                f"{len(names)} classes are too few to plant findings about classes; at least 5 are needed"
            )
        giving, doubled, halved, robbed = (names[at] for at in self.rng.permutation(len(names))[:4])
        self.gives = giving
        twin = f"0{doubled}" if doubled.isdecimal() else f"{doubled}_"
        half = f"half of the images {len(names)}"
        for row, file in enumerate(self.tree.files):
            if file.label == giving:
                self.tree.files[row] = replace(file, content=self._made(row, changes.nothing))
            elif file.label == doubled and self.rng.random() < 1 / 3:
                self.tree.files[row] = replace(file, label=twin)
            elif file.label == halved and self.rng.random() < 1 / 2:
                self.tree.files[row] = replace(file, label=half)
        taken = [row for row, file in enumerate(self.tree.files) if file.label == robbed and file.split == TRAIN]
        for row in taken[:RARE_IMAGES]:
            self.tree.files[row] = replace(self.tree.files[row], label=RARE)
        self.tree.classes = {
            "gives-label-away": (giving,),
            "twin-names": (doubled, twin),
            "twin-classes": (halved, half),
            "small-class": (RARE,),
            "imbalance": (RARE,),
        }

    def _made(self, row: int, change: Change) -> Made:
        """What a change makes of the image, as its class gives itself away."""
        suffix, seed = self.pictures.suffix, int(self.rng.integers(2**31))
        before = self._giving(row)

        def made() -> tuple[bytes, str]:
            rng = np.random.default_rng(seed)
            picture = self.pictures.image(row)
            return encoded(change(before(picture, rng), rng), suffix), suffix

        return made

    def _alter(self, row: int, plant: Plant, change: Change | str | None) -> None:
        file = self.tree.files[row]
        if isinstance(change, str):
            content = self._spoiled(file, SPOILED[change])
        elif change is None:
            content = self._strange(row)
        else:
            content = self._made(row, change)
        self.tree.files[row] = replace(file, content=content, plants=(plant,), row=-1 if change is None else row)

    def _spoiled(self, file: File, spoil: Spoil) -> Made:
        seed = int(self.rng.integers(2**31))
        return lambda: spoil(*file.content(), np.random.default_rng(seed))

    def _strange(self, row: int) -> Made:
        other, suffix, before = next(self.others), self.pictures.suffix, self._giving(row)

        def made() -> tuple[bytes, str]:
            like = self.pictures.image(row)
            picture = self.strangers.image(other).resize(like.size, 3)
            return encoded(before(picture, np.random.default_rng(other)), suffix), suffix

        return made

    def _giving(self, row: int) -> Change:
        """How the class of an image gives itself away."""
        return GIVING[self.giving] if self.tree.files[row].label == self.gives else changes.nothing

    def _copy(self, row: int, plant: Plant, change: Change | None, elsewhere: str) -> None:
        file = self.tree.files[row]
        self.tree.files[row] = replace(file, plants=(plant,))
        content = file.content if change is None else self._made(row, change)
        label = self._another(file.label) if elsewhere == "class" else file.label
        split = TEST if elsewhere == "split" else file.split
        self.tree.files.append(File(split, label, self._number(), row, content, (plant,)))

    def _burst(self, row: int) -> None:
        file, plant, number = self.tree.files[row], self._plant("bursts", "moved"), self._number()
        frames = [
            File(VAL if frame % 2 else TRAIN, file.label, number + frame, row, self._made(row, changes.moved), (plant,))
            for frame in range(FRAMES)
        ]
        self.tree.files[row] = frames[0]
        self.tree.files += frames[1:]

    def _move(self, row: int, kind: str, label: str) -> None:
        self.tree.files[row] = replace(
            self.tree.files[row], label=label, plants=(self._plant(kind, "of another class"),)
        )

    def _number(self) -> int:
        self.free += STEP
        return self.free


def _as_is(pictures: Pictures, row: int) -> Made:
    return lambda: pictures.file(row)


def _truncated(content: bytes, suffix: str, rng: np.random.Generator) -> tuple[bytes, str]:
    return content[: int(len(content) * rng.uniform(0.3, 0.9))], suffix


def _nothing(content: bytes, suffix: str, rng: np.random.Generator) -> tuple[bytes, str]:
    del content, rng
    return b"", suffix


def _overwritten(content: bytes, suffix: str, rng: np.random.Generator) -> tuple[bytes, str]:
    return rng.bytes(len(content)), suffix


def _misnamed(content: bytes, suffix: str, rng: np.random.Generator) -> tuple[bytes, str]:
    """A JPEG called .png, a PNG called anything else."""
    del rng
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    return encoded(picture, ".jpg" if suffix == ".png" else ".png"), suffix


SPOILED: Mapping[str, Spoil] = {
    "truncated": _truncated,
    "empty": _nothing,
    "overwritten": _overwritten,
    "misnamed": _misnamed,
}
IN_PLACE: Sequence[tuple[str, str, Change | str | None]] = (
    ("unreadable", "truncated", "truncated"),
    ("unreadable", "empty", "empty"),
    ("unreadable", "overwritten", "overwritten"),
    ("misnamed", "misnamed", "misnamed"),
    ("dark", "dark", changes.dark),
    ("bright", "bright", changes.bright),
    ("blurry", "blurry", changes.blurry),
    ("empty", "empty", changes.empty),
    ("aspect", "strip", changes.strip),
    ("size", "smaller", changes.smaller),
    ("size", "larger", changes.larger),
    ("grey", "grey", changes.grey),
    ("off-topic", "of another set", None),
)
"""Kind, part and what is done to the image or, by its name, to the file; None: one of another set is in its place."""
COPIED: Sequence[tuple[str, str, Change | None, str]] = (
    ("copies", "one label", None, ""),
    ("copies", "two labels", None, "class"),
    *(("near-copies", name, change, "") for name, change in changes.COPIES.items()),
    ("near-copies", "two labels", changes.compressed, "class"),
    ("leaks", "exact", None, "split"),
    ("leaks", "jpeg", changes.compressed, "split"),
)
"""Kind, part, what the copy went through, and what it has other than the original."""
