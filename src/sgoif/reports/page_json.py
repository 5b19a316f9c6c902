"""The numbers and texts of the page as one JSON object: columns as base64 of typed arrays, the rest plain.

Rows are sorted by falling probability, so the page's default order needs no work in the browser. All text is ASCII with
`<`, `>` and `&` written as escapes: nothing in it can end the script element that holds it, and a file name that is not
valid Unicode (a lone surrogate) survives.
"""

import base64
import dataclasses
import hashlib
import json
import math
import re
from typing import Any

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Indices
from sgoif.reports.page_data import PageData, Pairs
from sgoif.reports.page_findings import findings_payload

FULL_MATRIX = 16
"""Up to so many classes the matrix is shown whole; above it shows the classes with most wrong labels."""
SHORT_MATRIX = 12
PAIRS = 60
CURVE_POINTS = 400
CURVES = (
    "step", "residual_median", "residual_mean", "residual", "tau", "confidence_mean", "confidence", "pass_share",
    "train_loss", "anchor_loss",
)  # fmt: skip
TYPES = {"u1": "u8", "u2": "u16", "i4": "i32", "f4": "f32"}


def suspicion_order(table: ScoreTable) -> Indices:
    """Rows by falling probability, then by falling influence; unknown values come last, what is alike in its order."""
    known = np.nan_to_num(table["influence"].astype(np.float64), nan=-np.inf)
    return np.lexsort((-known, -np.nan_to_num(table["probability_wrong"].astype(np.float64), nan=-1.0)))


def to_json(value: Any) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def build_payload(data: PageData, order: Indices, slots: Indices | None) -> dict[str, Any]:
    """The object the page's script reads. `slots` are the places of the sorted rows in the store of pictures."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    harmed = np.where(data.harmed >= 0, place[data.harmed], -1)[order] if data.harmed.size else data.harmed[order]
    table, names = data.table.take(order), [str(data.names[row]) for row in order]
    by_name = natural_order(names)
    columns = {
        "given": pack_integers(table["given_label"]),
        "suggested": pack_integers(table["predicted_label"]),
        "probability": pack_floats(table["probability_wrong"]),
        "confidence": pack_floats(table["confidence"]),
        "influence": pack_floats(table["influence"]),
        "low": pack_floats(table["interval_low"]),
        "high": pack_floats(table["interval_high"]),
        "observations": pack_integers(table["n_observations"]),
        "selected": pack_integers(table["is_label_issue"].astype(np.int64)),
        "nameOrder": pack_integers(by_name),
        "harmed": pack_integers(harmed.ravel()),
    }
    if slots is not None:
        columns["slot"] = pack_integers(slots)
    review = data.review
    if review is not None and not np.array_equal(review.index, order):
        prior = data.table["probability_wrong"][review.index] if review.probability is None else review.probability
        columns |= {"planned": pack_integers(place[review.index]), "prior": pack_floats(prior)}
    body = {
        "title": data.title,
        "source": data.source,
        "classes": [str(name) for name in data.class_names],
        "names": names,
        "columns": columns,
        "harmedWidth": int(data.harmed.shape[1]),
    }
    # Decisions are kept by name: a page written anew for the same rows keeps them, whatever it says about them.
    labels = table["given_label"][by_name].tolist()
    rows = [body["source"], body["classes"], [names[row] for row in by_name], labels]
    digest = hashlib.sha256(to_json(rows).encode("ascii")).hexdigest()[:32]
    return {
        **body,
        "digest": digest,
        "summary": data.summary,
        "review": None if review is None else dataclasses.asdict(review.plan),
        "noise": [finite_or_none(value) for value in data.noise_rate],
        "fdr": finite_or_none(data.fdr),
        "precision": [[int(k), finite_or_none(value)] for k, value in data.precision],
        **class_pairs(data.confusion, len(data.class_names)),
        "history": curves(data),
        "facts": [[str(key), str(value)] for key, value in data.facts.items()],
        "notes": [str(note) for note in data.notes],
        "copies": [sorted(int(place[row]) for row in group) for group in data.copies],
        "found": findings_payload(data, place),
    }


def finite_or_none(value: Any) -> float | None:
    """A number with seven digits, or None for nan and infinity, which JSON does not know."""
    number = float(value)
    return float(f"{number:.7g}") if math.isfinite(number) else None


def pack_integers(values: Indices) -> dict[str, str]:
    """Whole numbers in the smallest type that holds them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kind = "u1" if low >= 0 and high < 2**8 else "u2" if low >= 0 and high < 2**16 else "i4"
    return pack_array(values, kind)


def pack_floats(values: Any) -> dict[str, str]:
    """Single precision: more digits than anyone is shown."""
    return pack_array(np.clip(values, -3e38, 3e38), "f4")


def pack_array(values: Any, kind: str) -> dict[str, str]:
    """Little-endian bytes in base64, with the name of their type."""
    return {"type": TYPES[kind], "data": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def natural_order(names: list[str]) -> Indices:
    """Rows sorted by name, numbers inside names by their value and before letters: 7, img2, img10."""
    keys = [
        [(0, int(part), "") if part.isascii() and part.isdecimal() else (1, 0, part) for part in _split_digits(name)]
        for name in names
    ]
    return np.array(sorted(range(len(names)), key=lambda row: (keys[row], names[row])), dtype=np.int64)


def _split_digits(name: str) -> list[str]:
    # Long runs of digits stay text: turning thousands of digits into a number is slow, and Python refuses it.
    return [part for part in re.split(r"([0-9]{1,18})", name.casefold()) if part]


def class_pairs(confusion: Pairs, classes: int) -> dict[str, Any]:
    """The most frequent wrong pairs (given, true, number), and the matrix of the classes that fit on a screen."""
    cell, place = np.unique(confusion.given * classes + confusion.true, return_inverse=True)
    count = np.bincount(place, weights=np.nan_to_num(confusion.number, nan=0.0, posinf=0.0, neginf=0.0))
    row, column = cell // classes, cell % classes
    errors = np.where(row == column, 0.0, count)
    top = np.argsort(-errors, kind="stable")[:PAIRS]
    pairs = [[int(row[i]), int(column[i]), finite_or_none(errors[i])] for i in top if errors[i] >= 0.5]
    involved = np.bincount(row, errors, classes) + np.bincount(column, errors, classes)
    most = classes if classes <= FULL_MATRIX else SHORT_MATRIX
    shown = np.sort(np.argsort(-involved, kind="stable")[:most])
    inside = np.isin(row, shown) & np.isin(column, shown)
    cells = np.zeros((len(shown), len(shown)))
    cells[tuple(np.searchsorted(shown, ends[inside]) for ends in (row, column))] = count[inside]
    return {
        "pairs": pairs,
        "matrix": {"classes": shown.tolist(), "cells": [[finite_or_none(value) for value in line] for line in cells]},
    }


def curves(data: PageData) -> dict[str, list[float | None]]:
    """The known keys of the history, thinned to what a picture can show."""
    history = list(data.history)
    if len(history) > CURVE_POINTS:
        keep = np.unique(np.linspace(0, len(history) - 1, CURVE_POINTS).round().astype(int))
        history = [history[i] for i in keep]
    found = {key: [finite_or_none(entry.get(key, math.nan)) for entry in history] for key in CURVES}
    return {key: values for key, values in found.items() if any(value is not None for value in values)}
