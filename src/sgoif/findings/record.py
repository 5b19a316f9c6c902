"""Findings on disk, for other programs: findings.json, and findings.parquet where pyarrow is installed.

    {"version": 1, "source": "/data/photos", "images": 300, "classes": ["cat", "dog"],
     "looked": [kind, ...], "not_looked": {kind: why}, "titles": {kind: title},
     "findings": [{"id", "kind", "severity", "message", "images", "classes", "evidence", "advice", "keep", "about"}],
     "versions": {...}}

Where findings were compared with a baseline, each says whether it is `new`. The table has one row for each finding and
image, and one without an image for a finding about all of them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sgoif.core.provenance import plain, versions, write_json
from sgoif.core.serialization import DAMAGE, atomic_write
from sgoif.errors import SgoifError
from sgoif.findings.checks import TITLES, Report
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import shown

VERSION = 1


class FindingsError(SgoifError, ValueError):
    """A file does not hold findings."""


@dataclass(frozen=True)
class About:
    """What was looked at."""

    source: str
    images: int
    classes: Sequence[str]


def write_findings(path: Path, report: Report, about: About, known: frozenset[str] | None = None) -> None:
    """Write findings.json; `known` are the ids of a baseline, which are not new."""
    write_json(
        path,
        {
            "version": VERSION,
            "source": about.source,
            "images": about.images,
            "classes": list(about.classes),
            "looked": report.looked,
            "not_looked": report.not_looked,
            "titles": {kind: TITLES.get(kind, kind) for kind in (*report.looked, *report.not_looked)},
            "findings": [_entry(found, known) for found in report.findings],
            "versions": versions(),
        },
    )


def read_findings(path: Path) -> list[Finding]:
    """The findings of a findings.json; `FindingsError` where the file is not there, damaged, or something else."""
    try:
        record = json.loads(path.read_bytes())
        if record["version"] != VERSION:
            raise ValueError(f"version {shown(record['version'])} instead of {VERSION}")
        return [_finding(entry) for entry in record["findings"]]
    except FileNotFoundError as error:
        raise FindingsError(f"{shown(path)} does not exist; expected is the findings.json of an audit") from error
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {shown(error)}"
        raise FindingsError(
            f"{shown(path)} does not hold findings ({reason}); give a findings.json that `sgoif audit` has written"
        ) from error


def write_findings_table(path: Path, findings: Sequence[Finding]) -> None:
    """Write findings.parquet; without pyarrow only one of an earlier run is removed."""
    if find_spec("pyarrow") is None:
        path.unlink(missing_ok=True)
        return
    import pyarrow
    import pyarrow.parquet

    text, texts = pyarrow.string(), pyarrow.list_(pyarrow.string())
    kinds = {"position": pyarrow.int32(), "keep": pyarrow.bool_(), "classes": texts}
    names = ("id", "kind", "severity", "message", "image", "position", "keep", "classes", "evidence", "advice")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in _rows(findings):
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    table = pyarrow.table({name: pyarrow.array(columns[name], kinds.get(name, text)) for name in names})
    atomic_write(path, lambda file: pyarrow.parquet.write_table(table, file))


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[Any, ...]]:
    for found in findings:
        head = (found.id, found.kind, found.severity.value, _encodable(found.message))
        evidence = json.dumps(plain(found.evidence))
        tail = ([_encodable(name) for name in found.classes], evidence, _encodable(found.advice))
        for position, name in enumerate(found.images or [None]):
            image = None if name is None else _encodable(name)
            yield (*head, image, None if name is None else position, name is not None and name == found.keep, *tail)


def _entry(found: Finding, known: frozenset[str] | None) -> dict[str, Any]:
    entry = {
        "id": found.id,
        "kind": found.kind,
        "severity": found.severity.value,
        "message": found.message,
        "images": found.images,
        "classes": found.classes,
        "evidence": found.evidence,
        "advice": found.advice,
        "keep": found.keep,
        "about": found.about,
    }
    return entry if known is None else {**entry, "new": found.id not in known}


def _finding(entry: Any) -> Finding:
    texts = [entry[name] for name in ("kind", "message", "advice", "about")]
    lists = [entry[name] for name in ("images", "classes")]
    evidence, keep = entry["evidence"], entry["keep"]
    if not all(isinstance(text, str) for text in (*texts, *lists[0], *lists[1])):
        raise ValueError("a finding has something else where texts are expected")
    if not all(isinstance(found, list) for found in lists) or not isinstance(evidence, dict):
        raise ValueError("a finding has no lists of images and classes, or no evidence")
    if not all(value is None or isinstance(value, (str, int, float)) for value in (*evidence.values(), keep)):
        raise ValueError("the evidence of a finding is neither numbers nor texts")
    kind, message, advice, about = texts
    images, classes = map(tuple, lists)
    return Finding(kind, Severity(entry["severity"]), message, images, classes, evidence, advice, keep, about)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
