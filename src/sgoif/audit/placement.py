"""Places for files in a new folder: no two the same, none outside it, names that a file system takes."""

from __future__ import annotations

import os
from pathlib import Path

LONGEST_NAME = 255
"""Bytes of one part of a path, on every usual file system."""


class Places:
    """Paths given out so far, relative to the new folder."""

    def __init__(self) -> None:
        self._files: set[Path] = set()
        self._folders: set[Path] = set()

    def take(self, wanted: Path) -> Path:
        """The wanted path, or with a number added where it is taken; a file never lies where a folder does."""
        if any(parent in self._files for parent in wanted.parents):
            wanted = Path(wanted.parts[0], "-".join(wanted.parts[1:]))
        place, number = wanted, 2
        while place in self._files or place in self._folders:
            place = wanted.with_name(_numbered(wanted, number))
            number += 1
        self._files.add(place)
        self._folders.update(place.parents)
        return place

    def folder(self, wanted: str) -> str:
        """A folder of its own at the top."""
        name, number = wanted, 2
        while Path(name) in self._folders:
            name = _numbered(Path(wanted), number)
            number += 1
        self._folders.add(Path(name))
        return name


def safe_name(text: str) -> str:
    """Any text as one part of a path: no separators or control characters, not hidden, not too long."""
    kept = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in text).strip(". ")
    return _shortened(kept, LONGEST_NAME - 32) or "_"


def _numbered(path: Path, number: int) -> str:
    ending = f"_{number}{path.suffix}"
    return _shortened(path.stem, LONGEST_NAME - len(os.fsencode(ending))) + ending


def _shortened(text: str, most: int) -> str:
    """Cut at the end to a number of bytes, between characters."""
    while len(os.fsencode(text)) > most:
        text = text[:-1]
    return text
