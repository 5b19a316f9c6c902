"""The page of `sgoif trace`: victims beside the training images behind them. One HTML file, no script, no network.

Everything that comes from data is escaped; the content security policy allows the page's own style sheet and pictures
inside the file, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from sgoif.tasks.poisoning import RemovalEstimate

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 560, 260, 46, 40, 12, 16
"""The drawing of the curve and its margins, in its own units."""


@dataclass(frozen=True)
class TrainingImage:
    """One training image."""

    name: str
    label: str
    score: float
    probability: float
    family: int
    """−1: none."""
    picture: bytes | None
    """JPEG, PNG, WebP or GIF; None where there is none."""


@dataclass(frozen=True)
class Victim:
    """An image that is answered wrongly, and the training images that have most in common with it."""

    name: str
    label: str
    """What it is called, wrongly."""
    picture: bytes | None
    responsible: Sequence[TrainingImage]


@dataclass(frozen=True)
class FamilyImages:
    """A family of training images."""

    number: int
    label: str
    size: int
    cohesion: float
    resembles: Sequence[tuple[str, int]]
    members: Sequence[TrainingImage]
    """A few of them."""


@dataclass(frozen=True)
class TraceReport:
    """Everything on the page."""

    title: str
    examples: int
    """Training images compared."""
    selected: int
    victims: Sequence[Victim]
    victims_total: int | None
    """None: nothing was known."""
    families: Sequence[FamilyImages]
    listed: Sequence[TrainingImage]
    """Those selected, or where none is, those of highest score; worst first."""
    restore: RemovalEstimate | None
    facts: Mapping[str, str]
    notes: Sequence[str] = ()


def write_trace_report(path: Path, page: TraceReport) -> None:
    """Write the page, whole or not at all."""
    write_text(Path(path), trace_report_html(page))


def trace_report_html(page: TraceReport) -> str:
    """The page as one text."""
    sections = {
        "victims": _victims(page),
        "families": _families(page.families),
        "restore": _restore(page.restore),
    }
    titles = {"victims": "Victims", "families": "Families", "restore": "How many to remove"}
    links = [(name, titles[name]) for name, text in sections.items() if text]
    links += [("found", "Images"), ("details", "Details")]
    return fill_template(
        "trace.html",
        {
            "title": safe_text(page.title) or "(no name)",
            **style_and_policy("page.css", "trace.css"),
            "nav": "".join(f'<a href="#{name}">{title}</a>' for name, title in links),
            "figures": _figures(page),
            "advice": _advice(page),
            "apply": _apply(page),
            "notes": notes_html(page.notes),
            **sections,
            "listing": "Images to remove" if page.selected else "Images of highest score",
            "shown": _how_many(page),
            "cards": "\n".join(_card(rank, row, page.selected > 0) for rank, row in enumerate(page.listed, 1)),
            "facts": facts_html(page.facts),
        },
    )


def _figures(page: TraceReport) -> str:
    share = f"{page.selected / max(1, page.examples):.2%} of {page.examples:,} training images"
    figures = [("images to remove", f"{page.selected:,}", share)]
    figures.append(("families", f"{len(page.families):,}", "groups that differ from their class in the same way"))
    if page.victims_total is None:
        figures.append(("victims", "none", "every class was searched for a small group that stands apart"))
    else:
        figures.append(("victims", f"{page.victims_total:,}", "images with a wrong answer that were given"))
    if page.restore is not None:
        figures.append(("enough to undo it", f"{page.restore.count:,}", "images of highest score, by a linear refit"))
    return figures_html(figures)


def _advice(page: TraceReport) -> str:
    if not page.selected:
        return (
            "No training image stands apart far enough to be called a cause. The images of highest score are shown"
            " below, but they may well be ordinary."
        )
    if page.victims_total is None:
        return (
            "These images form a small group apart from the others of their label. That is what poison looks like, and"
            " also an unusual but honest kind of image: look before you remove them."
        )
    return (
        "These training images differ from the others of their label in the way the victims do. Look at them beside the"
        " victims; if they are what taught the model its answer, remove them and train again."
    )


def _apply(page: TraceReport) -> str:
    if not page.selected:
        return ""
    return (
        '<p>A copy of the data without them, from the file <span class="name">decisions.csv</span> beside this page:'
        '</p><code class="code" tabindex="0">sgoif apply decisions.csv --to clean/</code>'
    )


def _how_many(page: TraceReport) -> str:
    whole = page.selected if page.selected else page.examples
    order = "most probable first" if page.selected else "highest score first"
    return f"{len(page.listed):,} of {whole:,} images, {order}"


def _victims(page: TraceReport) -> str:
    if not page.victims:
        return ""
    items = "\n".join(_link(number, victim) for number, victim in enumerate(page.victims, 1))
    return (
        '<section id="victims" class="wide" aria-labelledby="victims-heading">'
        '<h2 id="victims-heading">Victims and what is behind them</h2>'
        f'<p class="listhead muted">{len(page.victims):,} of {page.victims_total or 0:,} victims; beside each, the'
        f' training images that have most in common with it</p><ol class="trail">{items}</ol></section>'
    )


def _link(number: int, victim: Victim) -> str:
    pictures = "".join(_small(row) for row in victim.responsible) or '<li class="muted">none could be compared</li>'
    return (
        f'<li><article class="link" aria-labelledby="victim-{number}"><div><h3 id="victim-{number}">Victim {number:,}'
        f"</h3>{picture_html(victim.picture, f'Picture of victim {victim.name}')}"
        f'<p class="answer"><span class="muted">called </span>{isolated_text(victim.label)}</p>'
        f'<p class="name" title="{safe_text(victim.name)}">{isolated_text(victim.name)}</p></div>'
        f'<ol class="row-of-pictures" aria-label="Training images behind victim {number:,}">{pictures}</ol>'
        "</article></li>"
    )


def _families(families: Sequence[FamilyImages]) -> str:
    if not families:
        return ""
    return (
        '<section id="families" class="wide" aria-labelledby="families-heading">'
        '<h2 id="families-heading">Families</h2><p class="listhead muted">Images that differ from their class in the'
        ' same way, with a few from the middle of each family</p><ol class="trail">'
        + "\n".join(_family(group) for group in families)
        + "</ol></section>"
    )


def _family(group: FamilyImages) -> str:
    guesses = ", ".join(f"{isolated_text(name)} ({count:,})" for name, count in group.resembles)
    resembling = f'<p class="muted">the model\'s next guesses: {guesses}</p>' if guesses else ""
    noun = "image" if group.size == 1 else "images"
    return (
        f'<li><article class="link" aria-labelledby="family-{group.number}"><div><h3 id="family-{group.number}">Family'
        f' {group.number + 1:,}</h3><p class="answer">{group.size:,} {noun} labelled {isolated_text(group.label)}</p>'
        f'<p class="muted">cohesion {format_digits(group.cohesion)}</p>{resembling}</div>'
        f'<ol class="row-of-pictures" aria-label="Images of family {group.number + 1:,}">'
        f"{''.join(_small(row) for row in group.members)}</ol></article></li>"
    )


def _restore(restore: RemovalEstimate | None) -> str:
    if restore is None:
        return ""
    where = (
        "the last layer"
        if restore.level == "head"
        else f"a linear layer on the output of {isolated_text(restore.level)}"
    )
    rows = "".join(f"<tr><td>{count:,}</td><td>{value:.3f}</td></tr>" for count, value in restore.curve)
    return (
        '<section id="restore" class="wide" aria-labelledby="restore-heading">'
        '<h2 id="restore-heading">How many to remove</h2>'
        f"<p>Refitting {where} without the {restore.count:,} images of highest score brings the median probability of"
        f" the wrong label from {restore.before:.2f} to {restore.after:.2f}; without as many other images of the same"
        f' label it stays at {restore.control:.2f}.</p><p class="muted">This is an estimate on frozen features.'
        " Training again without the images is the proof, and removing all those selected is the safe choice.</p>"
        f"{_curve(restore)}"
        '<details class="numbers"><summary>The curve as numbers</summary><div class="scroll" tabindex="0"'
        ' role="region" aria-label="The curve as numbers"><table><thead><tr><th scope="col">removed</th>'
        f'<th scope="col">probability of the wrong label</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
        "</section>"
    )


def _curve(restore: RemovalEstimate) -> str:
    """The curve as a drawing; numbers of images on a scale on which each doubling takes the same room."""
    most = max(count for count, _ in restore.curve)

    def x(count: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log1p(count) / max(math.log1p(most), 1e-9)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0.0), 1.0))

    points = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in restore.curve)
    levels = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
        for v in (0.0, 0.5, 1.0)
    )
    ticks = "".join(
        f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{count:,}</text>'
        for count in sorted({0, restore.count, most})
    )
    dots = "".join(
        f'<circle class="{"picked" if count == restore.count else "point-0"}" cx="{x(count):.1f}" cy="{y(value):.1f}"'
        f' r="{5 if count == restore.count else 3}"/>'
        for count, value in restore.curve
    )
    at = f"{x(restore.count):.1f}"
    label = (
        f"Probability of the wrong label by number of images removed: {restore.before:.2f} with none removed,"
        f" {restore.after:.2f} with {restore.count:,} removed"
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{levels}'
        f'<line class="half" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<polyline class="curve curve-0" points="{points}"/>{dots}{ticks}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">images removed</text></svg>'
    )


def _small(row: TrainingImage) -> str:
    return (
        f"<li>{picture_html(row.picture, f'Picture of {row.name}')}<p><strong>{isolated_text(row.label)}</strong></p>"
        f'<p class="muted">score {format_digits(row.score)}</p>'
        f'<p class="name" title="{safe_text(row.name)}">{isolated_text(row.name)}</p></li>'
    )


def _card(rank: int, row: TrainingImage, selected: bool) -> str:
    badge = f'<span class="badge">family {row.family + 1:,}</span>' if row.family >= 0 else ""
    kind = "card selected" if selected else "card"
    return (
        f'<li><article class="{kind}"><p class="card-top"><span>#{rank:,}</span>{badge}</p><div class="card-main">'
        f"{picture_html(row.picture, f'Picture of {row.name}')}"
        f'<div class="card-body"><p class="labels"><span class="muted">label: </span>{isolated_text(row.label)}</p>'
        f'<p class="probability"><span><strong>{format_digits(row.probability)}</strong> probability</span></p>'
        f'<p class="muted">score {format_digits(row.score)}</p><p class="name" title="{safe_text(row.name)}">'
        f"{isolated_text(row.name)}</p></div></div></article></li>"
    )
