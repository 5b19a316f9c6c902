"""Small image folders, and the audit as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FLIPPED = "flipped"
"""Part of the names of images that lie in the wrong folder."""


def make_folder(
    folder: Path,
    classes: Sequence[str] = ("bars", "columns", "dots"),
    per_class: int = 60,
    size: int = 12,
    wrong: float = 0.1,
    seed: int = 0,
    channels: int = 3,
) -> Path:
    """A folder of pictures with a pattern per class; some lie in the folder of the next class."""
    generator = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    for number, name in enumerate(classes):
        for k in range(per_class):
            flipped = k < wrong * per_class
            home = classes[(number + 1) % len(classes)] if flipped else name
            # Classes differ by direction and wavelength, in ways that neither a shift nor a mirror can undo.
            along = xx if number % 2 else yy
            wave = np.sin(along * (0.7 + 0.5 * (number // 2)) + generator.uniform(0, 6.3))
            noisy = 128 + 70 * wave[..., None] + generator.normal(0, 25, (size, size, channels))
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)
            (folder / home).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
            image.save(folder / home / f"{number}-{k:03d}{'-' + FLIPPED if flipped else ''}.png")
    return folder


def run_audit(folder: Path, *options: str, cwd: Path, before: str = "") -> subprocess.Popen[str]:
    """`sgoif audit` in a process of its own; `before` is Python that runs first."""
    program = f"{before}\nfrom sgoif.cli import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", program, "audit", str(folder), *options],
        cwd=cwd,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def environment() -> dict[str, str]:
    """One thread, sources of this checkout, no colours."""
    here = Path(__file__).resolve()
    paths = os.pathsep.join([str(here.parents[2] / "src"), str(here.parent)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}


def read_issues(folder: Path) -> list[dict[str, Any]]:
    """Rows of issues.csv, as they were before `to_cell`."""
    import csv

    from sgoif.core.score_table import from_cell

    with (folder / "issues.csv").open(newline="", encoding="utf-8") as handle:
        return [{key: from_cell(value) for key, value in row.items()} for row in csv.DictReader(handle)]
