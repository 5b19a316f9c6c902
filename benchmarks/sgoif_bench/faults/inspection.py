"""A run directory seen from outside, after a kill: is every file that has its name whole, and how far is the run?"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sgoif.audit.run_directory import CACHE, INCOMING, LOCK, NEWEST, PREVIOUS, RUN
from sgoif.core.serialization import load_state
from sgoif.images import open_pixels

PHASES = ("starting", "reading images", "before the first checkpoint", "training", "writing results", "finished")
PARTS = {"images.json", "pixels.npy", "thumbs.bin"}


@dataclass(frozen=True)
class Seen:
    """What a run directory holds."""

    phase: str
    step: int
    """Of the newest checkpoint; 0 where there is none."""
    rows: int
    """Rows of issues.csv."""
    files: int
    unfinished: int
    """Files that were being written: hidden, and removed when the run goes on."""
    problems: list[str]
    """Files that have their name and are not whole."""


def _json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def _csv(path: Path) -> None:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        widths = {len(row) for row in csv.reader(file)}
    if len(widths) != 1:
        raise ValueError(f"rows of {sorted(widths)} cells")


def _state(path: Path) -> None:
    load_state(path)


def _page(path: Path) -> None:
    if not path.read_text(encoding="utf-8", errors="surrogateescape").rstrip().endswith("</html>"):
        raise ValueError("no end")


def _parquet(path: Path) -> None:
    if find_spec("pyarrow") is not None:
        import pyarrow.parquet

        pyarrow.parquet.ParquetFile(path).read(use_threads=False)


WHOLE: dict[str, Callable[[Path], None]] = {
    ".json": _json,
    ".csv": _csv,
    ".npz": _state,
    ".html": _page,
    ".parquet": _parquet,
}


def look(run: Path) -> Seen:
    """Read every file of a run directory."""
    problems: list[str] = []
    if not run.is_dir():
        return Seen(PHASES[0], 0, 0, 0, 0, problems)
    unfinished = [path for path in run.rglob(".*") if path.is_file()]
    files = [path for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")]
    for path in files:
        if path.parent == run and path.name != LOCK:
            if path.suffix not in WHOLE:
                problems.append(f"{path.name}: not a file that an audit writes")
                continue
            try:
                WHOLE[path.suffix](path)
            except Exception as error:
                problems.append(f"{path.name}: {type(error).__name__}: {error}")
        elif path.parent == run / CACHE and path.name not in PARTS:
            problems.append(f"{path.name}: not a file of prepared images")
    if (run / CACHE / "images.json").exists():  # its being there says that all of it is there
        try:
            open_pixels(run / CACHE)
        except Exception as error:
            problems.append(f"{CACHE}: {error}")
    phase, step = _progress(run)
    return Seen(phase, step, _rows(run / "issues.csv"), len(files), len(unfinished), problems)


def _progress(run: Path) -> tuple[str, int]:
    if not (run / RUN).exists():
        return PHASES[0], 0
    if not (run / CACHE / "images.json").exists():
        return PHASES[1], 0
    newest = next((run / name for name in (INCOMING, NEWEST, PREVIOUS) if (run / name).exists()), None)
    if newest is None:
        return PHASES[2], 0
    try:
        state = load_state(newest)
    except Exception:  # told above
        return PHASES[2], 0
    if not state["stopped"]:
        return PHASES[3], int(state["step"])
    return PHASES[5 if (run / "summary.json").exists() else 4], int(state["step"])


def _rows(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return sum(1 for _ in csv.reader(file)) - 1
