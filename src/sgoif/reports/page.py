"""The report page: one HTML file that works offline, shows what is suspicious and collects decisions.

Python writes data, never markup made of data: the page's own script puts every text in place as text. The content
security policy allows that one script and that one style sheet (by their digests), pictures inside the file, and
nothing else: no network, no evaluation of strings, no markup from strings.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from sgoif.core.serialization import atomic_write
from sgoif.errors import SettingError
from sgoif.reports.page_data import PageData
from sgoif.reports.page_findings import picture_order
from sgoif.reports.page_json import build_payload, suspicion_order, to_json
from sgoif.reports.page_pictures import CHUNK, order_by_need, picture_blocks
from sgoif.reports.templates import escape_html, fill_template, join_scripts, page_policy, read_asset

__all__ = ["MAX_BYTES", "PageData", "write_page"]

MAX_BYTES = 64 * 2**20
REVIEW_SCRIPTS = ("review_plan.js", "review_interval.js", "review_estimate.js")
SCRIPTS = (
    "elements.js", "rows.js", "decisions.js", "charts.js", "pairs.js", *REVIEW_SCRIPTS, "review_panel.js", "cards.js",
    "findings.js", "tabs.js", "page.js", "start.js",
)  # fmt: skip
END = 256
"""Room for what follows the pictures."""


def write_page(
    path: Path, data: PageData, *, max_bytes: int = MAX_BYTES, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the page, whole or not at all. `progress(done, total)` is called as pictures are read.

    The table is always stored; pictures beyond `max_bytes` are left out, those of the least suspicious examples first.
    """
    atomic_write(Path(path), lambda file: file.writelines(_parts(data, max_bytes, progress)), text=True)


def _parts(data: PageData, max_bytes: int, progress: Callable[[int, int], None] | None) -> Iterator[str]:
    if max_bytes <= 0:
        raise SettingError(f"max_bytes must be positive; got {max_bytes}")
    order = suspicion_order(data.table)
    sequence = picture_order(data, order_by_need(order, data.harmed))
    slots = None
    if data.thumbnail is not None:
        places = np.empty(len(sequence), dtype=np.int64)
        places[sequence] = np.arange(len(sequence))
        slots = np.concatenate([places[order], places[len(order) :]])
    frame, script = _frame(data.title)
    report = to_json({**build_payload(data, order, slots), "chunk": CHUNK})
    head = f'{frame[0]}<script type="application/json" id="report">{report}</script>\n'
    body = f"<script>{script}</script>\n"
    yield head
    if data.thumbnail is None:
        yield body
    else:
        room = max_bytes - len(head.encode()) - len(body.encode()) - len(frame[1].encode()) - END
        blocks = picture_blocks(data, sequence, room, progress)
        # The first pictures stand before the script, which then fills the first screen while the rest is still loading.
        yield next(blocks)
        yield body
        yield from blocks
    yield frame[1]


def _frame(title: str) -> tuple[tuple[str, str], str]:
    """The page before and after its data, and the script."""
    style = read_asset("page.css")
    script = join_scripts(SCRIPTS)
    policy = page_policy(style, script, images="data: blob:")
    whole = fill_template("page.html", {"title": escape_html(title), "policy": policy, "style": style})
    before, after = whole.split("<!-- data -->\n")
    return (before, after), script
