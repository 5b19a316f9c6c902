"""Rows dealt into parts by their lots: where one part is all there is, nothing is copied.

Every part has rows in every file, so a part would read all files. Files are therefore copied once, some millions of
rows at a time, with the rows of each part side by side in a group of their own.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sgoif.core.serialization import atomic_write
from sgoif.sharded.feature_files import (
    FeatureFolder,
    Piece,
    damaged,
    is_complete,
    part_of,
    pyarrow_for_shards,
    schema_of,
)

ROWS_DEALT = 500_000
"""Rows of a copied file, about; memory holds them twice."""
GROUPS = b"parts"


class Deal:
    """The files of a folder, their rows, and where the rows of each part are."""

    def __init__(self, folder: FeatureFolder, width: int, part_rows: int, copies: Path) -> None:
        self._arrow = pyarrow_for_shards("Reading features")
        self.files = folder.files()
        self._groups, self.rows = list[int](), 0
        bundles: list[list[Path]] = [[]]
        waiting = 0
        for path in self.files:
            try:
                found = self._arrow.parquet.read_metadata(path)
            except (OSError, self._arrow.ArrowException) as error:
                raise damaged(path, error) from error
            self._groups.append(found.num_row_groups)
            self.rows += found.num_rows
            if bundles[-1] and waiting + found.num_rows > ROWS_DEALT:
                bundles.append([])
                waiting = 0
            bundles[-1].append(path)
            waiting += found.num_rows
        self.parts = max(1, -(-self.rows // part_rows))
        self._width = width
        self._copies = [(copies / f"rows-{number:06}.parquet", bundle) for number, bundle in enumerate(bundles)]

    def copy(self, rank: int, size: int) -> None:
        """Copy this process's share of the files."""
        for target, bundle in self._copies[rank::size] if self.parts > 1 else ():
            if not is_complete(target):
                self._copy(bundle, target)

    def _copy(self, bundle: Sequence[Path], target: Path) -> None:
        arrow = self._arrow
        try:
            tables = [arrow.parquet.read_table(path, schema=schema_of(self._width)) for path in bundle]
        except (OSError, arrow.ArrowException) as error:
            raise damaged(bundle[0], error) from error
        table = arrow.concat_tables(tables)
        table = table.filter(table["problem"].is_null())
        part = part_of(table["lot"].to_numpy(), self.parts)
        order, count = np.argsort(part, kind="stable"), np.bincount(part, minlength=self.parts)
        ends = np.cumsum(count)
        schema = table.schema.with_metadata({GROUPS: " ".join(map(str, np.flatnonzero(count)))})

        def write(file: object) -> None:
            with arrow.parquet.ParquetWriter(file, schema) as to:
                for number in np.flatnonzero(count):
                    rows = order[ends[number] - count[number] : ends[number]]
                    to.write_table(table.take(arrow.array(rows)), row_group_size=len(rows))

        atomic_write(target, write)

    def pieces(self, part: int) -> list[Piece]:
        """Where the rows of a part are."""
        if self.parts == 1:
            return [
                (path, group) for path, groups in zip(self.files, self._groups, strict=True) for group in range(groups)
            ]
        found = []
        for path, _ in self._copies:
            parts = self._arrow.parquet.read_schema(path).metadata[GROUPS].decode().split()
            if str(part) in parts:
                found.append((path, parts.index(str(part))))
        return found

    def clear(self) -> None:
        """Delete the copies."""
        for path, _ in self._copies:
            path.unlink(missing_ok=True)
