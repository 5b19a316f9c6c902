"""The tables that an audit leaves behind, and what it says about the data."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sgoif.core.score_table import Array, ScoreTable, texts, write_csv
from sgoif.images.pixels import Duplicate, Pixels
from sgoif.images.text import plural

COLUMNS = (
    "path",
    "is_label_issue",
    "label_score",
    "given_label",
    "predicted_label",
    "probability_wrong",
    "confidence",
    "influence",
    "interval_low",
    "interval_high",
    "n_observations",
)


def with_names(table: ScoreTable, names: Sequence[str], class_names: Sequence[str]) -> ScoreTable:
    """The table that a person reads: paths and class names for numbers."""
    paths, classes = texts(names), texts(class_names)
    columns: dict[str, Array] = {name: table[name] for name in table.columns}
    columns["path"] = paths[table["index"]]
    for name in ("given_label", "predicted_label"):
        columns[name] = classes[table[name]]
    return ScoreTable({name: columns[name] for name in COLUMNS})


def write_tables(folder: Path, table: ScoreTable, stem: str = "issues") -> list[str]:
    """issues.csv and, where pyarrow is installed, issues.parquet; returns what a person should know."""
    table.to_csv(folder / f"{stem}.csv")
    if find_spec("pyarrow") is None:
        return [f"{stem}.parquet was not written: it needs the package 'pyarrow' (pip install 'sgoif[tables]')"]
    table.to_parquet(folder / f"{stem}.parquet")
    return []


def write_skipped(folder: Path, skipped: Sequence[Any]) -> None:
    """skipped.csv, also when it is empty: a file from an earlier run would mislead."""
    write_csv(folder / "skipped.csv", ("name", "reason"), ((str(item.name), str(item.reason)) for item in skipped))


def skipped_note(skipped: Sequence[Any]) -> list[str]:
    """What a person should know of files that were left out."""
    return [f"{plural(len(skipped), 'file')} could not be used; skipped.csv names them and says why"] if skipped else []


def write_copies(folder: Path, pixels: Pixels) -> None:
    """copies.csv: every image that occurs more than once, copies of one image under one number; those first whose
    labels differ, since one of them must be wrong, then those that are nearly the same and whose labels differ.
    """
    groups = [(group, False) for group in pixels.duplicates] + [(group, True) for group in pixels.near_duplicates]
    groups.sort(key=lambda found: not found[0].conflicting)
    rows = (
        (number, group.conflicting, nearly, pixels.names[i], pixels.class_names[int(pixels.labels[i])])
        for number, (group, nearly) in enumerate(groups, start=1)
        for i in group.indices
    )
    write_csv(folder / "copies.csv", ("copies", "labels_differ", "nearly", "path", "given_label"), rows)


def further(groups: Sequence[Duplicate]) -> int:
    """Images beside the first of each group."""
    return sum(len(group.indices) - 1 for group in groups)
