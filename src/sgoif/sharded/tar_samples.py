"""Samples in a tar file as WebDataset lays them out: KEY.jpg (or another image) beside KEY.cls or KEY.json.

The standard library reads them, in order and without unpacking: names are names and never paths, links and devices are
passed over, and no more is read at a time than a limit says, whatever a header claims.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sgoif.images.classes import class_text
from sgoif.images.decode import SUFFIXES
from sgoif.sharded.addresses import ShardError, why

MOST_IMAGE, MOST_TEXT = 1 << 28, 1 << 16
"""Bytes of an image, and of a label or a header, that are read at most."""


@dataclass(frozen=True)
class Sample:
    """An encoded image with its label, or the reason why there is none."""

    key: str
    image: bytes = b""
    label: str | None = None
    problem: str | None = None


class ConnectionLost(ShardError):
    """A shard could not be read to its end, which another attempt may do."""


class _Limited:
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
    limited = _Limited(file)
    key, parts = "", dict[str, bytes | str]()
    try:
        with tarfile.open(fileobj=limited, mode="r:") as archive:  # type: ignore[call-overload]
            place = -1
            while (member := archive.next()) is not None:
                archive.members.clear()  # they would be kept for ever
                if member.size < 0 or member.offset <= place:
                    raise tarfile.ReadError("it leads back to its beginning")
                place = member.offset
                if not member.isreg() or member.issparse():
                    continue
                name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                folder, slash, base = name.rpartition("/")
                stem, _, extension = base.partition(".")
                if folder + slash + stem != key:
                    if parts:
                        yield _sample(key, parts)
                    key, parts = folder + slash + stem, {}
                kind = extension.lower().rpartition(".")[2]
                if f".{kind}" in SUFFIXES:
                    kind = "image"
                elif kind not in ("cls", "json"):
                    continue
                if kind not in parts:
                    parts[kind] = _content(archive, member, limited, MOST_IMAGE if kind == "image" else MOST_TEXT)
            limited.seek(archive.offset)
            if limited.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # a bad header ends the list without a word
                raise tarfile.ReadError("it ends without the mark of its end")
    except ConnectionLost:
        raise
    except Exception as error:  # headers can be wrong in as many ways as there are numbers in them
        if parts:
            yield _sample(key, parts)
        yield Sample("", problem=f"the shard is damaged, and what follows cannot be read: {error}")
    else:
        if parts:
            yield _sample(key, parts)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limited: _Limited, most: int) -> bytes | str:
    """What a member holds; the reason where that is too much."""
    if member.size > most:
        return f"a file of {member.size:,} bytes is more than the limit of {most:,}"
    content = archive.extractfile(member)
    assert content is not None
    limited.most = max(most, tarfile.BLOCKSIZE)
    try:
        return content.read()
    finally:
        limited.most = MOST_TEXT


def _sample(key: str, parts: dict[str, bytes | str]) -> Sample:
    image, label = parts.get("image"), None
    if not isinstance(image, bytes):
        return Sample(key, problem=image or "it has no image")
    if isinstance(written := parts.get("cls"), bytes):
        label = class_text(written.decode("utf-8", "backslashreplace").strip())
    elif isinstance(written := parts.get("json"), bytes):
        try:
            value = json.loads(written).get("label")
        except (ValueError, RecursionError, AttributeError):
            value = None
        label = class_text(value) if isinstance(value, str | int | float) else None
    return Sample(key, image, label, None if label else "it has no label in a .cls file or in a .json file ('label')")
