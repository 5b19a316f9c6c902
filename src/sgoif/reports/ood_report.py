"""The page of `sgoif sentinel score`: the strangest images, worst first. One HTML file, no script, no network.

Everything that comes from data is escaped; the content security policy allows the page's own style sheet and pictures
inside the file, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgoif.core.serialization import write_text
from sgoif.reports.html_fragments import (
    facts_html,
    figures_html,
    format_digits,
    isolated_text,
    notes_html,
    picture_html,
    safe_text,
    style_and_policy,
)
from sgoif.reports.templates import fill_template


@dataclass(frozen=True)
class ScoredImage:
    """One image."""

    name: str
    score: float
    p_value: float
    strange: bool
    predicted: str
    picture: bytes | None
    """JPEG, PNG, WebP or GIF; None where there is none."""


@dataclass(frozen=True)
class OodReport:
    """Everything on the page."""

    title: str
    rows: Sequence[ScoredImage]
    """Strangest first."""
    images: int
    """Scored in all."""
    strange: int
    """Of these, p-value at most `false_alarms`."""
    false_alarms: float
    facts: Mapping[str, str]
    notes: Sequence[str] = ()


def write_ood_report(path: Path, page: OodReport) -> None:
    """Write the page, whole or not at all."""
    write_text(Path(path), ood_report_html(page))


def ood_report_html(page: OodReport) -> str:
    """The page as one text."""
    return fill_template(
        "ood.html",
        {
            "title": safe_text(page.title) or "(no name)",
            **style_and_policy("page.css"),
            "figures": _figures(page),
            "advice": _advice(page),
            "notes": notes_html(page.notes),
            "shown": f"{len(page.rows):,} of {page.images:,} images, strangest first",
            "cards": "\n".join(_card(rank, row) for rank, row in enumerate(page.rows, 1)),
            "facts": facts_html(page.facts),
        },
    )


def _figures(page: OodReport) -> str:
    expected = page.false_alarms * page.images
    figures = (
        ("images scored", f"{page.images:,}", ""),
        ("called strange", f"{page.strange:,}", f"p-value of {page.false_alarms:g} or less"),
        ("to be expected anyway", f"{expected:,.0f}" if expected >= 1 else "&lt;1", "if all of the images belonged"),
    )
    return figures_html(figures)


def _advice(page: OodReport) -> str:
    if page.strange == 0:
        return "No image stands out more than images that belong do."
    if page.strange <= 1.5 * page.false_alarms * page.images + 1:
        return "About as many images stand out as would by chance if all of them belonged."
    return "More images stand out than would by chance. Start with the first ones below."


def _card(rank: int, row: ScoredImage) -> str:
    badge = '<span class="badge">strange</span>' if row.strange else ""
    name, shown = isolated_text(row.name), picture_html(row.picture, f"Picture of {row.name}")
    return (
        f'<li><article class="card"><p class="card-top"><span>#{rank:,}</span>{badge}</p><div class="card-main">'
        f'{shown}<div class="card-body"><p class="labels"><span class="muted">answer: </span>'
        f"{isolated_text(row.predicted)}</p>"
        f'<p class="probability"><span><strong>p = {format_digits(row.p_value)}</strong></span></p>'
        f'<p class="muted">score {format_digits(row.score)}</p><p class="name" title="{safe_text(row.name)}">{name}</p>'
        "</div></div></article></li>"
    )
