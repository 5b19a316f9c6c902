"""Pieces of HTML that the pages without a script share: texts from the data, numbers, pictures, notes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

from sgoif.reports.page_pictures import image_format
from sgoif.reports.templates import escape_html, show_control_characters


def safe_text(value: str) -> str:
    """A text from the data, its invisible characters shown."""
    return escape_html(show_control_characters(value))


def isolated_text(value: str) -> str:
    """A text from the data that keeps its direction to itself."""
    return f'<bdi dir="auto">{safe_text(value) or "(no name)"}</bdi>'


def format_digits(value: float) -> str:
    """Three digits, with a minus that is one."""
    if not math.isfinite(value):
        return "infinite" if value > 0 else "unknown"
    return f"{value:.3g}".replace("-", "−")


def picture_html(data: bytes | None, described: str) -> str:
    """A picture inside the page, or a box that says it is missing."""
    kind = None if data is None else image_format(data)
    if data is None or kind is None:
        return '<div class="picture empty"><span>picture could not be read</span></div>'
    inside = base64.b64encode(data).decode("ascii")
    return (
        f'<div class="picture"><img src="data:image/{kind};base64,{inside}" alt="{safe_text(described)}"'
        ' decoding="async"></div>'
    )


def notes_html(sentences: Sequence[str]) -> str:
    """What is worth knowing, open to begin with; nothing where there is nothing."""
    if not sentences:
        return ""
    items = "".join(f"<li>{isolated_text(sentence)}</li>" for sentence in sentences)
    return f'<details class="notice" open><summary>Worth knowing</summary><ul>{items}</ul></details>'
