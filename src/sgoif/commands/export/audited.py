"""What there is to export: the images of a run, their labels, what was suggested, and what was found."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.exporters import read_table
from sgoif.audit.run_directory import CACHE
from sgoif.findings import Finding
from sgoif.findings.record import read_findings
from sgoif.images import open_pixels
from sgoif.images.text import shown

FINDINGS, ISSUES = "findings.json", "issues.csv"


@dataclass(frozen=True)
class Suggestion:
    """What was found about one label."""

    label: str
    probability_wrong: float
    """That the given label is wrong; nan: nothing was found."""
    score: float
    is_issue: bool


@dataclass(frozen=True)
class AuditedImage:
    """One image."""

    name: str
    path: str | None
    """Below `Audited.root`, with forward slashes; None: it has no file of its own."""
    label: str | None
    width: int
    height: int
    findings: Sequence[Finding]
    suggestion: Suggestion | None


@dataclass(frozen=True)
class Audited:
    """A finished audit."""

    images: Sequence[AuditedImage]
    class_names: Sequence[str]
    root: Path
    """The folder that all files lie below."""
    rest: Sequence[Finding]
    """What was found about the whole set, a class, or a file that cannot be read."""


def read_audited(run: Path) -> Audited:
    """Everything a finished audit knows; raises where parts of it are not there."""
    if not (run / FINDINGS).is_file():
        raise RunDirectoryError(
            f"{shown(run)} holds no {FINDINGS}: expected is the run directory of an audit that has come to its end"
        )
    findings, pixels = read_findings(run / FINDINGS), open_pixels(run / CACHE, verify=False)
    by_name: dict[str, list[Finding]] = {name: [] for name in pixels.names}
    rest = []
    for found in findings:
        known = [name for name in dict.fromkeys(found.images) if name in by_name]
        for name in known:
            by_name[name].append(found)
        if not known:
            rest.append(found)
    folders = {os.path.dirname(file) for file in pixels.files if file is not None}
    root = os.path.commonpath(folders) if folders else ""
    suggestions = _suggestions(run) if (run / ISSUES).is_file() else {}
    images = [
        AuditedImage(
            name,
            None if file is None else os.path.relpath(file, root).replace(os.sep, "/"),
            pixels.class_names[label] if label >= 0 else None,
            width,
            height,
            by_name[name],
            suggestions.get(name),
        )
        for name, file, label, (width, height) in zip(
            pixels.names, pixels.files, pixels.labels.tolist(), pixels.sizes.tolist(), strict=True
        )
    ]
    return Audited(images, pixels.class_names, Path(root), rest)


def _suggestions(run: Path) -> Mapping[str, Suggestion]:
    table = read_table(run)
    columns = ("path", "predicted_label", "probability_wrong", "label_score", "is_label_issue")
    rows = zip(*(table[name].tolist() for name in columns), strict=True)
    return {path: Suggestion(label, wrong, score, issue) for path, label, wrong, score, issue in rows}
