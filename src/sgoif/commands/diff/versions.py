"""One version of a set of images: names, classes, and a digest of each image, of an audit or of the data themselves."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.progress import Progress
from sgoif.audit.run_directory import CACHE, RUN
from sgoif.images import Collection, ImagesError, Pixels, UnreadableImageError, open_images, open_pixels
from sgoif.images.reading import each_image, in_threads, read_image
from sgoif.images.text import shown

LEAST = 8
"""Pixels a side that are kept of an image of which only the digest is wanted."""
BATCH = 1000


@dataclass(frozen=True)
class Version:
    """Images by name."""

    images: dict[str, tuple[bytes, str | None]]
    """A digest of the content, empty where that cannot be read, and the class."""

    @property
    def classes(self) -> dict[str, int]:
        """How many images each class has, by the name of the class."""
        sizes: dict[str, int] = {}
        for _, label in self.images.values():
            if label is not None:
                sizes[label] = sizes.get(label, 0) + 1
        return dict(sorted(sizes.items()))


def is_run(path: Path) -> bool:
    """Whether a path is the run directory of an audit."""
    return (path / RUN).is_file()


def open_version(path: Path, options: dict[str, Any], every_split: bool) -> Collection | Pixels:
    """What was prepared for an audit, or the images of one split or of all; nothing is decoded yet."""
    if is_run(path):
        try:
            return open_pixels(path / CACHE, verify=False)
        except ImagesError as error:
            raise RunDirectoryError(
                f"the prepared images of {shown(path)} are gone or damaged ({error}); run that audit again with"
                " --resume, or give the folder of its images"
            ) from error
    found = open_images(path, **options)
    if every_split and found.layout == "folder" and found.split is not None and options.get("split") is None:
        return open_images(path, **options, every_split=True)
    return found


def read_versions(
    first: Collection | Pixels, second: Collection | Pixels, show: Progress
) -> tuple[Version, Version, bool]:
    """Both versions, and whether their images were compared by pixels.

    What is stored is compared where that can be: the bytes of two sets of files, say. A run knows only pixels, so that
    the other version is decoded.
    """
    stored = (
        isinstance(first, Collection) and isinstance(second, Collection) and type(first.store) is type(second.store)
    )
    return _read(first, not stored, show), _read(second, not stored, show), not stored


def _read(opened: Collection | Pixels, pixels: bool, show: Progress) -> Version:
    if isinstance(opened, Pixels):
        contents = [row.tobytes() for row in opened.measurements().content]
    else:
        contents = _contents(opened, pixels, show)
    labels = [opened.class_names[label] if label >= 0 else None for label in opened.labels.tolist()]
    return Version(dict(zip(opened.names, zip(contents, labels, strict=True), strict=True)))


def _contents(images: Collection, pixels: bool, show: Progress) -> list[bytes]:
    """A digest of every image; empty where it cannot be read."""

    def of_stored(number: int) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        with suppress(UnreadableImageError):
            images.store.content(number, digest.update)
            return digest.digest()
        return b""

    decoded = (found if isinstance(found, bytes) else b"" for found in each_image(images.store, _of_pixels))
    show.stage("comparing pixels" if pixels else "comparing files", len(images))
    contents: list[bytes] = []
    for content in decoded if pixels else in_threads(len(images), of_stored):
        contents.append(content)
        if len(contents) % BATCH == 0 or len(contents) == len(images):
            show.advance(len(contents), len(images))
    return contents


def _of_pixels(image: Any) -> bytes:
    return read_image(image, LEAST).content
