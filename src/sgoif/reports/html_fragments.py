"""Pieces of HTML that the pages without a script share: texts from the data, numbers, pictures, notes."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence

from sgoif.reports.page_pictures import image_format
from sgoif.reports.templates import escape_html, policy_digest, read_asset, show_control_characters


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


def style_and_policy(*sheets: str) -> dict[str, str]:
    """Style sheets, and the content security policy that allows them, pictures inside the page and nothing else."""
    style = "".join(map(read_asset, sheets))
    allowed = f"img-src data:; style-src {policy_digest(style)}; base-uri 'none'; form-action 'none'"
    return {"style": style, "policy": f"default-src 'none'; {allowed}"}


def figures_html(figures: Sequence[tuple[str, str, str]]) -> str:
    """Large figures, each under its label and above a note."""
    return "\n".join(
        f'<div class="figure"><p class="figure-label">{label}</p><p class="figure-value">{value}</p>'
        f'<p class="muted">{note}</p></div>'
        for label, value, note in figures
    )


def facts_html(facts: Mapping[str, str]) -> str:
    """Facts as a list of terms and what they are."""
    return "".join(f"<dt>{safe_text(key)}</dt><dd>{isolated_text(value)}</dd>" for key, value in facts.items())


def notes_html(sentences: Sequence[str]) -> str:
    """What is worth knowing, open to begin with; nothing where there is nothing."""
    if not sentences:
        return ""
    items = "".join(f"<li>{isolated_text(sentence)}</li>" for sentence in sentences)
    return f'<details class="notice" open><summary>Worth knowing</summary><ul>{items}</ul></details>'
