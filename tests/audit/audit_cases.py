"""Small image folders, and the audit as a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from warm_processes import COMMAND, WarmProcess, python, start_warm_processes

from sgoif.distributed import launch

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


def run_audit(folder: Path, *options: str, cwd: Path, before: str = "") -> WarmProcess:
    """`sgoif audit` in a process of its own; `before` is Python that runs first."""
    program = f"{before}\n{COMMAND}"
    return python(program, "audit", str(folder), *options, cwd=cwd, NO_COLOR="1", COLUMNS="120")


WARM_WORKERS = "import audit_cases; audit_cases.warm_workers()"
"""Python that runs first where `--nproc` is given."""


def warm_workers() -> None:
    """The processes of `--nproc` need not import torch again, save after every step, and are in the file `pids`."""

    def started(work: Callable[..., None], arguments: tuple[Any, ...], **options: Any) -> Any:
        context = start_warm_processes(partial(_saving_often, work), arguments, **options)
        Path("pids.part").write_text(" ".join(map(str, context.pids())))
        Path("pids.part").replace("pids")
        return context

    vars(launch)["start_processes"] = started


def _saving_often(work: Callable[..., None], *given: Any) -> None:
    import sgoif.audit.run_directory as run_directory

    run_directory.EVERY = run_directory.EPOCH_EVERY = 0.0
    work(*given)


def read_issues(folder: Path) -> list[dict[str, Any]]:
    """Rows of issues.csv, as they were before `to_cell`."""
    import csv

    from sgoif.core.score_table import from_cell

    with (folder / "issues.csv").open(newline="", encoding="utf-8") as handle:
        return [{key: from_cell(value) for key, value in row.items()} for row in csv.DictReader(handle)]
