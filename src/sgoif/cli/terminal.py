"""Where results are printed: as wide as the terminal, or as wide as they are where a file or a program reads them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

UNBROKEN = 1000
"""Columns where there is no terminal: no sentence is broken and no name is cut off."""


def results() -> Console:
    """Standard output. COLUMNS, where it is set, says how wide that is."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNBROKEN)
