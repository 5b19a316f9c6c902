"""`sgoif sentinel score`: how strange every image is, as tables and a page, strangest first."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from sgoif.audit.outputs import write_skipped, write_tables
from sgoif.audit.progress import Progress
from sgoif.commands.image_batches import Unreadable, collection_batches, thumbnail_of
from sgoif.commands.sentinel.archive import KEPT_BACK, LoadedSentinel, load_sentinel
from sgoif.commands.sentinel.settings import ScoreSettings
from sgoif.core.provenance import package_version
from sgoif.core.score_table import ScoreTable, texts
from sgoif.images import Collection, ImagesError, open_unlabelled
from sgoif.images.errors import make_writable, written
from sgoif.images.text import plural, shown
from sgoif.reports.ood_report import OodReport, write_ood_report

STEM, PAGE = "scores", "strangest.html"


@dataclass(frozen=True)
class ScoreOutput:
    """What was found, and where it lies."""

    table: ScoreTable
    """path, index, score, p_value, is_strange and predicted_label; strangest first."""
    summary: dict[str, Any]


def score(settings: ScoreSettings, show: Progress) -> ScoreOutput:
    """Score images and write scores.csv, scores.parquet, skipped.csv and strangest.html."""
    start = time.monotonic()
    folder = settings.directory
    data = open_unlabelled(settings.data.path, **settings.data.options)
    for note in data.notes:
        show.say(note)
    loaded = load_sentinel(settings.sentinel, show.say)
    make_writable(folder)
    unreadable = Unreadable(show.say)
    table = _table(settings, loaded, data, unreadable, show)
    notes = _notes(settings, loaded, unreadable)
    with written(folder):
        notes += write_tables(folder, table, STEM)
        write_skipped(folder, unreadable.found)
        for note in notes:
            show.say(note)
        show.stage("writing the page", min(settings.show, len(table)))
        write_ood_report(folder / PAGE, _page(settings, loaded, data, table, notes))
    summary = {
        "images": len(table),
        "strange": int(table["is_strange"].sum()),
        "false_alarms": settings.false_alarms,
        "skipped": len(unreadable.found),
        "calibration": len(loaded.sentinel.calibration),
        "smallest_p_value": loaded.smallest_p,
        "directory": folder.absolute(),
        "scores": (folder / f"{STEM}.csv").absolute(),
        "page": (folder / PAGE).absolute(),
        "seconds": time.monotonic() - start,
    }
    return ScoreOutput(table, summary)


def _table(
    settings: ScoreSettings, loaded: LoadedSentinel, data: Collection, unreadable: Unreadable, show: Progress
) -> ScoreTable:
    numbers: list[int] = []
    predictions = []
    prepare = loaded.description.preparation
    for batch in collection_batches(data, prepare, loaded.batch_size, "scoring images", unreadable, show):
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
            "is_strange": p <= settings.false_alarms,
            "predicted_label": texts(loaded.description.class_names)[predicted],
        }
    )
    return table.take(order)


def _notes(settings: ScoreSettings, loaded: LoadedSentinel, unreadable: Unreadable) -> list[str]:
    notes = []
    if loaded.smallest_p > settings.false_alarms:
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


def _page(
    settings: ScoreSettings, loaded: LoadedSentinel, data: Collection, table: ScoreTable, notes: list[str]
) -> OodReport:
    description = loaded.description
    return OodReport(
        title=data.source.name or str(data.source),
        table=table,
        picture=partial(thumbnail_of, data),
        shown=settings.show,
        false_alarms=settings.false_alarms,
        facts={
            "images": str(data.source),
            "sentinel": str(settings.sentinel.path.absolute()),
            "model": description.model,
            "learned from": f"{description.images:,} images that belong",
            "calibration": f"{len(loaded.sentinel.calibration):,} images ({description.calibrated_on})",
            "smallest p-value": f"{loaded.smallest_p:.2g}",
            "images seen as": f"{description.image_size}×{description.image_size} pixels",
            "version": package_version(),
        },
        notes=notes,
    )
