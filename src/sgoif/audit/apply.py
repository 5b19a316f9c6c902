"""From decisions.csv to a cleaned copy of the data. The original is read, never written.

The copy is made in a folder beside its target and renamed when it is whole, so there is never half a copy.
"""

import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from sgoif.audit.box_writers import write_coco, write_yolo
from sgoif.audit.dataset_writers import ARCHIVE, Cleaning, write_arrays, write_folder, write_manifest
from sgoif.audit.decisions import (
    DROPPED,
    SKIP,
    Decision,
    DecisionsError,
    common_first_part,
    new_labels,
    new_splits,
    read_decisions,
)
from sgoif.audit.progress import Progress
from sgoif.audit.shard_writer import write_shards
from sgoif.core.locks import lock
from sgoif.core.serialization import replace
from sgoif.images.collection import Collection
from sgoif.images.errors import cannot_write
from sgoif.images.open import open_images
from sgoif.images.sources.base import Request
from sgoif.images.text import few, plural, shown

__all__ = ["Applied", "DecisionsError", "apply_decisions"]

LOCK, FILES = "lock", "files"
WRITERS: dict[str, Callable[[Cleaning, Path | None], str]] = {
    "folder": write_folder,
    "manifest": write_manifest,
    "npz": write_arrays,
    "idx": write_arrays,
    "cifar": write_arrays,
    "huggingface": write_arrays,
    "webdataset": write_shards,
    "coco": write_coco,
    "yolo": write_yolo,
}
WHOLE = frozenset(("webdataset", "coco", "yolo"))
"""Layouts of which the copy always has all splits."""


