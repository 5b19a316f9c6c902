"""`sgoif diff`: what changed between two versions of a set of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import AsJson, FollowLinks, reading, with_options
from sgoif.cli.terminal import SHOWN, add_row, message, new_table, print_json, print_sentence, results, with_progress

if TYPE_CHECKING:
    from sgoif.commands.diff.changes import ImageChanges
    from sgoif.commands.diff.diff import Difference


@with_options(reading)
def diff_command(
    old: Annotated[
        Path, typer.Argument(help="The older version: run directory of an audit, or any layout that it reads.")
    ],
    new: Annotated[Path, typer.Argument(help="The newer version, likewise.")],
    follow_links: FollowLinks = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Tell what changed between two versions of a set of images: images, classes, and findings of two audits.

    An image is recognised by its content: by its pixels as an audit saw them, or by the bytes of its file where neither
    version is a run, which is fast. So one that was renamed, moved to another class or changed is told from one that is
    new. The exit status is 0 whatever changed.
    """
    from sgoif.commands.diff.diff import diff

    options = {"follow_links": follow_links, **given}
    found = with_progress(lambda show: diff(old, new, options, show))
    if as_json:
        print_json(found.record())
    else:
        _tell(found)


def _tell(found: Difference) -> None:
    """Tables for a person."""
    from sgoif.images.text import shown

    images = found.images
    print_sentence(f"Images were compared by their {found.compared_by}.")
    counts = new_table("", ("",), ("images",))
    for name in ("same", "added", "removed", "moved", "relabelled", "changed"):
        value = getattr(images, name)
        add_row(counts, (name,), (f"{value if isinstance(value, int) else len(value):,}",))
    results().print(counts)
    _tell_images(images)
    if uneven := [row for row in found.classes if row["before"] != row["after"]]:
        sizes = new_table("classes whose size changed", ("class", ""), ("before", "after", "change"))
        for row in uneven[: 2 * SHOWN]:
            what = "" if row["before"] and row["after"] else "removed" if row["before"] else "added"
            figures = row["before"], row["after"]
            add_row(sizes, (row["class"], what), (*map("{:,}".format, figures), f"{figures[1] - figures[0]:+,}"))
        results().print(sizes)
        _rest(len(uneven), 2 * SHOWN)
    if found.findings is not None:
        changes = found.findings
        print_sentence(
            f"findings: {len(changes.new):,} new, {len(changes.gone):,} gone, {len(changes.still):,} still there"
        )
        rows = [("new", one) for one in changes.new] + [("gone", one) for one in changes.gone]
        for what, one in rows[:SHOWN]:
            about = next(iter(one.images or one.classes), "all images")
            kind, sentence = shown(one.kind)[1:-1], shown(one.message, 400)[1:-1]
            print_sentence(f"  {what:<5}{one.severity:<9}{kind}: {shown(about)}: {sentence}")
        _rest(len(rows), SHOWN)
    for note in found.notes:
        message(note)


def _tell_images(images: ImageChanges) -> None:
    """The first few images of each kind of change."""
    rows: list[tuple[str, ...]] = [(name, "added", "", "") for name in images.added]
    rows += [(name, "removed", "", "") for name in images.removed]
    for what in ("relabelled", "changed", "moved"):
        for one in getattr(images, what):
            classes = f"{one.old_class or '–'} → {one.new_class or '–'}" if one.old_class != one.new_class else ""
            rows.append((one.old, what, one.new if one.new != one.old else "", classes))
    if rows:
        kinds: dict[str, int] = {}
        listing = new_table("the first of each", ("image", "", "now", "class"))
        for row in rows:
            kinds[row[1]] = kinds.get(row[1], 0) + 1
            if kinds[row[1]] <= SHOWN:
                add_row(listing, row)
        results().print(listing)
        _rest(len(rows), sum(min(count, SHOWN) for count in kinds.values()))


def _rest(count: int, told: int) -> None:
    if count > told:
        message(f"… and {count - told:,} more; --json lists all")
