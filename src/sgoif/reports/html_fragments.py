"""Pieces of HTML that the pages without a script share: texts from the data, numbers, pictures, notes."""

import base64
import math
from collections.abc import Mapping, Sequence

from sgoif.reports.page_pictures import image_format
from sgoif.reports.templates import escape_html, page_policy, read_asset, show_control_characters


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
    return {"style": style, "policy": page_policy(style, images="data:")}


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


def card_html(
    rank: int,
    *,
    badge: str,
    name: str,
    picture: bytes | None,
    label: tuple[str, str],
    probability: str,
    score: float,
    selected: bool = False,
) -> str:
    """An image of a list: its picture, what its label is called and is, a probability (markup) and a score."""
    mark = f'<span class="badge">{badge}</span>' if badge else ""
    return (
        f'<li><article class="{"card selected" if selected else "card"}">'
        f'<p class="card-top"><span>#{rank:,}</span>{mark}</p><div class="card-main">'
        f"{picture_html(picture, f'Picture of {name}')}"
        f'<div class="card-body"><p class="labels"><span class="muted">{label[0]}: </span>{isolated_text(label[1])}</p>'
        f'<p class="probability"><span>{probability}</span></p><p class="muted">score {format_digits(score)}</p>'
        f'<p class="name" title="{safe_text(name)}">{isolated_text(name)}</p></div></div></article></li>'
    )


def section_html(place: str, title: str, lead: str, items: Sequence[str]) -> str:
    """A part of a page: a heading, a line about it, and a list."""
    return (
        f'<section id="{place}" class="wide" aria-labelledby="{place}-heading"><h2 id="{place}-heading">{title}</h2>'
        f'<p class="listhead muted">{lead}</p><ol class="trail">{"".join(items)}</ol></section>'
    )


def pictures_html(place: str, title: str, about: str, called: str, pictures: str) -> str:
    """An item of such a list: what it is about, and a row of pictures, which is called so."""
    return (
        f'<li><article class="link" aria-labelledby="{place}"><div><h3 id="{place}">{title}</h3>{about}</div>'
        f'<ol class="row-of-pictures" aria-label="{called}">{pictures}</ol></article></li>'
    )
