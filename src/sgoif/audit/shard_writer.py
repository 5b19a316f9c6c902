"""Cleaned copies of WebDataset tar files: the same files with the samples that remain, all members of each.

A new label is written where the old one stood. What moves to another split goes to the end of its last tar file, with
a number added to its key where that is taken. Tar files of which nothing remains are not written.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sgoif.audit.dataset_writers import Cleaning
from sgoif.images.classes import class_text
from sgoif.images.sources.tar_samples import LABELS, MOST_TEXT, Limited, members
from sgoif.images.sources.webdataset import TarMembers

Sample = list[tuple[str, tarfile.TarInfo]]
"""The files of a sample, with the kind of each."""


def write_shards(cleaning: Cleaning, target: Path | None) -> str:
    """A tar file for each that something remains of."""
    store, before = cleaning.collection.store, cleaning.collection.splits
    assert isinstance(store, TarMembers)
    places = [store.origin(number) for number in range(len(store))]
    last = {split: file for split, (file, _) in zip(before or (), places, strict=before is not None)}
    plan: dict[Path, dict[Path, dict[int, int]]] = {}
    for number in cleaning.remaining:
        file, start = places[number]
        moves = before is not None and cleaning.splits is not None and cleaning.splits[number] != before[number]
        goes = last[cleaning.splits[number]] if moves and cleaning.splits is not None else file
        plan.setdefault(goes, {}).setdefault(file, {})[start] = number
    for goes, sources in plan.items():
        if target is not None:
            target.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO() if target is None else open(target / goes.name, "xb")  # noqa: SIM115
        with content, tarfile.open(fileobj=content, mode="w") as shard:
            taken: set[str] = set()
            for file in sorted(sources, key=lambda file: file != goes):
                _copy(cleaning, file, sources[file], taken, None if target is None else shard)
    return "tar files"


def _copy(
    cleaning: Cleaning, file: Path, wanted: dict[int, int], taken: set[str], shard: tarfile.TarFile | None
) -> None:
    """Put the samples with an image at one of the wanted places into a tar file."""
    with open(file, "rb") as source, tarfile.open(fileobj=(limited := Limited(source)), mode="r:") as archive:  # type: ignore[call-overload]
        size = os.fstat(source.fileno()).st_size
        for key, sample in _samples(archive, limited):
            number = next((wanted[m.offset_data] for _, m in sample if m.offset_data in wanted), None)
            if number is None:
                continue
            count, name = 1, key
            while name in taken:
                count, name = count + 1, f"{key}_{count + 1}"
            taken.add(name)
            cleaning.ways["renamed"] += count > 1
            label = _new_label(cleaning, number)
            for kind, member in sample:
                if shard is None or member.offset_data + member.size > size:
                    continue
                content: Any = archive.extractfile(member)
                if label is not None and kind in LABELS and member.size <= MOST_TEXT:
                    text = content.read()
                    content = io.BytesIO(_relabelled(kind, text, *label))
                    member.size = len(content.getvalue())
                if count > 1:
                    folder, slash, base = member.name.rpartition("/")
                    stem, dot, rest = base.partition(".")
                    member.name = f"{folder}{slash}{stem}_{count}{dot}{rest}"
                member.pax_headers = {}  # they would hold against the new name and size
                shard.addfile(member, content)


def _samples(archive: tarfile.TarFile, limited: Limited) -> Iterator[tuple[str, Sample]]:
    """Every sample that can be read, as a reader finds them."""
    key, sample = "", Sample()
    with suppress(Exception):  # damage, of which `skipped` tells
        for of, kind, member in members(archive, limited):
            if of != key and sample:
                yield key, sample
                sample = []
            key = of
            sample.append((kind, member))
    if sample:
        yield key, sample


def _new_label(cleaning: Cleaning, number: int) -> tuple[str, str] | None:
    """The old and the new name of the class, where it changes."""
    names, old, new = cleaning.collection.class_names, cleaning.collection.labels[number], cleaning.labels[number]
    return None if old == new else (names[int(old)], names[int(new)])


def _relabelled(kind: str, text: bytes, old: str, new: str) -> bytes:
    """What a member says of the label, with the new one; a number stays a number."""
    if kind == "cls":
        return new.encode("utf-8", "surrogatepass")
    with suppress(ValueError, RecursionError, AttributeError):
        value = json.loads(text)
        if class_text(value.get("label")) == old:
            number = not isinstance(value["label"], str) and new.removeprefix("-").isdecimal()
            return json.dumps({**value, "label": int(new) if number else new}).encode()
    return text
