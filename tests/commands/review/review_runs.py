"""Run directories as a finished audit leaves them, without an audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.audit.settings import AuditSettings
from sgoif.core.score_table import write_csv

CLASSES = ("cat", "dog", "=sum")


def make_run(folder: Path, size: int = 120, wrong: int = 12) -> list[str]:
    """A run whose first `wrong` labels are wrong; returns its paths, the most suspicious first."""
    folder.mkdir(parents=True)
    settings = AuditSettings(folder.parent / "data")
    record = {"settings": settings.record(), "digest": "0", "versions": {}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    paths = [f"{CLASSES[i % 3]}/{i:03d}.png" for i in range(size)]
    header = ("path", "is_label_issue", "label_score", "given_label", "predicted_label", "probability_wrong")
    rows: list[tuple[Any, ...]] = []
    for i, path in enumerate(paths):
        given, p = CLASSES[i % 3], float(np.clip(0.97 - 0.4 * i / wrong, 0.01, 1))
        rows.append((path, i < wrong, 1 - p, given, CLASSES[(i + 1) % 3] if i < wrong else given, p))
    write_csv(folder / "issues.csv", header, rows)
    return paths
