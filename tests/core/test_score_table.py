"""The table of scores: its columns, its order and the formats it is written to."""

from __future__ import annotations

import builtins
import csv
import pickle
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sgoif import InfluenceMonitor, ScoreTable
from sgoif.core.score_table import from_cell, to_cell
from sgoif.errors import MissingExtraError

DOCUMENTED = ["index", "influence", "interval_low", "interval_high", "confidence", "n_observations", "margin", "group"]


@pytest.fixture
def table() -> ScoreTable:
    """A small table with everything that is awkward to write: nan, text, formulas, an empty cell."""
    return ScoreTable(
        {
            "index": np.arange(7),
            "influence": np.array([0.1, np.nan, -3.5, 2.0, 1e-30, 0.3, 2.0], dtype=np.float32),
            "n_observations": np.array([1, 0, 2, 3, 4, 5, 6]),
            "group": np.array(["cat", "", "=1+1", "-2", "@x", "a,b", 'say "hi"\nthere'], dtype=object),
        }
    )


def trained(groups=None) -> InfluenceMonitor:
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=(x[30:], y[30:]), size=30, groups=groups)
    for index in torch.randperm(28).split(7):
        with monitor.step(index):
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return monitor


def test_documented_columns_come_first_and_hold_what_they_say() -> None:
    table = trained().scores()
    assert table.columns[:8] == table.keys()[:8] == DOCUMENTED
    assert list(table.to_pandas().columns)[:8] == DOCUMENTED
    assert len(table) == 30
    np.testing.assert_array_equal(table["index"], np.arange(30))
    np.testing.assert_array_equal(table["n_observations"], [1] * 28 + [0, 0])
    seen = table["n_observations"] > 0
    low, mean, high = table["interval_low"], table["influence"], table["interval_high"]
    assert ((low <= mean) & (mean <= high))[seen].all()
    assert ((table["confidence"] >= 0) & (table["confidence"] <= 1))[seen].all()
    assert (np.abs(table["margin"]) <= 1)[seen].all()
    assert set(table["group"][seen]) <= {0, 1, 2}
    assert np.isnan(mean[~seen]).all()
    assert set(table["group"][~seen]) == {-1}


def test_columns_are_attributes_too(table: ScoreTable) -> None:
    assert table.influence is table["influence"]
    with pytest.raises(AttributeError, match="no column 'nope'; columns are index, influence"):
        _ = table.nope
    copied = pickle.loads(pickle.dumps(table))
    np.testing.assert_array_equal(copied["index"], table["index"])


def test_worst_first_and_examples_without_a_score_last(table: ScoreTable) -> None:
    assert table.worst()["index"].tolist() == [3, 6, 5, 0, 4, 2, 1]
    assert table.worst(2)["index"].tolist() == [3, 6]
    assert table.worst(0).columns == table.columns
    shown = repr(table)
    assert "7 examples" in shown
    assert shown.index("influence") < shown.index("-2") < shown.index("cat")


def test_csv_round_trip_is_exact(table: ScoreTable, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "scores.csv"
    table.to_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    assert header == table.columns
    assert [int(row[0]) for row in rows] == table["index"].tolist()
    np.testing.assert_array_equal(np.array([float(row[1]) for row in rows], dtype=np.float32), table["influence"])
    assert [p.name for p in path.parent.iterdir()] == ["scores.csv"], "no temporary file is left"


def test_csv_cells_are_never_formulas(table: ScoreTable, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    table.to_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        groups = [row[3] for row in csv.reader(file)][1:]
    assert groups == ["cat", "", "'=1+1", "'-2", "'@x", "a,b", 'say "hi"\nthere']
    for start in ("=", "+", "-", "@", "\t", "\r", "\n"):
        ScoreTable({"group": np.array([start + "cmd"], dtype=object)}).to_csv(path)
        with path.open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file))[1] == ["'" + start + "cmd"]


def test_negative_numbers_are_not_text_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    ScoreTable({"influence": np.array([-1.5])}).to_csv(path)
    assert path.read_text().splitlines() == ["influence", "-1.5"]


def test_parquet_and_pandas_round_trips(table: ScoreTable, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "scores.parquet"
    table.to_parquet(path)
    for frame in (pandas.read_parquet(path), table.to_pandas()):
        assert list(frame.columns) == table.columns
        assert frame["group"].tolist() == table["group"].tolist()
        for name in ("index", "influence", "n_observations"):
            np.testing.assert_array_equal(frame[name].to_numpy(), table[name])
            assert frame[name].dtype == table[name].dtype


def test_a_real_table_is_written_and_read_back(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for number, groups in enumerate((None, ["=a", "b"] * 5)):
        table = trained(groups).scores()
        table.to_csv(tmp_path / f"{number}.csv")
        frame = pandas.read_csv(tmp_path / f"{number}.csv", keep_default_na=False, na_values=["nan"])
        assert list(frame.columns)[:8] == DOCUMENTED
        np.testing.assert_array_equal(frame["influence"].to_numpy(np.float32), table["influence"])
        shown = [name.removeprefix("'") if isinstance(name, str) else name for name in frame["group"]]
        assert shown == table["group"].tolist()


def test_writing_is_all_or_nothing(table: ScoreTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("old")
    monkeypatch.setattr("sgoif.core.score_table.to_cell", lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        table.to_csv(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["scores.csv"]


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_parquet", "pyarrow")])
def test_a_missing_extra_is_named_with_its_command(
    table: ScoreTable, method: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"{method}.*'{package}'.*pip install 'sgoif\[tables\]'"):
        getattr(table, method)(*([] if method == "to_pandas" else [tmp_path / "t.parquet"]))
    table.to_csv(tmp_path / "t.csv")  # needs neither


def test_names_that_are_not_utf8_are_written_all_the_same(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    odd = ScoreTable({"path": np.array([name], dtype=object)})
    odd.to_csv(tmp_path / "t.csv")
    assert b"caf\xe9.png" in (tmp_path / "t.csv").read_bytes()
    odd.to_parquet(tmp_path / "t.parquet")
    assert pandas.read_parquet(tmp_path / "t.parquet")["path"][0].startswith("caf")


@pytest.mark.parametrize("separator", [";", "\t", ",", "\n"])
def test_no_part_of_a_cell_is_a_formula_whatever_cells_are_split_at(separator: str, tmp_path: Path) -> None:
    hidden = [f"a{separator}{start}cmd()" for start in ("=", "+", "-", "@", " =", '"=', '""=', "\uff1d", "'=")]
    table = ScoreTable({"path": np.array([*hidden, f"{separator}=x", 'say "=x"'], dtype=object)})
    table.to_csv(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    for part in re.split(r'[;\t,\r\n"]', text):
        assert not part.lstrip(" ").startswith(("=", "+", "-", "@", "\uff1d")), part
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert [from_cell(row[0]) for row in csv.reader(file)][1:] == table["path"].tolist()


@given(st.text(alphabet="'=+-@;,\t\r\n\" a\uff1d"))
def test_marks_are_taken_off_exactly(text: str) -> None:
    assert from_cell(to_cell(text)) == text
    assert to_cell(from_cell(to_cell(text))) == to_cell(text)


def test_text_that_was_never_marked_stays() -> None:
    for text in ("'tick", "a;'b", "it's", "'"):
        assert from_cell(text) == text


@pytest.mark.parametrize("text", ["=1+1", "'=1", "-2", "@x", "\tx", "plain", "'", ""])
def test_cells_come_back_as_they_were(text: str) -> None:
    assert from_cell(to_cell(text)) == text
