"""`sgoif sentinel score`: how strange every image is, as tables and a page, strangest first."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.audit.outputs import write_skipped, write_tables
from sgoif.audit.progress import Progress
from sgoif.audit.settings import DataSettings, folder_name
from sgoif.commands.image_batches import Unreadable, collection_batches, thumbnail_of
from sgoif.commands.sentinel.archive import KEPT_BACK, LoadedSentinel, load_sentinel
from sgoif.commands.sentinel.settings import OpenSettings
from sgoif.commands.settings import require, require_share
from sgoif.core.provenance import package_version
from sgoif.core.score_table import ScoreTable, texts
from sgoif.images import Collection, ImagesError, open_unlabelled
from sgoif.images.errors import make_writable, written
from sgoif.images.text import plural, shown
from sgoif.reports.ood_report import OodReport, write_ood_report

STEM, PAGE = "scores", "strangest.html"
MOST_SHOWN = 2000


def score(
    images: DataSettings,
    sentinel: OpenSettings,
    *,
    out: Path | None,
    false_alarms: float,
    show: int,
    progress: Progress,
) -> tuple[ScoreTable, dict[str, Any]]:
    """Score images and write scores.csv, scores.parquet, skipped.csv and strangest.html.

    They go to `out`, or else to `sgoif-scores-<name>` in the current directory. `false_alarms` is the share of the
    images that belong which may be called strange, and `show` the number of images on the page.

    Returns the table, strangest first, with path, index, score, p_value, is_strange and predicted_label; and a summary.
    """
    require_share("false_alarms", false_alarms)
    require(1 <= show <= MOST_SHOWN, "show", show, f"a whole number from 1 to {MOST_SHOWN}")
    start = time.monotonic()
    folder = out or Path(f"sgoif-scores-{folder_name(images.path)}")
    data = open_unlabelled(images.path, **images.options)
    for note in data.notes:
        progress.say(note)
    loaded = load_sentinel(sentinel, progress.say)
    make_writable(folder)
    unreadable = Unreadable(progress.say)
    table = _table(loaded, data, false_alarms, unreadable, progress)
    notes = _notes(loaded, false_alarms, unreadable)
    with written(folder):
        notes += write_tables(folder, table, STEM)
        write_skipped(folder, unreadable.found)
        for note in notes:
            progress.say(note)
        progress.stage("writing the page", min(show, len(table)))
        page = OodReport(
            title=data.source.name or str(data.source),
            table=table,
            picture=partial(thumbnail_of, data),
            shown=show,
            false_alarms=false_alarms,
            facts=_facts(sentinel.path, loaded, data),
            notes=notes,
        )
        write_ood_report(folder / PAGE, page)
    return table, {
        "images": len(table),
        "strange": int(table["is_strange"].sum()),
        "false_alarms": false_alarms,
        "skipped": len(unreadable.found),
        "calibration": len(loaded.sentinel.calibration),
        "smallest_p_value": loaded.smallest_p,
        "directory": folder.absolute(),
        "scores": (folder / f"{STEM}.csv").absolute(),
        "page": (folder / PAGE).absolute(),
        "seconds": time.monotonic() - start,
    }


def _table(
    loaded: LoadedSentinel, data: Collection, false_alarms: float, unreadable: Unreadable, progress: Progress
) -> ScoreTable:
    numbers: list[int] = []
    predictions = []
    prepare = loaded.description.preparation
    for batch in collection_batches(data, prepare, loaded.batch_size, "scoring images", unreadable, progress):
        numbers += batch.numbers
        predictions.append(loaded.predict(batch.images))
    unreadable.summarise()
    if not predictions:
        raise ImagesError(f"none of the {len(data)} images of {shown(data.source)} can be read; {unreadable.first()}")
    scores, p, predicted = (torch.cat(parts).numpy() for parts in zip(*predictions, strict=True))
    order = np.argsort(-scores, kind="stable")
    table = ScoreTable(
        {
            "path": texts(data.names[number] for number in numbers),
            "index": np.array(numbers, dtype=np.int64),
            "score": scores.astype(np.float64),
            "p_value": p.astype(np.float64),
            "is_strange": p <= false_alarms,
            "predicted_label": texts(loaded.description.class_names)[predicted],
        }
    )
    return table.take(order)


def _notes(loaded: LoadedSentinel, false_alarms: float, unreadable: Unreadable) -> list[str]:
    notes = []
    if loaded.smallest_p > false_alarms:
        notes.append(
            f"nothing can be called strange: {len(loaded.sentinel.calibration)} images of calibration give no p-value"
            f" below {loaded.smallest_p:.2g}. Fit with more, or raise --false-alarms"
        )
    if loaded.description.calibrated_on == KEPT_BACK:
        notes.append(
            f"the sentinel was calibrated on {KEPT_BACK} that it was fitted to; if the model was trained on these, more"
            " images are called strange than should be"
        )
    if unreadable.found:
        notes.append(f"{plural(len(unreadable.found), 'file')} could not be used: see skipped.csv")
    return notes


def _facts(path: Path, loaded: LoadedSentinel, data: Collection) -> dict[str, str]:
    description = loaded.description
    return {
        "images": str(data.source),
        "sentinel": str(path.absolute()),
        "model": description.model,
        "learned from": f"{description.images:,} images that belong",
        "calibration": f"{len(loaded.sentinel.calibration):,} images ({description.calibrated_on})",
        "smallest p-value": f"{loaded.smallest_p:.2g}",
        "images seen as": f"{description.image_size}×{description.image_size} pixels",
        "version": package_version(),
    }
