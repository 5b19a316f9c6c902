"""The table of scores: columns as numpy arrays, written to the usual formats."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.core.serialization import atomic_write
from sgoif.errors import MissingExtraError

Array = np.ndarray[Any, Any]
RISKY = re.compile(r"""(^|[;,\t\r\n"])(?=\ *['=+\-@\uff1d\uff0b\uff0d\uff20])""", re.VERBOSE)
"""Where a spreadsheet, whatever it takes for a separator, would begin a cell with a formula (or with an apostrophe)."""
MARKED = re.compile(r"""(^|[;,\t\r\n"])'""")
OWN = (
    {"path", "given_label", "decision", "new_label"},
    {"path", "given_label", "is_label_issue", "label_score"},
    {"path", "given_label", "copies", "labels_differ"},
    {"path", "given_label", "score", "probability", "family", "selected"},
    {"path", "score", "p_value", "is_strange"},
)
"""Columns that tell tables of this library, whose cells are marked, from tables that others wrote."""


class ScoreTable:
    """One row per example, worst first on request. `influence` > 0 means that the example harms held-out data."""

    def __init__(self, columns: dict[str, Array]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def keys(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        """Number of rows, as for a data frame."""
        return len(next(iter(self._columns.values())))

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getattr__(self, name: str) -> Array:
        columns = self.__dict__.get("_columns", {})
        if name in columns:
            return columns[name]  # type: ignore[no-any-return]
        raise AttributeError(f"no column {name!r}; columns are {', '.join(columns)}")

    def take(self, rows: Array) -> ScoreTable:
        """The given rows, in the given order."""
        return ScoreTable({name: column[rows] for name, column in self._columns.items()})

    def worst(self, count: int | None = None) -> ScoreTable:
        """Rows by falling influence; examples without a score come last."""
        order = np.argsort(-np.nan_to_num(self["influence"], nan=-np.inf), kind="stable")
        return self.take(order[:count])

    def __repr__(self) -> str:
        shown = self.worst(5)
        rows = [self.columns, *([_shown(shown[name][row]) for name in self.columns] for row in range(len(shown)))]
        lines = ["  ".join(f"{cell:>14}" for cell in row) for row in rows]
        return f"ScoreTable with {len(self)} examples, the most harmful first:\n" + "\n".join(lines)

    def to_pandas(self) -> Any:
        """A pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "tables", "to_pandas()") from error
        return pandas.DataFrame(dict(self._columns))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file; needs nothing beside numpy. Cells that a spreadsheet would run are marked as text."""
        columns = (self._columns[name].tolist() for name in self.columns)
        write_csv(Path(path), self.columns, zip(*columns, strict=True))

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtraError("pyarrow", "tables", "to_parquet()") from error
        columns = {k: v if v.dtype != object else [_text(x) for x in v] for k, v in self._columns.items()}
        atomic_write(Path(path), lambda handle: pyarrow.parquet.write_table(pyarrow.table(columns), handle))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file, whole or not at all; cells that a spreadsheet would run are marked as text."""

    def write(handle: Any) -> None:
        writer = csv.writer(handle)
        writer.writerow(header)
        writer.writerows([to_cell(value) for value in row] for row in rows)

    atomic_write(path, write, text=True)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)


def texts(values: Iterable[str]) -> Array:
    """An array of texts. Filled one by one: numpy would cut zero characters off the end of its own text type."""
    listed = [str(value) for value in values]
    out = np.empty(len(listed), dtype=object)
    out[:] = listed
    return out


def _text(value: Any) -> str:
    """A value as text that UTF-8 can hold; other bytes in a file name become question marks."""
    return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_cell(value: Any) -> Any:
    """A value for a CSV file. Text that starts like a formula gets an apostrophe, as spreadsheets expect of text.

    So does every part after what some spreadsheets split cells at. `decisions.js` does the same.
    """
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(("\t", "\r", "\n")) else "") + RISKY.sub(r"\1'", value)


def from_cell(text: str) -> str:
    """What `to_cell` was given; text that it does not write stays as it is."""
    plain = MARKED.sub(r"\1", text)
    return plain if to_cell(plain) == text else text


def is_own(header: Iterable[str]) -> bool:
    """Whether a CSV file with these columns is one of this library, whose cells `from_cell` reads."""
    return any(columns.issubset(header) for columns in OWN)
