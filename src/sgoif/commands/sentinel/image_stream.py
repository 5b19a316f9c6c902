"""`sgoif sentinel watch`: whether a stream of images has changed, and from which image on."""

import codecs
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.audit.progress import Progress
from sgoif.audit.settings import DataSettings
from sgoif.commands.image_batches import Unreadable, batches
from sgoif.commands.sentinel.archive import LoadedSentinel, load_sentinel
from sgoif.commands.sentinel.settings import OpenSettings
from sgoif.commands.settings import require_share
from sgoif.errors import SettingError
from sgoif.images import Collection, ImagesError, open_unlabelled
from sgoif.images.backends import Files, Store
from sgoif.images.text import as_unicode
from sgoif.reports.page_json import natural_order
from sgoif.tasks.ood import Alarm

STANDARD_INPUT = Path("-")
BLOCK = 1 << 16


@dataclass(frozen=True)
class WatchOutput:
    """A stream that has ended, or has been left at the alarm."""

    inputs: int
    alarm: Alarm | None
    change_name: str | None
    """The image from which on the stream is unlike before."""
    skipped: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        alarm = self.alarm
        told = None if alarm is None else {
            "time": alarm.time,
            "change": alarm.change,
            "change_name": self.change_name,
            "towards": alarm.towards,
            "drivers": list(alarm.drivers),
            "evidence": alarm.evidence,
        }  # fmt: skip
        return {"inputs": self.inputs, "alarm": told, "skipped": self.skipped, "seconds": self.seconds}


def watch(
    data: DataSettings | None, listing: Path | None, sentinel: OpenSettings, false_alarms: float, show: Progress
) -> WatchOutput:
    """Look at images in order, those of a path or of a list, until the stream ends or an alarm is raised.

    `listing` is a file with one path per line, or "-" for standard input, and `false_alarms` bounds the probability of
    ever raising an alarm without a change.
    """
    require_share("false_alarms", false_alarms)
    start = time.monotonic()
    if listing is not None:
        parts = _listed(listing, Path() if data is None else data.path, sentinel.batch_size)
    elif data is not None:
        parts = _collected(data, show)
    else:
        raise SettingError("there is nothing to watch: give DATA, or --list FILE with one path per line")
    loaded = load_sentinel(sentinel, show.say)
    unreadable = Unreadable(show.say)
    names, alarm = _follow(loaded, parts, false_alarms, unreadable, show)
    unreadable.summarise()
    if not names and unreadable.found:
        raise ImagesError(f"no image can be read; {unreadable.first()}")
    change_name = None if alarm is None else names[alarm.change]
    return WatchOutput(len(names), alarm, change_name, len(unreadable.found), time.monotonic() - start)


@dataclass(frozen=True)
class _Part:
    """Some images of a stream."""

    store: Store
    names: Sequence[str]
    total: int
    """Of the whole stream; 0 where nobody knows."""


def _follow(
    loaded: LoadedSentinel, parts: Iterator[_Part], false_alarms: float, unreadable: Unreadable, show: Progress
) -> tuple[list[str], Alarm | None]:
    """Names of the images looked at, and the alarm."""
    following = loaded.sentinel.watch(false_alarms)
    seen: list[str] = []
    for part in parts:

        def skip(number: int, reason: str, part: _Part = part) -> None:
            unreadable(part.names[number], reason)

        if part.total:
            show.stage("watching", part.total)
        for batch in batches(part.store, loaded.description.preparation, loaded.batch_size, skip):
            scores = loaded.predict(batch.images)[0]
            for row, number in enumerate(batch.numbers):
                seen.append(part.names[number])
                alarm = following.update_scores(scores[row : row + 1], [part.names[number]])
                if alarm is not None:
                    return seen, alarm
            if part.total:
                show.advance(batch.numbers[-1] + 1, part.total)
    return seen, None


def _collected(images: DataSettings, show: Progress) -> Iterator[_Part]:
    """Images of a path: files by name (img2 before img10), anything else in the order in which it is stored."""
    data: Collection = open_unlabelled(images.path, **images.options)
    for note in data.notes:
        show.say(note)
    if data.layout == "folder":
        data = data.pick(natural_order(data.names).tolist())
    return iter([_Part(data.store, data.names, len(data))])


def _listed(listing: Path, root: Path, batch_size: int) -> Iterator[_Part]:
    """Images of a list of paths; DATA is the folder that they start from."""
    if not root.is_dir():
        raise SettingError(f"{root} is not a folder; with --list, DATA is the folder that the paths start from")
    if listing == STANDARD_INPUT:
        return _growing(root, _lines(sys.stdin.fileno()), batch_size)
    try:
        content = listing.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(f"--list {listing} cannot be read: {reason}") from error
    lines = [line for line in map(_path_in, content.split(b"\n")) if line]
    if not lines:
        raise SettingError(f"--list {listing} is empty; expected is one path per line")
    return iter([_part(root, lines, len(lines))])


def _growing(root: Path, lines: Iterable[bytes], most: int) -> Iterator[_Part]:
    """A list as it grows: a part is what has come since the last one, so that no image waits for others."""
    arrived: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        try:
            for line in lines:
                arrived.put(_path_in(line))
        finally:
            arrived.put(None)

    # A daemon: after an alarm nobody waits for a list that may never end.
    threading.Thread(target=read, daemon=True, name="list of images").start()
    ended = False
    while not ended:
        some = [arrived.get()]
        while len(some) < most and some[-1] is not None and not arrived.empty():
            some.append(arrived.get())
        ended = some[-1] is None
        paths = [path for path in some if path]
        if paths:
            yield _part(root, paths, 0)


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they come. Read past `sys.stdin`, whose lock a waiting thread would still hold when Python ends."""
    rest = b""
    while block := os.read(descriptor, BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _path_in(line: bytes) -> str:
    return os.fsdecode(line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n"))


def _part(root: Path, paths: Sequence[str], total: int) -> _Part:
    return _Part(Files([root / path for path in paths]), [as_unicode(path) for path in paths], total)
