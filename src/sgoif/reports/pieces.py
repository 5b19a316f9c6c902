"""Pieces of HTML that the pages without a script share: texts from the data, numbers, pictures, notes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

from sgoif.reports.page_pictures import kind_of
from sgoif.reports.shell import escaped, visible


def text(value: str) -> str:
    """A text from the data, its invisible characters shown."""
    return escaped(visible(value))


def isolated(value: str) -> str:
    """A text from the data that keeps its direction to itself."""
    return f'<bdi dir="auto">{text(value) or "(no name)"}</bdi>'


def digits(value: float) -> str:
    """Three digits, with a minus that is one."""
    if not math.isfinite(value):
        return "infinite" if value > 0 else "unknown"
    return f"{value:.3g}".replace("-", "−")


def picture(data: bytes | None, described: str) -> str:
    """A picture inside the page, or a box that says it is missing."""
    kind = None if data is None else kind_of(data)
    if data is None or kind is None:
        return '<div class="picture empty"><span>picture could not be read</span></div>'
    inside = base64.b64encode(data).decode("ascii")
    return (
        f'<div class="picture"><img src="data:image/{kind};base64,{inside}" alt="{text(described)}"'
        ' decoding="async"></div>'
    )


def notes(sentences: Sequence[str]) -> str:
    """What is worth knowing, open to begin with; nothing where there is nothing."""
    if not sentences:
        return ""
    items = "".join(f"<li>{isolated(sentence)}</li>" for sentence in sentences)
    return f'<details class="notice" open><summary>Worth knowing</summary><ul>{items}</ul></details>'
