"""The page of `sgoif sentinel score`: the strangest images, worst first. One HTML file, no script, no network.

Everything that comes from data is escaped; the content security policy allows the page's own style sheet and pictures
inside the file, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgoif.core.score_table import ScoreTable
from sgoif.core.serialization import write_text
from sgoif.reports.html_fragments import (
    card_html,
    facts_html,
    figures_html,
    format_digits,
    notes_html,
    safe_text,
    style_and_policy,
)
from sgoif.reports.templates import fill_template


@dataclass(frozen=True)
class OodReport:
    """Everything on the page."""

    title: str
    table: ScoreTable
    """All images that were scored, strangest first: path, index, score, p_value, is_strange and predicted_label."""
    picture: Callable[[int], bytes | None]
    """By index: JPEG, PNG, WebP or GIF; None where there is none."""
    shown: int
    """Images on the page, at most."""
    false_alarms: float
    facts: Mapping[str, str]
    notes: Sequence[str] = ()

    @property
    def strange(self) -> int:
        """Images with a p-value of at most `false_alarms`."""
        return int(self.table["is_strange"].sum())


def write_ood_report(path: Path, page: OodReport) -> None:
    """Write the page, whole or not at all."""
    write_text(Path(path), ood_report_html(page))


def ood_report_html(page: OodReport) -> str:
    """The page as one text."""
    shown = min(page.shown, len(page.table))
    return fill_template(
        "ood.html",
        {
            "title": safe_text(page.title) or "(no name)",
            **style_and_policy("page.css"),
            "figures": _figures(page),
            "advice": _advice(page),
            "notes": notes_html(page.notes),
            "shown": f"{shown:,} of {len(page.table):,} images, strangest first",
            "cards": "\n".join(_card(page, row) for row in range(shown)),
            "facts": facts_html(page.facts),
        },
    )


def _figures(page: OodReport) -> str:
    expected = page.false_alarms * len(page.table)
    figures = (
        ("images scored", f"{len(page.table):,}", ""),
        ("called strange", f"{page.strange:,}", f"p-value of {page.false_alarms:g} or less"),
        ("to be expected anyway", f"{expected:,.0f}" if expected >= 1 else "&lt;1", "if all of the images belonged"),
    )
    return figures_html(figures)


def _advice(page: OodReport) -> str:
    if page.strange == 0:
        return "No image stands out more than images that belong do."
    if page.strange <= 1.5 * page.false_alarms * len(page.table) + 1:
        return "About as many images stand out as would by chance if all of them belonged."
    return "More images stand out than would by chance. Start with the first ones below."


def _card(page: OodReport, row: int) -> str:
    table = page.table
    return card_html(
        row + 1,
        badge="strange" if table["is_strange"][row] else "",
        name=str(table["path"][row]),
        picture=page.picture(int(table["index"][row])),
        label=("answer", str(table["predicted_label"][row])),
        probability=f"<strong>p = {format_digits(float(table['p_value'][row]))}</strong>",
        score=float(table["score"][row]),
    )
