"""`sgoif trace`: find the training images behind a behaviour; write tables, a page, and decisions to apply."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.audit.decisions import COLUMNS, DROP
from sgoif.audit.outputs import write_tables
from sgoif.audit.progress import Progress
from sgoif.commands.trace.model_source import ModelSource, open_source
from sgoif.commands.trace.settings import TraceSettings
from sgoif.commands.trace.victims import Victims, open_victims, wrong_label
from sgoif.core.provenance import package_version
from sgoif.core.score_table import ScoreTable, texts, write_csv
from sgoif.images.errors import make_writable, written
from sgoif.images.text import plural
from sgoif.reports.trace_report import TraceReport, write_trace_report
from sgoif.tasks.poisoning import PoisonTrace, TraceResult

STEM, PAGE, DECISIONS = "culprits", "culprits.html", "decisions.csv"


def trace(settings: TraceSettings, show: Progress) -> tuple[ScoreTable, dict[str, Any]]:
    """Trace and write culprits.csv, culprits.parquet, culprits.html and decisions.csv.

    Returns the table, worst first, with path, score, probability, family, given_label and selected; and a summary.
    """
    start = time.monotonic()
    folder = settings.directory
    source = open_source(settings, show)
    label = wrong_label(settings.label, source.class_names)
    victims = None
    if settings.victims is not None:
        victims = open_victims(settings.victims, source.preparation, settings.batch_size, show)
    make_writable(folder)
    engine = PoisonTrace.fit(
        source.model, source.batches(show), batch_size=settings.batch_size, names=source.class_names
    )
    show.stage("comparing", 0)
    found = engine.suspects() if victims is None else engine.culprits(victims.images, label)
    if victims is not None:
        show.stage("asking how many to remove", 0)
    found.to_restore  # noqa: B018  (worked out here, while progress says so)
    notes = [*source.notes, *_notes(found, victims, source.class_names)]
    table = _table(found, source)
    with written(folder):
        notes += write_tables(folder, table, STEM)
        _write_decisions(folder / DECISIONS, table, source.source)
        for note in notes:
            show.say(note)
        show.stage("writing the page", 0)
        write_trace_report(folder / PAGE, _page(settings, source, victims, found, notes))
    return table, _summary(folder, source, victims, found, notes, time.monotonic() - start)


def _table(found: TraceResult, source: ModelSource) -> ScoreTable:
    order = np.lexsort((-found.score, -found.probability))
    plain = found.table().take(order)
    return ScoreTable(
        {
            "path": texts(source.names[int(number)] for number in plain["index"]),
            "score": plain["poison_score"],
            "probability": plain["probability"],
            "family": plain["family"],
            "given_label": texts(source.class_names)[plain["given_label"]],
            "selected": plain["selected"],
        }
    )


def _write_decisions(path: Path, table: ScoreTable, source: Path) -> None:
    """What `sgoif apply` takes: every selected image is dropped. Without any, the file holds its header alone."""
    chosen = table.take(np.flatnonzero(table["selected"]))
    pairs = zip(chosen["path"], chosen["given_label"], strict=True)
    write_csv(path, COLUMNS, ((name, DROP, label, "", str(source)) for name, label in pairs))


def _notes(found: TraceResult, victims: Victims | None, names: Sequence[str]) -> list[str]:
    notes = [*found.notes, *(victims.collection.notes if victims is not None else ())]
    if victims is not None and victims.skipped:
        notes.append(f"{plural(victims.skipped, 'victim')} could not be read")
    if victims is not None and found.to_restore is None:
        notes.append(
            "how many to remove cannot be told: no linear layer on the network's features gives the victims another"
            " answer without the images of highest score"
        )
    if not len(found.selected) and not found.evidence:
        notes.append("nothing stands apart from its class")
    elif not len(found.selected):
        strongest = found.evidence[0]
        notes.append(
            "nothing stands apart from its class far enough to be called a cause; the strongest group is"
            f" {plural(strongest.members, 'image')} labelled {names[strongest.label]},"
            f" {strongest.mixture.separation:.1f} spreads away with a contrast of {strongest.mixture.contrast:.1f}"
        )
    return notes


def _page(
    settings: TraceSettings, source: ModelSource, victims: Victims | None, found: TraceResult, notes: Sequence[str]
) -> TraceReport:
    facts = {
        **source.described,
        "victims": "none were given" if settings.victims is None else str(settings.victims.absolute()),
        "training images compared": f"{len(found):,}",
        "version": package_version(),
    }
    return TraceReport(
        title=source.source.name or str(source.source),
        found=found,
        class_names=source.class_names,
        name=source.names.__getitem__,
        picture=source.picture,
        facts=facts,
        notes=notes,
        victims=None if victims is None else len(victims.names),
        victim=None if victims is None else lambda number: (victims.names[number], victims.picture(number)),
        shown=settings.show,
    )


def _summary(
    folder: Path, source: ModelSource, victims: Victims | None, found: TraceResult, notes: Sequence[str], seconds: float
) -> dict[str, Any]:
    names, restore = source.class_names, found.to_restore
    return {
        "examples": len(found),
        "victims": None if victims is None else len(victims.names),
        "selected": len(found.selected),
        "families": [
            {
                "label": names[family.label],
                "size": family.size,
                "cohesion": family.cohesion,
                "description": family.described(names),
                "representatives": [source.names[int(index)] for index in family.representatives],
            }
            for family in found.families
        ],
        "to_restore": None
        if restore is None
        else {**asdict(restore), "curve": [list(point) for point in restore.curve]},
        "evidence": [
            {
                "label": names[item.label],
                "separation": item.mixture.separation,
                "contrast": item.mixture.contrast,
                "share": item.mixture.share,
                "members": item.members,
                "passed": item.passed,
            }
            for item in found.evidence
        ],
        "notes": list(notes),
        "directory": folder.absolute(),
        "culprits": (folder / f"{STEM}.csv").absolute(),
        "decisions": (folder / DECISIONS).absolute(),
        "page": (folder / PAGE).absolute(),
        "seconds": seconds,
    }
