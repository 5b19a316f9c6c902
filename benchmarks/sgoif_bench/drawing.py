"""Pictures of results: drawn without a display, and the same file for the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sgoif.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Mapping[str, Mapping[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""File types, and what must be left out for the same results to give the same file."""


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn before anything is read."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path} must end in one of {', '.join(FORMATS)}")


@contextmanager
def picture(path: Path, title: str = "", size: tuple[float, float] | None = None) -> Iterator[Figure]:
    """A figure to draw on, of so many inches; it gets its title and is written where the block ends."""
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "sgoif"}):
        figure = Figure(figsize=size, dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        if title:
            figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        ending = path.suffix.lower()
        figure.savefig(path, format=ending[1:], metadata=dict(FORMATS[ending]))
