"""Decisions that a person took about images: read from a CSV file and checked against the data, all rows or none."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from sgoif.core.score_table import from_cell
from sgoif.core.types import Array
from sgoif.errors import SgoifError
from sgoif.images.collection import Collection
from sgoif.images.sources.csv_table import read_csv
from sgoif.images.text import few, plural, shown

KEEP, RELABEL, DROP, SKIP, MOVE = "keep", "relabel", "drop", "skip", "move"
"""SKIP: somebody looked and cannot tell; the label stays, and counts as undecided."""
NEEDED = ("path", "decision", "given_label", "new_label")
COLUMNS = (*NEEDED, "source")
SPLIT, FINDING = "new_split", "finding"
"""Columns that only a page of several splits, or of findings, exports."""
DROPPED = -2
"""In the place of a label; -1 is an image that has none."""
LISTED = 5


class DecisionsError(SgoifError, ValueError):
    """The decisions contradict themselves or the data, or cannot be carried out where they should."""


@dataclass(frozen=True)
class Decision:
    """One row of decisions.csv; labels are class names, empty where none is given."""

    row: int
    path: str
    decision: str
    given_label: str
    new_label: str
    new_split: str | None = None
    """Where a moved image goes; None: the file has no such column, and is about one split."""
    finding: str = ""
    """The kind of finding that it was taken about; empty: the label was looked at."""

    @property
    def names_others(self) -> bool:
        """Whether it comes from a page of several splits, or of findings, which may name images of other splits."""
        return self.new_split is not None or bool(self.finding)

    @property
    def judges_label(self) -> bool:
        """Whether it says that the label is right or wrong: a copy may be dropped whatever its label."""
        return self.decision == RELABEL or (self.decision != MOVE and not self.finding)


def read_decisions(path: Path) -> tuple[list[Decision], list[str]]:
    """The rows of a decisions file, and the different sources they name."""
    table = read_csv(path, COLUMNS)
    missing = [name for name in NEEDED if name not in table.header]
    if missing:
        raise DecisionsError(
            f"{shown(path)} lacks the columns {few(missing)}; it has {few(table.header, 20)}. Expected is the file that"
            f" the report page exports, with {', '.join(COLUMNS)}"
        )
    short = [row for row, cells in enumerate(table.rows, start=2) if len(cells) != len(table.header)]
    if short:
        raise DecisionsError(
            f"row {short[0]} of {shown(path)} does not have {len(table.header)} cells; export the file again"
        )
    position = {name: table.column(name) for name in (*COLUMNS, SPLIT, FINDING) if name in table.header}
    decisions: list[Decision] = []
    sources: dict[str, None] = {}
    for row, cells in enumerate(table.rows, start=2):
        cell = {name: from_cell(cells[column]) for name, column in position.items()}
        kind = cell["decision"].strip().lower()
        decisions.append(
            Decision(
                row,
                cell["path"],
                kind,
                cell["given_label"],
                cell["new_label"],
                cell.get(SPLIT),
                cell.get(FINDING, ""),
            )
        )
        if cell.get("source"):
            sources[cell["source"]] = None
    if not decisions:
        raise DecisionsError(f"{shown(path)} holds no decisions; take some on the report page and export them again")
    return decisions, list(sources)


def common_first_part(decisions: Sequence[Decision]) -> str | None:
    """What all paths start with, up to the first slash: the split, where the data have splits."""
    firsts = {decision.path.partition("/")[0] for decision in decisions}
    return firsts.pop() if len(firsts) == 1 else None


def new_labels(decisions: Sequence[Decision], collection: Collection, path: str | os.PathLike[str]) -> Array:
    """The label of every image after the decisions, -1 where it is dropped; one error for all rows that do not fit."""
    number = {name: index for index, name in enumerate(collection.names)}
    classes = {name: index for index, name in enumerate(collection.class_names)}
    first: dict[str, Decision] = {}
    problems: list[str] = []
    labels: Array = collection.labels.copy()
    for decision in decisions:
        problem = _problem(decision, first.get(decision.path), number, classes, collection)
        first.setdefault(decision.path, decision)
        if problem is not None:
            problems.append(f"row {decision.row}: {problem}")
        elif decision.decision == DROP:
            labels[number[decision.path]] = DROPPED
        elif decision.decision == RELABEL:
            labels[number[decision.path]] = classes[decision.new_label]
    if problems:
        rest = len(problems) - LISTED
        listed = [*problems[:LISTED], *([f"and {rest} more"] if rest > 0 else [])]
        raise DecisionsError(
            f"{plural(len(problems), 'row')} of {shown(path)} cannot be applied to {shown(collection.source)}; nothing"
            " was written:\n" + "\n".join(f"  {line}" for line in listed)
        )
    if (labels == DROPPED).all():
        raise DecisionsError(
            f"{shown(path)} drops all {len(labels):,} images; nothing would be left and nothing was written"
        )
    return labels


def new_splits(decisions: Sequence[Decision], collection: Collection) -> list[str] | None:
    """The split of every image after decisions that `new_labels` took; None where the data have no splits."""
    if collection.splits is None:
        return None
    moved = {decision.path: decision.new_split or "" for decision in decisions if decision.decision == MOVE}
    return [moved.get(name, split) for name, split in zip(collection.names, collection.splits, strict=True)]


def _problem(
    decision: Decision, before: Decision | None, number: dict[str, int], classes: dict[str, int], data: Collection
) -> str | None:
    """Why a row cannot be applied."""
    path, kind, new = decision.path, decision.decision, decision.new_label
    if kind not in (KEEP, RELABEL, DROP, SKIP, MOVE):
        return f"the decision {shown(kind)} is none of keep, relabel, drop, skip, move"
    if path not in number:
        return f"{shown(path)} is not in the data"
    if before is not None:
        same = (before.decision, before.new_label, before.new_split) == (kind, new, decision.new_split)
        return f"{shown(path)} {'was decided before' if same else 'contradicts what was decided'} in row {before.row}"
    label = int(data.labels[number[path]])
    given = data.class_names[label] if label >= 0 else ""
    if decision.given_label and decision.given_label != given:
        return f"{shown(path)} should have the label {shown(decision.given_label)} but has {shown(given)}"
    if label < 0 and kind in (RELABEL, MOVE):
        return f"{shown(path)} has no label (it lies in no class folder): it can be kept or dropped"
    if kind == MOVE:
        return _wrong_move(decision, data)
    if decision.new_split:
        return f"{shown(path)} has the new split {shown(decision.new_split)}, yet the decision is not move"
    if kind == RELABEL and not new:
        return f"{shown(path)} is to be relabelled but new_label is empty"
    if kind == RELABEL and new not in classes:
        near = get_close_matches(new, classes, n=1)
        hint = f"; did you mean {shown(near[0])}?" if near else f"; classes are {few(classes)}"
        return f"the new label {shown(new)} of {shown(path)} is not a class of the data{hint}"
    if kind in (KEEP, SKIP) and new not in ("", given):
        return f"{shown(path)} is to be kept, yet has the new label {shown(new)}: choose keep or relabel"
    return None


def _wrong_move(decision: Decision, data: Collection) -> str | None:
    """Why an image cannot go to another split."""
    if data.splits is None:
        return f"{shown(decision.path)} is to be moved, but no splits were read; --split reads only one"
    splits = sorted({split for split, label in zip(data.splits, data.labels.tolist(), strict=True) if label >= 0})
    if decision.new_split not in splits:
        wanted = shown(decision.new_split or "")
        return f"{shown(decision.path)} cannot move to the split {wanted}; there are {few(splits)}"
    return None
