"""Findings in a file: findings.json of a run directory."""

import json
from pathlib import Path

from sgoif.errors import StateError
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import shown

VERSION = 1


def read_findings(path: Path) -> list[Finding]:
    """What an audit wrote to findings.json; `StateError` where that is not what the file holds."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise ValueError(f"version {shown(record['version'])} instead of {VERSION}")
        return [_finding(entry) for entry in record["findings"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"{shown(path)} does not hold the findings of an audit ({error}); give findings.json of a run directory"
        ) from error


def _finding(entry: dict[str, object]) -> Finding:
    texts = {name: str(entry[name]) for name in ("kind", "message", "advice", "about")}
    keep, evidence = entry["keep"], entry["evidence"]
    lists = entry["images"], entry["classes"]
    if not all(isinstance(part, list) for part in lists) or not isinstance(evidence, dict):
        raise TypeError("a finding without lists of images and classes and a table of evidence")
    images, classes = (tuple(map(str, part)) for part in lists)  # type: ignore[call-overload]
    severity = Severity(str(entry["severity"]))
    return Finding(
        severity=severity, images=images, classes=classes, evidence=evidence, keep=None if keep is None else str(keep),
        **texts,
    )  # fmt: skip
