"""What commands print: results on standard output, everything else on standard error.

Results are as wide as the terminal, or as wide as they are where a file or a program reads them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sgoif.audit.progress import Progress

Result = TypeVar("Result")
UNBROKEN = 1000
"""Columns where there is no terminal: no sentence is broken and no name is cut off."""
SHOWN = 10
"""Rows of the table that a terminal shows."""


def results() -> Console:
    """Standard output. COLUMNS, where it is set, says how wide that is."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNBROKEN)


def message(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: dict[str, Any]) -> None:
    """One object on standard output."""
    from sgoif.core.provenance import plain

    print(json.dumps(plain(value), allow_nan=False))


def print_result(record: dict[str, Any], as_json: bool, text: object) -> None:
    """What was found, as one object or for a person."""
    if as_json:
        print_json(record)
    else:
        print(text)


def print_sentence(text: str) -> None:
    """A line of the results, taken as it is."""
    results().print(text, markup=False, highlight=False)


def with_progress(work: Callable[[Progress], Result]) -> Result:
    """Do the work with progress on standard error."""
    from sgoif.audit.progress import for_terminal

    show = for_terminal()
    try:
        return work(show)
    finally:
        show.close()


def new_table(title: str, texts: Sequence[str], figures: Sequence[str] = ()) -> Table:
    """An empty table with columns of texts, then columns of figures."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in texts:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def add_row(table: Table, texts: Sequence[str], figures: Sequence[str] = ()) -> None:
    """A row of such a table; texts may come from the data, so that nothing in them is markup or moves the cursor."""
    from rich.text import Text

    from sgoif.images.text import shown

    widths = (48, *(24 for _ in texts[1:]))
    cells = (shown(text, width)[1:-1] for text, width in zip(texts, widths, strict=True))
    table.add_row(*map(Text, cells), *figures)
