"""Samples in a tar file as WebDataset lays them out: KEY.jpg (or another image) beside KEY.cls or KEY.json.

The standard library reads them, in order and without unpacking: names are names and never paths, links and devices are
passed over, and no more is read at a time than a limit says, whatever a header claims.
"""

import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sgoif.images.classes import class_text
from sgoif.images.decode import SUFFIXES
from sgoif.images.errors import ImagesError, why

Image = TypeVar("Image")

MOST_IMAGE, MOST_TEXT = 1 << 28, 1 << 16
"""Bytes of an image, and of a label or a header, that are read at most."""
LABELS = ("cls", "json")


@dataclass(frozen=True)
class Sample:
    """An encoded image with its label, or the reason why there is none."""

    key: str
    image: bytes = b""
    label: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Place:
    """Where an encoded image lies in a tar file."""

    name: str
    """Of the file that it is in there."""
    start: int
    length: int


class ConnectionLost(ImagesError):
    """A shard could not be read to its end, which another attempt may do."""


class Limited:
    """A file of which nobody reads much at once, and whose failures are told from damage."""

    def __init__(self, file: Any) -> None:
        self._file, self.most = file, MOST_TEXT

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.most:
            raise tarfile.ReadError(f"it claims a piece of {size:,} bytes; the limit is {self.most:,}")
        return bytes(self._do(lambda: self._file.read(size)))

    def seek(self, place: int) -> None:
        self._do(lambda: self._file.seek(place))

    def tell(self) -> int:
        return int(self._do(self._file.tell))

    def _do(self, work: Any) -> Any:
        try:
            return work()
        except Exception as error:  # each store has errors of its own
            raise ConnectionLost(f"it could not be read to its end: {why(error)}") from error


def samples(file: Any) -> Iterator[Sample]:
    """The samples of a tar file, in order. Where it is damaged the last one has no key and says so.

    Raises `ConnectionLost` where reading itself fails.
    """
    for key, image, label, problem in _samples(file, _image):
        yield Sample(key, b"" if image is None else image, label, problem)


def located(file: Any) -> Iterator[tuple[str, Place | None, str | None, str | None]]:
    """Key, place of the image, label and problem of every sample, likewise; images are not read."""
    return _samples(file, _place)


def _samples(
    file: Any, take: Callable[[tarfile.TarFile, tarfile.TarInfo, Limited], Image | str]
) -> Iterator[tuple[str, Image | None, str | None, str | None]]:
    """Every sample with what `take` makes of its image, or says is wrong with it."""
    limited = Limited(file)
    key, parts, image = "", dict[str, bytes | str](), list[Image | str]()
    try:
        with tarfile.open(fileobj=limited, mode="r:") as archive:  # type: ignore[call-overload]
            for of, kind, member in members(archive, limited):
                if of != key:
                    if parts or image:
                        yield _sample(key, image, parts)
                    key, parts, image = of, {}, []
                if f".{kind}" in SUFFIXES:
                    if not image:
                        image.append(take(archive, member, limited))
                elif kind in LABELS and kind not in parts:
                    parts[kind] = _content(archive, member, limited, MOST_TEXT)
    except ConnectionLost:
        raise
    except Exception as error:  # headers can be wrong in as many ways as there are numbers in them
        if parts or image:
            yield _sample(key, image, parts)
        yield "", None, None, f"the shard is damaged, and what follows cannot be read: {error}"
    else:
        if parts or image:
            yield _sample(key, image, parts)


def members(archive: Any, limited: Limited) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """The files in a tar file, each with the key of its sample and with its kind, such as jpg or cls."""
    place = -1
    while (member := archive.next()) is not None:
        archive.members.clear()  # they would be kept for ever
        if member.size < 0 or member.offset <= place:
            raise tarfile.ReadError("it leads back to its beginning")
        place = member.offset
        if member.isreg() and not member.issparse():
            folder, slash, base = _name(member).rpartition("/")
            stem, _, extension = base.partition(".")
            yield folder + slash + stem, extension.lower().rpartition(".")[2], member
    limited.seek(archive.offset)
    if limited.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # a bad header ends the list without a word
        raise tarfile.ReadError("it ends without the mark of its end")


def _image(archive: tarfile.TarFile, member: tarfile.TarInfo, limited: Limited) -> bytes | str:
    return _content(archive, member, limited, MOST_IMAGE)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, limited: Limited) -> Place | str:
    if member.size > MOST_IMAGE:
        return _too_much(member, MOST_IMAGE)
    return Place(_name(member), member.offset_data, member.size)


def _name(member: tarfile.TarInfo) -> str:
    return member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _too_much(member: tarfile.TarInfo, most: int) -> str:
    return f"a file of {member.size:,} bytes is more than the limit of {most:,}"


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limited: Limited, most: int) -> bytes | str:
    """What a member holds; the reason where that is too much."""
    if member.size > most:
        return _too_much(member, most)
    content = archive.extractfile(member)
    assert content is not None
    limited.most = max(most, tarfile.BLOCKSIZE)
    try:
        return content.read()
    finally:
        limited.most = MOST_TEXT


def _sample(
    key: str, found: Sequence[Image | str], parts: dict[str, bytes | str]
) -> tuple[str, Image | None, str | None, str | None]:
    image, label = found[0] if found else "it has no image", None
    if isinstance(image, str):
        return key, None, None, image
    if isinstance(written := parts.get("cls"), bytes):
        label = class_text(written.decode("utf-8", "backslashreplace").strip())
    elif isinstance(written := parts.get("json"), bytes):
        try:
            value = json.loads(written).get("label")
        except (ValueError, RecursionError, AttributeError):
            value = None
        label = class_text(value) if isinstance(value, str | int | float) else None
    return key, image, label, None if label else "it has no label in a .cls file or in a .json file ('label')"
