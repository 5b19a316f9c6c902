"""Findings as the page's script reads them: numbers in the place of texts that come again and again."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sgoif.core.types import Indices
from sgoif.findings import SEVERITIES, Finding
from sgoif.reports.page_data import PageData

LABELS = "wrong-label"
"""The kind that the list of labels shows."""
GROUPS = frozenset(("copies", "near-copies", "leaks", "bursts"))
"""Kinds whose images are looked at side by side."""
AT_FIRST = 2000
"""Images of the list of labels whose pictures come before those of findings."""
EXAMPLES = 48
"""Images of one finding whose pictures are needed as early."""


def findings_payload(data: PageData, place: Indices) -> dict[str, Any] | None:
    """Everything about findings; `place` is where each row stands in the page. None where nothing was looked for."""
    if not data.findings and not data.titles:
        return None
    found = _of_kinds(data)
    texts: dict[str, int] = {}
    rows = _rows(data)

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    def where(name: str) -> int:
        row = rows[name]
        return int(place[row]) if row < len(place) else row

    kinds = [
        {
            "kind": kind,
            "title": data.titles.get(kind, kind),
            "form": _form(kind, several),
            "findings": [
                [
                    SEVERITIES.index(finding.severity),
                    text(finding.message),
                    text(finding.advice),
                    [where(name) for name in finding.images],
                    -1 if finding.keep is None else where(finding.keep),
                    [text(name) for name in finding.classes],
                    [part for key, value in finding.evidence.items() for part in (text(key), _plain(value))],
                ]
                for finding in several
            ],
        }
        for kind, several in found.items()
    ]
    looked = [title for kind, title in data.titles.items() if kind not in (*found, *data.not_looked, LABELS)]
    return {
        "kinds": kinds,
        "texts": list(texts),
        "nothing": looked,
        "notLooked": [[data.titles.get(kind, kind), why] for kind, why in data.not_looked.items()],
        "further": [list(image) for image in data.further],
        "splits": list(data.splits),
    }


def picture_order(data: PageData, sequence: Indices) -> Indices:
    """`sequence` and the further images, with what findings show right after the first of the list."""
    if not data.findings:
        return sequence
    rows, images = _rows(data), (name for finding in data.findings for name in finding.images[:EXAMPLES])
    wanted = np.fromiter((rows[name] for name in images), np.int64)
    last = np.arange(len(data.names), len(data.names) + len(data.further))
    every = np.concatenate([sequence[:AT_FIRST], wanted, sequence[AT_FIRST:], last])
    _, first = np.unique(every, return_index=True)
    return every[np.sort(first)]


def _of_kinds(data: PageData) -> dict[str, list[Finding]]:
    """The findings by kind, in the order of the titles, the gravest first."""
    found: dict[str, list[Finding]] = {kind: [] for kind in data.titles if kind != LABELS}
    for finding in data.findings:
        if finding.kind != LABELS:
            found.setdefault(finding.kind, []).append(finding)
    return {
        kind: sorted(several, key=lambda finding: SEVERITIES.index(finding.severity))
        for kind, several in found.items()
        if several
    }


def _rows(data: PageData) -> dict[str, int]:
    return {name: row for row, name in enumerate([*data.names, *(image.name for image in data.further)])}


def _form(kind: str, several: Sequence[Finding]) -> str:
    """How a kind is shown: groups side by side, single images in a grid, or text with examples."""
    if kind in GROUPS or any(finding.keep is not None for finding in several):
        return "group"
    return "image" if all(len(finding.images) == 1 and len(finding.classes) < 2 for finding in several) else "text"


def _plain(value: float | int | str | bool | None) -> float | int | str | bool | None:
    """A value that JSON knows, with no more digits than anyone is shown."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.4g}") if np.isfinite(value) else str(value)
    return int(value) if isinstance(value, np.integer) else value


def names_of(findings: Iterable[Finding]) -> list[str]:
    """Every image that findings are about, once."""
    return list(dict.fromkeys(name for finding in findings for name in finding.images))
