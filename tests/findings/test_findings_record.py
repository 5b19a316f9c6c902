"""Findings on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgoif.findings import Finding, Severity
from sgoif.findings import record as recording
from sgoif.findings.checks import Report
from sgoif.findings.record import About, FindingsError, read_findings, write_findings, write_findings_table

FINDINGS = [
    Finding(
        "copies",
        Severity.ERROR,
        "2 images have the same pixels",
        ("a\n<b>.png", "c.png"),
        ("cat", "dog"),
        {"images": 2, "share": 0.5, "said": None, "text": "x", "yes": True},
        "keep one",
        "c.png",
    ),
    Finding("imbalance", Severity.NOTE, "ten times as many", (), ("cat",), about="size"),
]
REPORT = Report(FINDINGS, ("copies", "imbalance"), {"leaks": "one split"})


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    write_findings(path, REPORT, About("/data", 2, ["cat", "dog"]))
    assert read_findings(path) == FINDINGS
    written = json.loads(path.read_text(encoding="utf-8"))
    assert {name: written[name] for name in ("version", "source", "images", "classes", "looked", "not_looked")} == {
        "version": 1,
        "source": "/data",
        "images": 2,
        "classes": ["cat", "dog"],
        "looked": ["copies", "imbalance"],
        "not_looked": {"leaks": "one split"},
    }
    assert set(written["titles"]) == {"copies", "imbalance", "leaks"}
    assert [entry["id"] for entry in written["findings"]] == [finding.id for finding in FINDINGS]
    assert "new" not in written["findings"][0]
    assert "sgoif" in written["versions"]


def test_what_a_baseline_has_is_not_new(tmp_path: Path) -> None:
    write_findings(tmp_path / "f.json", REPORT, About("/data", 2, []), frozenset([FINDINGS[0].id]))
    assert [entry["new"] for entry in json.loads((tmp_path / "f.json").read_text())["findings"]] == [False, True]
    assert read_findings(tmp_path / "f.json") == FINDINGS


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"version": 2},
        lambda record: [],
        lambda record: record | {"findings": None},
        lambda record: record | {"findings": [{"kind": "copies"}]},
        lambda record: record | {"findings": [record["findings"][0] | {"severity": "fatal"}]},
        lambda record: record | {"findings": [record["findings"][0] | {"images": "abc"}]},
        lambda record: record | {"findings": [record["findings"][0] | {"images": [1]}]},
        lambda record: record | {"findings": [record["findings"][0] | {"message": 3}]},
        lambda record: record | {"findings": [record["findings"][0] | {"evidence": {"a": []}}]},
    ],
)
def test_a_foreign_or_damaged_file_is_one_sentence(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    write_findings(path, REPORT, About("/data", 2, []))
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(FindingsError, match=r"findings\.json' does not hold findings .*; give a findings\.json that"):
        read_findings(path)


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[" * 100_000, b'{"version": 1}'])
def test_what_is_no_record_at_all_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(FindingsError, match="does not hold findings"):
        read_findings(tmp_path / "f.json")
    with pytest.raises(FindingsError, match="does not exist"):
        read_findings(tmp_path / "none.json")


def test_the_table_has_a_row_for_each_image(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_findings_table(tmp_path / "f.parquet", FINDINGS)
    rows = parquet.read_table(tmp_path / "f.parquet").to_pylist()
    assert [(row["image"], row["position"], row["keep"]) for row in rows] == [
        ("a\n<b>.png", 0, False),
        ("c.png", 1, True),
        (None, None, False),
    ]
    assert [row["id"] for row in rows] == [FINDINGS[0].id, FINDINGS[0].id, FINDINGS[1].id]
    assert rows[0]["classes"] == ["cat", "dog"]
    assert json.loads(rows[0]["evidence"]) == FINDINGS[0].evidence
    write_findings_table(tmp_path / "none.parquet", [])
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


def test_without_pyarrow_an_earlier_table_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f.parquet").write_bytes(b"old")
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    write_findings_table(tmp_path / "f.parquet", FINDINGS)
    assert not (tmp_path / "f.parquet").exists()
