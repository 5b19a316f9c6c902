"""Encoded images in the rows of Arrow or Parquet files, fetched when asked for."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.images.backends import Encoded, Update, stamp
from sgoif.images.errors import ImagesError, UnreadableImageError
from sgoif.images.sources.base import check_rows, pyarrow_for
from sgoif.images.text import shown

GROUPS_KEPT = 4


class Table:
    """Rows of several files of one kind. Arrow files are mapped; of Parquet files a few row groups are kept."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        self._pyarrow = pyarrow_for("Reading a Hugging Face data set")
        arrow = self._pyarrow.ArrowException
        self._damage = (arrow, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
        """What cells that are none can raise: bytes that are no text, times that no calendar has."""
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[int, str], Any] = OrderedDict()
        self._blocks: list[tuple[Any, int]] = []
        """(what to read from, which row group) of every block; Arrow batches have group -1."""
        lengths: list[int] = []
        self.schema: Any = None
        try:
            for path in self.files:
                schema = self._parquet(path, lengths) if path.suffix == ".parquet" else self._arrow(path, lengths)
                self.schema = schema if self.schema is None else self.schema
                _ = schema.names  # raises where they are no text
        except ImagesError:
            raise
        except self._damage as error:
            raise ImagesError(f"{shown(path)} is not a readable Arrow or Parquet file: {error}") from error
        self._starts = np.cumsum([0, *lengths])

    def _parquet(self, path: Path, lengths: list[int]) -> Any:
        file = self._pyarrow.parquet.ParquetFile(path)
        check_rows(path, file.metadata)
        for group in range(file.metadata.num_row_groups):
            self._blocks.append((file, group))
            lengths.append(file.metadata.row_group(group).num_rows)
        return file.schema_arrow

    def _arrow(self, path: Path, lengths: list[int]) -> Any:
        mapped = self._pyarrow.memory_map(str(path))
        try:
            table = self._pyarrow.ipc.open_stream(mapped).read_all()
        except self._pyarrow.ArrowInvalid:
            mapped.seek(0)
            table = self._pyarrow.ipc.open_file(mapped).read_all()
        # Lengths that lie would make a later read leave the file.
        table.validate(full=True)
        for batch in table.to_batches():
            self._blocks.append((batch, -1))
            lengths.append(batch.num_rows)
        return table.schema

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        values: list[Any] = []
        try:
            for source, group in self._blocks:
                found = source.column(name) if group < 0 else source.read_row_group(group, columns=[name]).column(name)
                values += found.to_pylist()
        except self._damage as error:
            raise ImagesError(f"the column {shown(name)} of {shown(self.files[0])} cannot be read: {error}") from error
        if len(values) != len(self):
            raise ImagesError(
                f"the column {shown(name)} of {shown(self.files[0])} has {len(values)} of {len(self)} rows"
            )
        return values

    def cell(self, row: int, name: str) -> Any:
        """One value; `UnreadableImageError` where its part of the file is damaged."""
        block = int(np.searchsorted(self._starts, row, side="right")) - 1
        try:
            return self._column(block, name)[int(row - self._starts[block])].as_py()
        except (IndexError, *self._damage) as error:  # the first where a part has fewer rows than its head says
            raise UnreadableImageError(f"the file that holds it is damaged: {error}") from error

    def _column(self, block: int, name: str) -> Any:
        source, group = self._blocks[block]
        if group < 0:
            return source.column(name)
        with self._lock:
            key = (block, name)
            if key not in self._groups:
                self._groups[key] = source.read_row_group(group, columns=[name]).column(name)
                while len(self._groups) > GROUPS_KEPT:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(key)
            return self._groups[key]


class Cells(Encoded):
    """Images as cells of a table: bytes, or {bytes, path} as Hugging Face stores them."""

    def __init__(self, table: Table, column: str, root: Path, rows: Sequence[int]) -> None:
        self.table, self._name, self._root = table, column, root
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def encoded(self, number: int) -> bytes:
        """The image as it is stored."""
        cell = self.table.cell(self._rows[number], self._name)
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(content, bytes):
            return content
        path = cell.get("path") if isinstance(cell, dict) else None
        if not isinstance(path, str) or not path:
            raise UnreadableImageError("the row holds no image")
        return self._from_file(path)

    def _from_file(self, path: str) -> bytes:
        """A row may name a file instead of holding it; only files below the root are opened."""
        root = self._root.resolve()
        try:
            file = (root / path).resolve()
            if not file.is_relative_to(root):
                raise UnreadableImageError(
                    f"the row names the file {shown(path)} outside {shown(self._root)}; if that is meant, give a --root"
                    " that holds it"
                )
            if not file.is_file():
                raise UnreadableImageError(f"the row names the file {shown(path)}, which is not there")
            return file.read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, UnreadableImageError):
                raise
            raise UnreadableImageError(f"the row names a file that cannot be read: {error}") from error

    def fingerprint(self, update: Update) -> None:
        update(f"{self._name} {self._rows};".encode())
        for file in self.table.files:
            update(file.name.encode("utf-8", "surrogateescape") + b" " + stamp(file))

    def pick(self, numbers: Sequence[int]) -> "Cells":
        return Cells(self.table, self._name, self._root, [self._rows[number] for number in numbers])
