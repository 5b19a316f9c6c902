"""Finding a data set below a root, and saying what is missing where it is not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sgoif.errors import SettingError
from sgoif_bench.labels.datasets.labelled import Ask


class Place(NamedTuple):
    """A folder below the root and what it must hold; the name of a folder ends with a slash."""

    folder: str
    contents: tuple[str, ...]


def find(ask: Ask, places: Sequence[Place], expected: str) -> tuple[Path, Place]:
    """The first place that holds all it must."""
    missing = [[name for name in place.contents if not _there(ask.root / place.folder, name)] for place in places]
    for place, lacking in zip(places, missing, strict=True):
        if not lacking:
            return ask.root / place.folder, place
    nearest = min(range(len(places)), key=lambda number: len(missing[number]) / len(places[number].contents))
    where = ask.root / places[nearest].folder
    raise SettingError(
        f"{ask.name} ({ask.split}) was not found: {where} lacks {', '.join(missing[nearest])}. "
        f"Expected is {expected}; give ROOT as --data"
    )


def _there(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_dir() if name.endswith("/") else path.is_file()
