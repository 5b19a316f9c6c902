"""Labels that somebody has looked at, given back to the audit.

Decisions about held-out images say which class is which where most labels of a class are wrong. They come as the page
exports them (decisions.csv), or as to_check.csv, a list of held-out images in the same columns, filled in by hand.
Decisions about other images are for `sgoif apply` and are left alone here.
"""

from collections.abc import Sequence
from pathlib import Path

from sgoif.audit.decisions import DROPPED, NEEDED, SKIP, DecisionsError, new_labels, read_decisions
from sgoif.core.score_table import write_csv
from sgoif.errors import SgoifError
from sgoif.images import Pixels
from sgoif.images.collection import Collection
from sgoif.images.text import plural, shown
from sgoif.tasks import LabelFindings

TO_CHECK = "to_check.csv"


def read_checked(path: Path, collection: Collection, pixels: Pixels, held_out: Sequence[int]) -> dict[int, int]:
    """The right label of every held-out image that was decided about, by index."""
    decided = [decision for decision in read_decisions(path)[0] if decision.decision not in ("", SKIP)]
    # A file about several splits, or findings, has decisions that say nothing about labels of this one.
    elsewhere = {row.path for row in decided if row.names_others} - set(collection.names)
    decided = [row for row in decided if row.judges_label and row.path not in elsewhere]
    labels = new_labels(decided, collection, path)
    place, held = {name: index for index, name in enumerate(pixels.names)}, set(map(int, held_out))
    classes = {name: index for index, name in enumerate(pixels.class_names)}
    listed = {name: index for index, name in enumerate(collection.names)}
    found: dict[int, int] = {}
    for decision in decided:
        index, label = place.get(decision.path), int(labels[listed[decision.path]])
        if index is not None and index in held and label != DROPPED:
            found[index] = classes[collection.class_names[label]]
    if not decided:
        raise DecisionsError(
            f"no row of {shown(path)} has a decision yet about a label; write keep, relabel or drop there"
        )
    if not found:
        raise DecisionsError(
            f"none of {plural(len(decided), 'decision')} in {shown(path)} is about an image that was held out of"
            f" training; {TO_CHECK} in the run directory lists some of those"
        )
    return found


def _written(path: Path) -> dict[str, tuple[str, str, str]] | None:
    """What somebody has decided in a file, by image; None where there is something that cannot be read."""
    try:
        known = read_decisions(path)[0]
    except SgoifError:
        return {} if not path.exists() or len(path.read_bytes().splitlines()) < 2 else None
    return {row.path: (row.decision, row.given_label, row.new_label) for row in known if row.decision or row.new_label}


def write_to_check(folder: Path, errors: LabelFindings, pixels: Pixels) -> None:
    """to_check.csv: held-out images to look at, `decision` and `new_label` left open.

    What somebody has written into it stays, before the others; a file that cannot be read is left as it is.
    """
    rows = _written(folder / TO_CHECK)
    if rows is None:
        return
    for index in errors.to_check().tolist():
        given = pixels.class_names[int(pixels.labels[index])]
        rows.setdefault(pixels.names[index], ("", given, ""))
    write_csv(folder / TO_CHECK, NEEDED, ((name, *cells) for name, cells in rows.items()))
