"""What a run knew, in one small file: half precision, the largest classes and groups alone.

Numbers are kept as two planes of bytes, since sign and exponent repeat and the digits do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.core.serialization import atomic_write
from sgoif.errors import SettingError
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif_bench.errors import COLUMNS, SIGNALS, TRUTH, read_archive

CLASSES, GROUPS = 10, 3
"""Columns of probabilities and of influence by group that are kept, the largest ones."""
DIGITS = 6
"""Binary digits after the first that are kept of a number: a precision of 0.8%."""
FINE, COARSE = 9, 5
"""The same for margins of probabilities and for a few probabilities of many, and for whole rows of probabilities, of
which the largest is what the others leave of one, and for influence by group."""
DIGITS_OF = {"margin": FINE, "signal_prob_margin": FINE}
SIGN, LARGEST = np.uint16(0x8000), np.finfo(np.float16).max.view(np.uint16)
PARTS = ("training", "anchors")
OWN = ("halves", "final_loss", *(f"signal_{name}" for name in SIGNALS))
"""Of every training example beside its evidence: influence in even and in odd epochs, the loss of the finished model,
and the mean signals."""


def save(path: Path, known: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Keep what a run knew; `about` says which run it was, in terms of JSON."""
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
    arrays |= {name: planes(known[name], DIGITS_OF.get(name, DIGITS)) for name in OWN}
    arrays |= {name: smallest(known[name]) for name in TRUTH}
    for part in PARTS:
        evidence: Evidence = known[part]
        arrays |= {f"{part}.step": smallest(np.diff(evidence.index, prepend=0))}
        arrays |= {f"{part}.given": smallest(evidence.given)}
        for column in COLUMNS:
            arrays[f"{part}.{column}"] = planes(getattr(evidence, column), DIGITS_OF.get(column, DIGITS))
        for name, most in (("classes", CLASSES), ("groups", GROUPS)):
            rows = largest(getattr(evidence, name), most)
            fine = name == "classes" and rows.slots is not None
            arrays[f"{part}.{name}"] = planes(rows.mean, FINE if fine else COARSE)
            if rows.slots is not None:
                arrays[f"{part}.{name}.slots"] = smallest(rows.slots + 1)
    atomic_write(path, lambda handle: np.savez_compressed(handle, **arrays))


def load(path: Path) -> dict[str, Any]:
    """What `save` kept: `Evidence` of the training and the held-out examples, the truth, the rest as arrays.

    `rows`, the examples that were trained on, are those of the training evidence; `about` says which run it was. Labels
    made wrong on purpose, as earlier releases did (`decoys`), are left out.
    """
    archive = read_archive(path)

    def rows(name: str) -> Rows:
        slots = archive.get(f"{name}.slots")
        return Rows(numbers(archive[name]), None if slots is None else slots.astype(np.int64) - 1)

    try:
        known: dict[str, Any] = {name: archive[name].astype(np.int64) for name in TRUTH}
        known |= {name: numbers(archive[name]).astype(np.float64) for name in OWN}
        known["about"] = json.loads(str(archive["about"]))
        for part in PARTS:
            known[part] = Evidence(
                index=np.cumsum(archive[f"{part}.step"], dtype=np.int64),
                given=archive[f"{part}.given"].astype(np.int64),
                **{column: numbers(archive[f"{part}.{column}"]).astype(np.float64) for column in COLUMNS},
                groups=rows(f"{part}.groups"),
                classes=whole(rows(f"{part}.classes")),
            )
    except KeyError as error:
        raise SettingError(
            f"{path} was not kept by `python -m sgoif_bench.judgement.collect`: it has no array {error.args[0]!r}"
        ) from error
    training = known["training"]
    kept = training.without(archive.get("decoys"))
    place = np.searchsorted(training.index, kept.index)
    return {**known, **{name: known[name][place] for name in OWN}, "training": kept, "rows": kept.index}


def published(path: Path, case: str | None = None) -> dict[str, dict[str, NDArray[Any]]]:
    """Out-of-fold probabilities that others published, of one case or all: `probabilities` [n, C], `given`, `wrong`."""
    archive = read_archive(path)
    cases: dict[str, dict[str, NDArray[Any]]] = {}
    names = sorted({key.partition("|")[0] for key in archive}) if case is None else [case]
    for name in names:
        try:
            negative, given, wrong = (archive[f"{name}|{part}"] for part in ("logp", "given", "wrong"))
        except KeyError as error:
            raise SettingError(f"{path} has no array {error.args[0]!r} beside the others of {name!r}") from error
        p = np.exp(-negative / 16.0)
        cases[name] = {"probabilities": p / p.sum(1, keepdims=True), "given": given.astype(np.int64), "wrong": wrong}
    return cases


def largest(rows: Rows, most: int) -> Rows:
    """The same with at most so many columns of each row, the largest."""
    if rows.mean.shape[1] <= most:
        return rows
    place = np.argpartition(-rows.mean.astype(np.float32), most - 1, axis=1)[:, :most]
    slots = place if rows.slots is None else np.take_along_axis(rows.slots, place, 1)
    return Rows(np.take_along_axis(rows.mean, place, 1), slots)


def whole(rows: Rows) -> Rows:
    """The same with the largest of all columns being what the others leave of one; a few of many stay as they are."""
    if rows.slots is not None:
        return rows
    mean = rows.mean.astype(np.float64)
    np.put_along_axis(mean, mean.argmax(1)[:, None], 0.0, 1)
    np.put_along_axis(mean, rows.mean.argmax(1)[:, None], 1 - mean.sum(1, keepdims=True), 1)
    return Rows(mean)


def planes(values: NDArray[Any], digits: int) -> NDArray[np.uint8]:
    """Numbers in half precision, rounded to some digits: their upper bytes, then their lower ones, [2, ...]."""
    half = np.asarray(values).astype(np.float16)
    unit = 1 << (np.finfo(np.float16).nmant - digits)
    bits = half.view(np.uint16)
    size = np.minimum(((bits & ~SIGN) + unit // 2) // unit * unit, LARGEST)
    bits = np.where(np.isfinite(half), size | bits & SIGN, bits)
    return np.stack([bits >> 8, bits & 0xFF]).astype(np.uint8)


def numbers(pair: NDArray[np.uint8]) -> NDArray[np.float16]:
    """The numbers of such planes."""
    upper, lower = pair.astype(np.uint16)
    found: NDArray[np.float16] = (upper << 8 | lower).view(np.float16)
    return found


def smallest(labels: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers from 0 up in as few bytes as they need."""
    return labels.astype(np.min_scalar_type(int(labels.max(initial=0))))
