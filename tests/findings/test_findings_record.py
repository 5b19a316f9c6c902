"""Findings in a file are read as they were, and what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgoif.errors import SgoifError
from sgoif.findings import Finding, Severity
from sgoif.findings.record import read_findings

ENTRY: dict[str, Any] = {
    "id": "0", "kind": "dark", "severity": "warning", "message": "almost black", "images": ["cat/1.png"],
    "classes": ["cat"], "evidence": {"limit": 0.1}, "advice": "look", "keep": None, "about": "",
}  # fmt: skip


def test_findings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    path.write_text(json.dumps({"version": 1, "findings": [ENTRY]}))
    wanted = Finding("dark", Severity.WARNING, "almost black", ("cat/1.png",), ("cat",), {"limit": 0.1}, "look")
    assert read_findings(path) == [wanted]


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"version": 2, "findings": []}', "[" * 100_000, '{"version": 1, "findings": [1]}',
        *(json.dumps({"version": 1, "findings": [ENTRY | wrong]}) for wrong in
          ({"severity": "fatal"}, {"images": "cat/1.png"}, {"evidence": 3})),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "findings.json"
    path.write_text(text)
    with pytest.raises(SgoifError, match=r"findings\.json' does not hold"):
        read_findings(path)
