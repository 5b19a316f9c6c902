"""The page of `sgoif trace`: victims beside the training images behind them. One HTML file, no script, no network.

Everything that comes from data is escaped; the content security policy allows the page's own style sheet and pictures
inside the file, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sgoif.core.serialization import write_text
from sgoif.core.types import Indices
from sgoif.reports.html_fragments import (
    card_html,
    facts_html,
    figures_html,
    format_digits,
    isolated_text,
    notes_html,
    picture_html,
    pictures_html,
    safe_text,
    section_html,
    style_and_policy,
)
from sgoif.reports.templates import fill_template
from sgoif.tasks.poisoning import Family, RemovalEstimate, TraceResult

LISTED = 120
"""Selected images on the page."""
DOUBTFUL = 24
"""Images of highest score on the page where none is selected."""
GUESSES = 3
"""Labels that a family is taken for, the most frequent."""


@dataclass(frozen=True)
class TraceReport:
    """What was found, and what its indices stand for. Pictures are JPEG, PNG, WebP or GIF; None where there is none."""

    title: str
    found: TraceResult
    class_names: Sequence[str]
    name: Callable[[int], str]
    """Of a training image, by its index."""
    picture: Callable[[int], bytes | None]
    facts: Mapping[str, str]
    notes: Sequence[str] = ()
    victims: int | None = None
    """How many were given; None: nothing was known."""
    victim: Callable[[int], tuple[str, bytes | None]] | None = None
    """Name and picture of one of them."""
    shown: int = 0
    """Victims on the page, at most."""

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of every index."""
        return {int(index): row for row, index in enumerate(self.found.index)}

    @cached_property
    def families(self) -> Indices:
        """The family of every row; −1: none."""
        return self.found.family_of()

    def label(self, index: int) -> str:
        """The label of a training image."""
        return self.class_names[int(self.found.given[self.rows[index]])]


def write_trace_report(path: Path, page: TraceReport) -> None:
    """Write the page, whole or not at all."""
    write_text(Path(path), trace_report_html(page))


def trace_report_html(page: TraceReport) -> str:
    """The page as one text."""
    selected, found = len(page.found.selected), page.found
    listed = found.selected[:LISTED] if selected else found.order[:DOUBTFUL]
    sections = {"victims": _victims(page), "families": _families(page), "restore": _restore(found.to_restore)}
    titles = {"victims": "Victims", "families": "Families", "restore": "How many to remove"}
    links = [(name, titles[name]) for name, text in sections.items() if text]
    links += [("found", "Images"), ("details", "Details")]
    of, order = (selected, "most probable first") if selected else (len(found), "highest score first")
    return fill_template(
        "trace.html",
        {
            "title": safe_text(page.title) or "(no name)",
            **style_and_policy("page.css", "trace.css"),
            "nav": "".join(f'<a href="#{name}">{title}</a>' for name, title in links),
            "figures": _figures(page),
            "advice": _advice(page),
            "apply": APPLY if selected else "",
            "notes": notes_html(page.notes),
            **sections,
            "listing": "Images to remove" if selected else "Images of highest score",
            "shown": f"{len(listed):,} of {of:,} images, {order}",
            "cards": "\n".join(_card(page, rank, index) for rank, index in enumerate(listed.tolist(), 1)),
            "facts": facts_html(page.facts),
        },
    )


def _figures(page: TraceReport) -> str:
    found, selected = page.found, len(page.found.selected)
    share = f"{selected / max(1, len(found)):.2%} of {len(found):,} training images"
    figures = [("images to remove", f"{selected:,}", share)]
    figures.append(("families", f"{len(found.families):,}", "groups that differ from their class in the same way"))
    if page.victims is None:
        figures.append(("victims", "none", "every class was searched for a small group that stands apart"))
    else:
        figures.append(("victims", f"{page.victims:,}", "images with a wrong answer that were given"))
    if found.to_restore is not None:
        count = f"{found.to_restore.count:,}"
        figures.append(("enough to undo it", count, "images of highest score, by a linear refit"))
    return figures_html(figures)


def _advice(page: TraceReport) -> str:
    if not len(page.found.selected):
        return (
            "No training image stands apart far enough to be called a cause. The images of highest score are shown"
            " below, but they may well be ordinary."
        )
    if page.victims is None:
        return (
            "These images form a small group apart from the others of their label. That is what poison looks like, and"
            " also an unusual but honest kind of image: look before you remove them."
        )
    return (
        "These training images differ from the others of their label in the way the victims do. Look at them beside the"
        " victims; if they are what taught the model its answer, remove them and train again."
    )