@dataclass(frozen=True)
class Applied:
    """What was done, or with `dry_run` what would be done."""

    to: Path
    source: Path
    layout: str
    written: str
    """What the copy consists of, in words."""
    kept: int
    """Images that keep their label, with a decision or without one."""
    undecided: int
    """Those of them without a decision."""
    dropped: int
    moved: int = 0
    """Images that go to another split."""
    relabelled: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of images by (given label, new label)."""
    ways: dict[str, int] = field(default_factory=dict)
    """Files by how they came into the copy: copied, linked, symlinked; and how many had to be renamed."""
    left_out: list[str] = field(default_factory=list)
    """All images that could not be read or found, with the reason; they are not in the copy."""
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False

    def summary(self) -> str:
        """What was done, for a terminal."""
        relabelled = sum(self.relabelled.values())
        lines = [
            f"{'would write' if self.dry_run else 'wrote'} {shown(self.to)}: {self.written}, from {shown(self.source)}",
            f"  kept        {self.kept:,} ({self.undecided:,} of them without a decision)",
            f"  relabelled  {relabelled:,}",
        ]
        pairs = sorted(self.relabelled.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"    {count:,}  {shown(given)} → {shown(new)}" for (given, new), count in pairs]
        lines += [f"  moved       {self.moved:,}, to another split"] if self.moved else []
        lines.append(f"  dropped     {self.dropped:,}")
        if self.left_out:
            lines.append(f"  left out    {len(self.left_out):,}, which could not be read or found:")
            lines += [f"    {entry}" for entry in self.left_out[:5]]
            more = f"    and {len(self.left_out) - 5:,} more; --json names them all, as does skipped.csv of an audit"
            lines += [more] if len(self.left_out) > 5 else []
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def apply_decisions(
    decisions: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    links: bool = False,
    dry_run: bool = False,
    layout: str = "auto",
    split: str | None = None,
    root: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    follow_links: bool = False,
    progress: Progress | None = None,
) -> Applied:
    """Write a cleaned copy of the audited data to the new folder `to`.

    `source` is where the data lie now, if not where they were audited. Files are copied; with `links` they are linked,
    and an edit of one changes the original. What cannot be decoded is left out and named in `left_out`. `dry_run`
    checks and counts everything and writes nothing. The other options are those of `open_images` and need repeating
    where the audit was given them.
    """
    rows, stated = read_decisions(Path(decisions))
    origin = _origin(stated, source, decisions)
    target = _checked_target(to, origin)
    options: dict[str, Any] = {"layout": layout, "root": root, "image_column": image_column}
    collection = _open(origin, rows, split, {**options, "label_column": label_column, "follow_links": follow_links})
    labels = new_labels(rows, collection, decisions)
    start = None if root is None else Path(os.path.abspath(root))
    request = Request(collection.source, split=split, root=start)
    cleaning = Cleaning(collection, request, labels, links, new_splits(rows, collection))
    show = progress or Progress()
    write = WRITERS[collection.layout]
    try:
        if dry_run:
            _look(cleaning, show)
            written = write(cleaning, None)
        else:
            with _new_folder(target) as folder:
                _look(cleaning, show)
                show.stage("writing the copy", 0)
                written = write(cleaning, folder)
    except FileNotFoundError as error:
        raise DecisionsError(f"{shown(error.filename)} vanished while it was copied; nothing was written") from error
    except OSError as error:
        raise cannot_write(target.parent, error) from error
    return _applied(cleaning, target, written, rows, dry_run)


def _look(cleaning: Cleaning, show: Progress) -> None:
    """Find out which images cannot be read; some must be left."""
    show.stage("reading images", len(cleaning.remaining))
    cleaning.look(show.advance)
    if not cleaning.remaining:
        number, why = next(iter(cleaning.unreadable.items()))
        raise DecisionsError(
            "none of the images to copy can be read; nothing was written. The first is"
            f" {shown(cleaning.collection.names[number])}: {why}"
        )


def _origin(stated: list[str], source: str | os.PathLike[str] | None, decisions: str | os.PathLike[str]) -> Path:
    if source is not None:
        return Path(os.path.abspath(source))
    if len(stated) != 1:
        found = f"names several: {few(stated)}" if stated else "names none"
        raise DecisionsError(
            f"{shown(os.fspath(decisions))} must name one source of the data, but {found}. Give the data with --source"
        )
    origin = Path(stated[0])
    if not origin.exists():
        raise DecisionsError(f"the data are no longer at {shown(origin)}; say where they are with --source")
    return origin


def _checked_target(to: str | os.PathLike[str], origin: Path) -> Path:
    """The real path of the new folder; it must not be, hold or lie in the original."""
    if os.path.lexists(to) and not os.path.isdir(to):
        raise DecisionsError(f"{shown(os.fspath(to))} is not a folder; choose a new one for the cleaned copy")
    target, real = Path(os.path.realpath(to)), Path(os.path.realpath(origin))
    if target == real or (real.is_dir() and target.is_relative_to(real)):
        raise DecisionsError(
            f"{shown(target)} lies in the original data {shown(real)}, which is never changed; choose one outside"
        )
    try:
        occupied = target.is_dir() and any(target.iterdir())
    except OSError as error:
        raise cannot_write(target, error) from error
    if occupied:
        raise DecisionsError(f"{shown(target)} is not empty; choose a new folder for the cleaned copy")
    return target


def _open(origin: Path, rows: list[Decision], split: str | None, options: dict[str, Any]) -> Collection:
    """The whole of the data; the split is read off the paths where it is not the usual one.

    Decisions that know of splits are about all of them, as are those about boxes and tar files: of these `split` only
    says which was judged.
    """
    collection = open_images(origin, split=split, **options)
    if collection.layout in WHOLE:
        return open_images(origin, split=split, every_split=True, **options)
    if split is None and collection.layout == "folder" and any(row.new_split is not None for row in rows):
        return open_images(origin, every_split=True, **options)
    first = common_first_part(rows)
    if split is None and collection.split not in (None, first) and first is not None:
        names = set(collection.names)
        if not any(row.path in names for row in rows):
            return open_images(origin, split=first, **options)
    return collection


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder that takes its place when all went well and disappears when not.

    It grows inside another one, with a file that is locked as long as this process lives: what a killed one left behind
    has no such lock, and goes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    stem = f".{target.name[:40]}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]}"
    for left in target.parent.glob(f"{escape(stem)}-*.part"):
        if os.name == "posix" and not left.is_symlink():  # elsewhere there are no locks to tell by
            _remove_unless_alive(left)
    part = target.parent / f"{stem}-{secrets.token_hex(4)}.part"
    (part / FILES).mkdir(parents=True)
    handle = os.open(part / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(handle)
        yield part / FILES
        if target.is_dir():
            target.rmdir()
        replace(part / FILES, target)
    finally:
        os.close(handle)
        shutil.rmtree(part, ignore_errors=True)


def _remove_unless_alive(part: Path) -> None:
    """Remove what another run left behind, if its lock shows that it has ended."""
    with suppress(OSError):  # alive, or none of ours, or not ours to remove
        handle = os.open(part / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if lock(handle) is None:
                shutil.rmtree(part, ignore_errors=True)
        finally:
            os.close(handle)


def _applied(cleaning: Cleaning, target: Path, written: str, rows: list[Decision], dry_run: bool) -> Applied:
    collection, before, after = cleaning.collection, cleaning.collection.labels, cleaning.labels
    names = collection.class_names
    dropped = after == DROPPED
    copied = ~dropped
    copied[list(cleaning.unreadable)] = False
    moved = (after != before) & copied
    kept = {name for name, stays in zip(collection.names, ((after == before) & copied).tolist(), strict=True) if stays}
    pairs = Counter((names[a], names[b]) for a, b in zip(before[moved].tolist(), after[moved].tolist(), strict=True))
    out = [entry for entry in collection.skipped if entry.name.rpartition("#")[0] not in cleaning.carried]
    skipped = [f"{shown(entry.name)}: {entry.reason}" for entry in out]
    if carried := len(collection.skipped) - len(out):
        cleaning.notes.append(f"{plural(carried, 'box', 'boxes')} not judged, copied as before")
    splits = (collection.splits or [], cleaning.splits or [])
    elsewhere = [old != new for old, new in zip(*splits, strict=True)] or [False] * len(copied)
    numbered = written != ARCHIVE or names == [str(number) for number in range(len(names))]
    renumbered = [] if numbered else [f"labels y in {ARCHIVE} are places in its class_names, whatever they were before"]
    ways = {way: count for way, count in cleaning.ways.items() if count}
    return Applied(
        to=target,
        source=collection.source,
        layout=collection.layout,
        written=written,
        kept=len(kept),
        undecided=len(kept - {row.path for row in rows if row.decision != SKIP}),
        dropped=int(dropped.sum()),
        moved=int((copied & elsewhere).sum()),
        relabelled=dict(pairs),
        ways=ways,
        left_out=skipped + [f"{shown(collection.names[n])}: {why}" for n, why in cleaning.unreadable.items()],
        notes=[
            *collection.notes,
            *cleaning.notes,
            *renumbered,
            *_notes(ways, sorted(set(range(len(names))) - set(after[copied].tolist())), names),
        ],
        dry_run=dry_run,
    )


def _notes(ways: dict[str, int], empty: list[int], names: list[str]) -> list[str]:
    notes = []
    if ways.get("renamed"):
        notes.append(f"{plural(ways['renamed'], 'file')} got a number added to the name, which was taken")
    linked = ways.get("linked", 0) + ways.get("symlinked", 0)
    if linked:
        notes.append(
            f"{plural(linked, 'file')} of the copy share their contents with the original: an edit of one changes the"
            " original as well; without --links they do not"
        )
    if ways.get("symlinked"):
        notes.append("links lead out of the copy: an audit of a folder needs --follow-links, a table no --links")
    if empty:
        notes.append(f"no images are left in {few(names[number] for number in empty)}")
    return notes
