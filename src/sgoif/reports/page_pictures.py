"""Thumbnails inside the page: base64 lines in inert script elements, a few hundred to an element.

The browser reads an element only when a visible card needs one of its pictures. Pictures are stored by need: the most
suspicious example first, followed by the held-out examples it hurts, then the next. So the cards of one screen share an
element or two, and a file that reaches its size limit lacks only what the least suspicious examples would show.
"""

import base64
from collections.abc import Callable, Iterator

import numpy as np

from sgoif.core.types import Indices
from sgoif.reports.page_data import PageData
from sgoif.reports.page_json import to_json

CHUNK = 256
LARGEST = 2**20
"""A picture with more bytes is no thumbnail; it is left out, so that one file cannot use up the room of all."""
NOT_STORED = "-"
FRAME = 80
"""Room for the tags around a chunk."""


def order_by_need(order: Indices, harmed: Indices) -> Indices:
    """All rows, each where it is first needed when `order` is read with the rows that each of its examples hurts."""
    if harmed.shape[1] == 0:
        return order
    sequence = np.concatenate([order[:, None], harmed[order]], axis=1).ravel()
    rows, first = np.unique(sequence, return_index=True)
    keep = rows >= 0
    return rows[keep][np.argsort(first[keep], kind="stable")]


def image_format(picture: bytes) -> str | None:
    """The format by its first bytes, or None if no browser is sure to show it."""
    if picture.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if picture.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if picture.startswith(b"RIFF") and picture[8:12] == b"WEBP":
        return "webp"
    return "gif" if picture.startswith((b"GIF87a", b"GIF89a")) else None


def picture_blocks(
    data: PageData, sequence: Indices, room: int, progress: Callable[[int, int], None] | None
) -> Iterator[str]:
    """Script elements with the pictures of `sequence`, at most `room` bytes, and one that says what is missing."""
    assert data.thumbnail is not None
    total, stored, unreadable, oversize = len(sequence), 0, 0, 0
    lines: list[str] = []
    chunk = 0
    cut = total
    for position, row in enumerate(sequence.tolist()):
        picture = _read(data.thumbnail, row)
        if picture is None:
            unreadable += 1
            line = ""
        elif len(picture) > LARGEST:
            oversize += 1
            line = NOT_STORED
        else:
            line = base64.b64encode(picture).decode("ascii")
        cost = len(line) + 1 + (FRAME if not lines else 0)
        if cost > room:
            cut = position
            break
        room -= cost
        stored += len(line) > 1
        lines.append(line)
        if progress is not None:
            progress(position + 1, total)
        if len(lines) == CHUNK:
            yield _block(chunk, lines)
            chunk, lines = chunk + 1, []
    if lines:
        yield _block(chunk, lines)
    if progress is not None and cut < total:
        progress(total, total)
    missing = {"stored": stored, "dropped": total - cut + oversize, "unreadable": unreadable}
    yield f'<script type="application/json" id="pictures-end">{to_json(missing)}</script>\n'


def _read(thumbnail: Callable[[int], bytes | None], row: int) -> bytes | None:
    try:
        picture = thumbnail(row)
    except Exception:  # whatever a decoder does with a damaged file, the report must not be lost for one picture
        return None
    return picture if picture is not None and image_format(picture) is not None else None


def _block(chunk: int, lines: list[str]) -> str:
    return f'<script type="text/plain" id="pictures-{chunk}">' + "\n".join(lines) + "</script>\n"