APPLY = (
    '<p>A copy of the data without them, from the file <span class="name">decisions.csv</span> beside this page:'
    '</p><code class="code" tabindex="0">sgoif apply decisions.csv --to clean/</code>'
)


def _victims(page: TraceReport) -> str:
    responsible = page.found.responsible[: page.shown]
    if page.victim is None or not responsible:
        return ""
    items = []
    for number, causes in enumerate(responsible, 1):
        name, picture = page.victim(number - 1)
        pairs = zip(causes.index.tolist(), causes.score.tolist(), strict=True)
        behind = "".join(_small(page, index, score) for index, score in pairs)
        about = (
            f"{picture_html(picture, f'Picture of victim {name}')}"
            f'<p class="answer"><span class="muted">called </span>{isolated_text(page.class_names[causes.label])}</p>'
            f'<p class="name" title="{safe_text(name)}">{isolated_text(name)}</p>'
        )
        nothing = '<li class="muted">none could be compared</li>'
        title, called = f"Victim {number:,}", f"Training images behind victim {number:,}"
        items.append(pictures_html(f"victim-{number}", title, about, called, behind or nothing))
    what = "beside each, the training images that have most in common with it"
    lead = f"{len(responsible):,} of {page.victims or 0:,} victims; {what}"
    return section_html("victims", "Victims and what is behind them", lead, items)


def _families(page: TraceReport) -> str:
    items = [_family(page, number, family) for number, family in enumerate(page.found.families)]
    lead = "Images that differ from their class in the same way, with a few from the middle of each family"
    return section_html("families", "Families", lead, items) if items else ""


def _family(page: TraceReport, number: int, family: Family) -> str:
    likely = list(family.resembles.items())[:GUESSES]
    guesses = ", ".join(f"{isolated_text(page.class_names[label])} ({count:,})" for label, count in likely)
    resembling = f'<p class="muted">the model\'s next guesses: {guesses}</p>' if guesses else ""
    noun = "image" if family.size == 1 else "images"
    about = (
        f'<p class="answer">{family.size:,} {noun} labelled {isolated_text(page.class_names[family.label])}</p>'
        f'<p class="muted">cohesion {format_digits(family.cohesion)}</p>{resembling}'
    )
    members = "".join(_small(page, index) for index in family.representatives.tolist())
    title = f"Family {number + 1:,}"
    return pictures_html(f"family-{number}", title, about, f"Images of family {number + 1:,}", members)


def _restore(restore: RemovalEstimate | None) -> str:
    if restore is None:
        return ""
    stage = f"a linear layer on the output of {isolated_text(restore.level)}"
    where = "the last layer" if restore.level == "head" else stage
    rows = "".join(
        f'<tr class="{"picked" if count == restore.count else "tried"}"><td>{count:,}</td><td>{value:.3f}</td>'
        f'<td><meter min="0" max="1" value="{value:.3f}">{value:.3f}</meter></td></tr>'
        for count, value in restore.curve
    )
    return (
        '<section id="restore" class="wide" aria-labelledby="restore-heading">'
        '<h2 id="restore-heading">How many to remove</h2>'
        f"<p>Refitting {where} without the {restore.count:,} images of highest score brings the median probability of"
        f" the wrong label from {restore.before:.2f} to {restore.after:.2f}; without as many other images of the same"
        f' label it stays at {restore.control:.2f}.</p><p class="muted">This is an estimate on frozen features.'
        " Training again without the images is the proof, and removing all those selected is the safe choice.</p>"
        '<div class="scroll numbers" tabindex="0" role="region" aria-label="Probability by number removed">'
        '<table><thead><tr><th scope="col">removed</th><th scope="col" colspan="2">probability of the wrong label</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _small(page: TraceReport, index: int, score: float | None = None) -> str:
    name = page.name(index)
    shown = float(page.found.score[page.rows[index]]) if score is None else score
    return (
        f"<li>{picture_html(page.picture(index), f'Picture of {name}')}<p><strong>{isolated_text(page.label(index))}"
        f'</strong></p><p class="muted">score {format_digits(shown)}</p>'
        f'<p class="name" title="{safe_text(name)}">{isolated_text(name)}</p></li>'
    )


def _card(page: TraceReport, rank: int, index: int) -> str:
    row, found = page.rows[index], page.found
    family = page.families[row]
    return card_html(
        rank,
        badge=f"family {family + 1:,}" if family >= 0 else "",
        name=page.name(index),
        picture=page.picture(index),
        label=("label", page.label(index)),
        probability=f"<strong>{format_digits(float(found.probability[row]))}</strong> probability",
        score=float(found.score[row]),
        selected=len(found.selected) > 0,
    )
