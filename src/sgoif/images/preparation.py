"""Read every image of a collection once, into one array on disk that training can map."""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sgoif.core.serialization import atomic_write
from sgoif.core.types import Array
from sgoif.errors import SettingError
from sgoif.images.collection import Collection, Skipped
from sgoif.images.errors import ChangedImagesError, ImagesError, cannot_write
from sgoif.images.mapped import Mapped
from sgoif.images.measurements import Measurements, measure
from sgoif.images.near_duplicates import find_near_duplicates
from sgoif.images.open import check, without_empty_classes
from sgoif.images.parts import Parts, Read, remove_parts
from sgoif.images.pixels import (
    IMAGES,
    MEASURED,
    MOST_SIDE,
    PIXELS,
    THUMBNAIL_TYPE,
    VERSION,
    Duplicate,
    Pixels,
    file_digest,
    open_pixels,
    record_digest,
)
from sgoif.images.reading import Reading, common_size, each_image, read_image
from sgoif.images.writing import PixelFile, remove_leftovers

LEAST, MOST = 8, MOST_SIDE
Progress = Callable[[int, int], None]


def prepare(
    collection: Collection,
    folder: str | Path,
    *,
    size: int | None = None,
    labelled: bool = True,
    progress: Progress | None = None,
) -> Pixels:
    """Bring all images to one size (chosen from the images where not given) and keep them in `folder`.

    What cannot be read is left out and reported in `skipped`. A second call for the same images and size opens what
    the first one wrote, or goes on where that was cut short; `ChangedImagesError` where the images are not as they
    were written. Without `labelled` one image is enough, of any class or none, and all classes are kept.
    `progress(done, total)` is called now and then.
    """
    if size is not None and not LEAST <= size <= MOST:
        raise SettingError(f"size = {size} must lie between {LEAST} and {MOST} pixels, or be left to the images")
    where, digest = Path(folder), collection.digest()
    ready = _reusable(where, digest, size)
    if ready is not None:
        remove_parts(where)
        if progress is not None:
            progress(len(collection), len(collection))
        return ready
    try:
        where.mkdir(parents=True, exist_ok=True)
        (where / IMAGES).unlink(missing_ok=True)
        remove_leftovers(where)
        _write(collection, where, digest, size, labelled, progress)
    except OSError as error:
        raise cannot_write(where, error) from error
    return open_pixels(where, verify=False)


def _reusable(folder: Path, digest: str, size: int | None) -> Pixels | None:
    try:
        record = json.loads((folder / IMAGES).read_text(encoding="utf-8"))
        if (record["version"], record["digest"], record["asked"]) != (VERSION, digest, size):
            return None
        return open_pixels(folder)
    except ChangedImagesError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ImagesError):
        return None


def _write(
    collection: Collection, folder: Path, digest: str, asked: int | None, labelled: bool, progress: Progress | None
) -> None:
    size = common_size(collection.store) if asked is None else asked
    kept: list[int] = []
    contents: list[bytes] = []
    measured: list[Array] = []
    sizes: list[tuple[int, int]] = []
    unreadable: list[Skipped] = []
    parts = Parts(folder, {"version": VERSION, "digest": digest, "images": len(collection), "size": size})
    file = PixelFile(folder, size)
    try:
        with closing(_images(collection, parts, size, progress)) as stream:
            for number, found in enumerate(stream):
                if isinstance(found, str):
                    unreadable.append(Skipped(collection.names[number], found, damaged=True))
                else:
                    reading, row = found
                    file.append(reading)
                    kept.append(number)
                    contents.append(reading.content)
                    sizes.append(reading.size)
                    row["file_bytes"] = _bytes(collection.file(number))
                    measured.append(row)
                told = number % 16 == 15 or number + 1 == len(collection)
                if progress is not None and told and number >= parts.taken:
                    progress(number + 1, len(collection))
        survivors = replace(collection.pick(kept), skipped=collection.skipped + unreadable)
        if labelled:
            survivors = without_empty_classes(survivors, "none of its images can be read")
        if labelled or not kept:
            check(survivors)
        written = file.finish()
        duplicates = _duplicates(contents, survivors.labels)
        near = _near_duplicates(folder, duplicates, survivors.labels)
        Measurements.of(measured).save(folder / MEASURED)
        written[MEASURED] = (folder / MEASURED).stat().st_size
        record: dict[str, Any] = {
            "version": VERSION,
            "digest": digest,
            "asked": asked,
            "size": size,
            "channels": file.channels,
            "bytes": written,
            "class_names": survivors.class_names,
            "skipped": [[entry.name, entry.reason, entry.damaged] for entry in survivors.skipped],
            "duplicates": [[group.indices, group.conflicting] for group in duplicates],
            "alike": [[group.indices, group.conflicting] for group in near],
            "thumbnails": {"type": THUMBNAIL_TYPE, "lengths": file.lengths},
            "names": survivors.names,
            "labels": survivors.labels.tolist(),
            "files": [None if path is None else str(path) for path in map(survivors.file, range(len(survivors)))],
            "sizes": sizes,
        }
        files = {name: file_digest(folder / name) for name in written}
        record["digests"] = {**files, IMAGES: record_digest(record)}
        atomic_write(folder / IMAGES, lambda handle: json.dump(record, handle, separators=(",", ":")), text=True)
        remove_parts(folder)
    except BaseException as error:
        file.discard()
        (folder / MEASURED).unlink(missing_ok=True)
        if isinstance(error, OSError | ImagesError):
            remove_parts(folder)
        raise


def _images(collection: Collection, parts: Parts, size: int, progress: Progress | None) -> Generator[Read, None, None]:
    """Every image in order, with its measurements; those that an earlier run had read come from what it left."""
    yield from parts.read()
    if not parts.taken:
        remove_parts(parts.folder)  # those of other images
    elif progress is not None:
        progress(parts.taken, len(collection))
    if parts.taken < len(collection):
        rest = collection.store.pick(range(parts.taken, len(collection))) if parts.taken else collection.store
        with closing(each_image(rest, lambda image: _read(image, size))) as stream:
            yield from parts.keep(stream)


def _read(image: Image.Image, size: int) -> tuple[Reading, Array]:
    reading = read_image(image, size)
    return reading, measure(image, reading.content, grey=len(reading.pixels) == 1)


def _bytes(path: Path | None) -> int:
    with suppress(OSError):  # gone since it was read
        return path.stat().st_size if path is not None else 0
    return 0


def _duplicates(contents: list[bytes], labels: Any) -> list[Duplicate]:
    groups: dict[bytes, list[int]] = {}
    for number, content in enumerate(contents):
        groups.setdefault(content, []).append(number)
    return [_duplicate(members, labels) for members in groups.values() if len(members) > 1]


def _near_duplicates(folder: Path, duplicates: list[Duplicate], labels: Any) -> list[Duplicate]:
    """Images that are nearly the same; of those with the same pixels the first stands for all."""
    further = {row for group in duplicates for row in group.indices[1:]}
    pixels: Any = Mapped(np.load(folder / PIXELS, mmap_mode="r", allow_pickle=False))  # read as an array is
    compared = [row for row in range(len(pixels)) if row not in further]
    return [_duplicate(rows, labels) for rows in find_near_duplicates(pixels, compared)]


def _duplicate(rows: Sequence[int], labels: Any) -> Duplicate:
    return Duplicate(tuple(rows), len({int(labels[row]) for row in rows} - {-1}) > 1)
