"""Results for the tools people already use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sgoif.audit.errors import AuditError
from sgoif.audit.exporters import read_table, to_datalab, to_fiftyone
from sgoif.core.score_table import ScoreTable
from sgoif.errors import MissingExtraError


@pytest.fixture
def table() -> ScoreTable:
    given = ["=cat", "dog", "<b>", "=cat", "dog", "<b>"]
    predicted = ["dog", "=cat", "<b>", "=cat", "dog", "<b>"]

    def texts(values: list[str]) -> Any:
        return np.array(values, dtype=object)

    numbers = np.linspace(0.05, 0.95, 6)
    return ScoreTable(
        {
            "path": texts([f"{name}/{k}\n.png" for k, name in enumerate(given)]),
            "is_label_issue": np.array([True, True, False, False, False, False]),
            "label_score": numbers,
            "given_label": texts(given),
            "predicted_label": texts(predicted),
            "probability_wrong": 1 - numbers,
            "confidence": numbers,
            "influence": np.array([2.0, 1, 0, -1, np.nan, -2]),
            "interval_low": numbers - 1,
            "interval_high": numbers + 1,
            "n_observations": np.array([3, 3, 3, 3, 0, 3]),
        }
    )


def test_a_table_is_read_back_as_it_was(table: ScoreTable, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "issues.csv")
    for place in (tmp_path, tmp_path / "issues.csv"):
        found = read_table(place)
        assert found.columns == table.columns
        for name in table.columns:
            assert found[name].dtype == table[name].dtype
            assert np.array_equal(found[name], table[name], equal_nan=name == "influence"), name


def test_a_table_that_a_spreadsheet_has_saved(table: ScoreTable, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "issues.csv")
    text = (tmp_path / "issues.csv").read_text()
    (tmp_path / "issues.csv").write_text(text.replace("True", "TRUE").replace("False", "FALSE"), encoding="utf-8-sig")
    assert np.array_equal(read_table(tmp_path)["is_label_issue"], table["is_label_issue"])
    (tmp_path / "issues.csv").write_text(text.rstrip() + "\nonly one cell\n")
    with pytest.raises(AuditError, match="was changed"):
        read_table(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"cannot read .*finished audit"):
        read_table(tmp_path)
    (tmp_path / "issues.csv").write_text("a,b\n1,2\n")
    with pytest.raises(AuditError, match="not a table of an audit"):
        read_table(tmp_path)


def test_datalab_holds_the_issues_as_if_it_had_found_them(table: ScoreTable) -> None:
    pytest.importorskip("cleanlab")
    pytest.importorskip("datasets")
    lab = to_datalab(table)
    issues = lab.get_issues("label")
    assert issues["is_label_issue"].tolist() == table["is_label_issue"].tolist()
    assert issues["label_score"].tolist() == table["label_score"].tolist()
    assert issues["given_label"].tolist() == list(table["given_label"])
    assert issues["predicted_label"].tolist() == list(table["predicted_label"])
    assert lab.get_issue_summary("label")["num_issues"].tolist() == [2]
    lab.report()
    with pytest.raises(AuditError, match="row 0"):
        to_datalab(table, {"label": ["dog", "dog", "<b>", "=cat", "dog", "<b>"]})
    with pytest.raises(AuditError, match="has 5 examples"):
        to_datalab(table, {"label": ["dog"] * 5})


class Sample(dict[str, Any]):
    def __init__(self, filepath: str) -> None:
        super().__init__()
        self.filepath, self.saved = filepath, False

    def save(self) -> None:
        self.saved = True


class FakeDataset(list[Sample]):
    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def add_samples(self, samples: list[Sample]) -> None:
        self.extend(samples)


@pytest.fixture
def fiftyone(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The few names that are used of FiftyOne, which needs a database server to run."""
    module: Any = ModuleType("fiftyone")
    module.Sample, module.Dataset = Sample, FakeDataset
    module.Classification = lambda label, confidence=None: {"label": label, "confidence": confidence}
    monkeypatch.setitem(sys.modules, "fiftyone", module)
    return module  # type: ignore[no-any-return]


def put_files(table: ScoreTable, root: Path) -> None:
    for path in table["path"]:
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(b"")


def test_fiftyone_gets_labels_suggestions_and_scores(table: ScoreTable, tmp_path: Path, fiftyone: ModuleType) -> None:
    put_files(table, tmp_path)
    dataset = to_fiftyone(table, tmp_path, name="audit")
    assert (dataset.name, len(dataset)) == ("audit", 6)
    assert dataset[0].filepath == str(tmp_path / table["path"][0])
    assert dataset[0]["ground_truth"]["label"] == "=cat"
    assert dataset[0]["suggested_label"] == {"label": "dog", "confidence": pytest.approx(0.95)}
    assert dataset[4]["influence"] is None
    assert type(dataset[0]["n_observations"]) is int


def test_fiftyone_fields_join_an_existing_data_set(table: ScoreTable, tmp_path: Path, fiftyone: ModuleType) -> None:
    put_files(table, tmp_path)
    mine = FakeDataset("mine")
    mine.append(Sample(str(tmp_path / table["path"][2])))
    assert to_fiftyone(table, tmp_path, dataset=mine) is mine
    assert len(mine) == 1
    assert mine[0].saved
    assert mine[0]["is_label_issue"] is False
    with pytest.raises(AuditError, match="is not a file"):
        to_fiftyone(table, tmp_path / "elsewhere")


def test_missing_packages_are_named(table: ScoreTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    with pytest.raises(MissingExtraError, match=r"sgoif\[datalab\]"):
        to_datalab(table)
    with pytest.raises(MissingExtraError, match=r"sgoif\[fiftyone\]"):
        to_fiftyone(table, tmp_path)


def test_a_table_without_labels_is_refused(table: ScoreTable, fiftyone: ModuleType, tmp_path: Path) -> None:
    bare = ScoreTable({"influence": table["influence"]})
    with pytest.raises(AuditError, match="is_label_issue"):
        to_fiftyone(bare, tmp_path)
