"""The image files below a folder. Links are followed where they stay inside it and change no label.

What is not followed, unless the user asks for it: links out of the folder that was opened, and into another class,
whose images would get a second label. Never followed are links back to a folder that holds them, and to what is read
anyway.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from sgoif.images.collection import Skipped
from sgoif.images.decode import SUFFIXES
from sgoif.images.errors import ImagesError
from sgoif.images.sources.base import Request, listing
from sgoif.images.text import as_unicode, few, plural

OUT, OTHER = "leads out of the folder", "leads into another class"
BACK, TWICE = "leads back to a folder that holds it", "leads to what is read anyway"
FOLLOW = "follow such links with --follow-links (sgoif audit) or follow_links=True, or put copies in their place"
NOT_READ = frozenset(
    {".heic", ".heif", ".hif", ".jxl", ".svg", ".psd", ".xcf", ".eps", ".dcm", ".exr", ".hdr", ".dds"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
)
"""Suffixes of pictures in formats that are not read; other files, such as notes beside images, are nobody's loss."""


def is_link(entry: os.DirEntry[str]) -> bool:
    """A symbolic link, or a junction of Windows."""
    junction = getattr(entry, "is_junction", None)
    return entry.is_symlink() or (junction is not None and bool(junction()))


def is_image(name: str) -> bool:
    """Whether a file of that name is read."""
    return Path(name).suffix.lower() in SUFFIXES


def within(path: str, folder: str) -> bool:
    """Whether a real path is a real folder or lies below it."""
    return path == folder or path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


class Walk:
    """One reading of a folder: what was found, and which links were not followed."""

    def __init__(self, request: Request) -> None:
        self._top, self._follow = request.path, request.follow_links
        self._root, self._start = os.path.realpath(request.path), os.path.join(request.path, "")
        self._labelled: frozenset[str] = frozenset()
        self._claimed: set[str] = set()
        self._refused: dict[str, list[str]] = {}
        self.skipped: list[Skipped] = []

    def label(self, folders: Iterable[str]) -> None:
        """Folders whose images have labels of their own: the classes, and splits that are not read."""
        self._labelled = frozenset(os.path.realpath(folder) for folder in folders if not os.path.islink(folder))

    def name(self, path: str) -> str:
        """The name of an image: its path below the folder that was opened."""
        below = path[len(self._start) :] if path.startswith(self._start) else os.path.relpath(path, self._top)
        return as_unicode(below).replace(os.sep, "/")

    def refusal(self, path: str) -> str | None:
        """Why a link to a whole class or split is not followed."""
        target = os.path.realpath(path)
        if within(os.path.realpath(os.path.dirname(path)), target):
            return BACK
        return None if self._follow else self._trespass(target)

    def images(self, folder: str, *, first: bool = False) -> list[str] | None:
        """Image files at any depth, in the order of their paths; None where the folder is a link that is not followed.

        `first` ends the search at the first folder that has some.
        """
        if self._follow:
            self._claimed.clear()
        home = os.path.realpath(folder)
        linked = os.path.islink(folder) and folder != str(self._top)
        if linked and (why := self.refusal(folder) or (TWICE if home in self._claimed else None)):
            self._refuse(folder, why)
            return None
        found: list[str] = []
        links: list[tuple[str, str]] = []
        self._enter(folder, home, found, links, linked, first)
        for path, parent in links:  # grows while folders behind links are entered
            if first and found:
                break
            self._link(path, parent, home, found, links, first)
        return sorted(found)

    def _enter(
        self, folder: str, real: str, found: list[str], links: list[tuple[str, str]], linked: bool, first: bool
    ) -> None:
        """Everything below a folder but what lies behind links, which are noted; behind a link, once for all ways."""
        waiting = [(folder, real)]
        while waiting and not (first and found):
            here, real = waiting.pop()
            if linked and not self._claim(real):
                continue
            try:
                entries = listing(Path(here))
            except ImagesError as error:
                self.skipped.append(Skipped(self.name(here), str(error)))
                continue
            for entry in entries:
                if is_link(entry):
                    links.append((entry.path, real))
                elif entry.is_dir():
                    waiting.append((entry.path, os.path.join(real, entry.name)))
                elif self._readable(entry.path, entry.is_file()) and (
                    not linked or self._claim(os.path.join(real, entry.name))
                ):
                    found.append(entry.path)

    def _link(
        self, path: str, parent: str, home: str, found: list[str], links: list[tuple[str, str]], first: bool
    ) -> None:
        target = os.path.realpath(path)
        folder = os.path.isdir(target)
        if not folder and not self._readable(path, os.path.isfile(target)):
            return
        if why := self._reason(target, parent, home, folder):
            self._refuse(path, why)
        elif folder:
            self._enter(path, target, found, links, True, first)
        else:
            self._claimed.add(target)
            found.append(path)

    def _reason(self, target: str, parent: str, home: str, folder: bool) -> str | None:
        """Why a link inside a class is not followed."""
        if folder and (within(parent, target) or within(home, target)):
            return BACK
        if within(target, home):
            hidden = any(part.startswith(".") for part in target[len(home) :].split(os.sep))
            if not hidden and (folder or is_image(target)):
                return TWICE
        elif not self._follow and (why := self._trespass(target)):
            return why
        return TWICE if target in self._claimed else None

    def _trespass(self, target: str) -> str | None:
        if not within(target, self._root):
            return OUT
        while target != self._root:
            if target in self._labelled:
                return OTHER
            target = os.path.dirname(target)
        return None

    def _claim(self, real: str) -> bool:
        """Whether this is the first time that a real path is reached behind a link."""
        new = real not in self._claimed
        self._claimed.add(real)
        return new

    def _readable(self, path: str, is_file: bool) -> bool:
        """Whether a file is taken for an image; where it may be one that cannot be read, that is noted."""
        suffix = os.path.splitext(path)[1].lower()
        if suffix in SUFFIXES:
            if not is_file:
                self.skipped.append(Skipped(self.name(path), "not a file, or a link that leads nowhere"))
            return is_file
        if suffix in NOT_READ:
            reason = f"pictures of this format ({suffix}) are not read: convert it, for instance to PNG"
            self.skipped.append(Skipped(self.name(path), reason))
        elif not suffix:
            reason = "its name does not say what it is: give it a suffix such as .png"
            self.skipped.append(Skipped(self.name(path), reason))
        return False

    def _refuse(self, path: str, why: str) -> None:
        name = self.name(path)
        self.skipped.append(Skipped(name, f"a link that {why} is not followed"))
        self._refused.setdefault(why, []).append(name)

    def notes(self) -> list[str]:
        """How many links were not followed, why, and how they would be."""
        return [
            f"{plural(len(names), 'link')} not followed: each {why} ({few(names)})"
            + (f"; {FOLLOW}" if why in (OUT, OTHER) else "")
            for why, names in self._refused.items()
        ]
