"""Tables of parts, each with the worst first, as one: never more of them in memory than a few rows of each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.sharded.feature_files import pyarrow_for_shards

BY = "probability_wrong"
IN_MEMORY = 4_000_000
"""Rows of all parts together that are held at a time."""


def merged(paths: Sequence[Path], rows: int = IN_MEMORY) -> Iterator[Any]:
    """The rows of all tables by falling probability, some at a time; equal ones in the order of the tables.

    What is at least as probable as the last row held of every table cannot be preceded by a row that is not held yet.
    """
    arrow = pyarrow_for_shards("Reading tables")
    each = max(1, rows // max(len(paths), 1))
    files = [arrow.parquet.ParquetFile(path) for path in paths]
    try:
        coming = [file.iter_batches(each) for file in files]
        held = [_next(batches, arrow) for batches in coming]
        while any(table is not None for table in held):
            bound = max(float(table[BY][-1].as_py()) for table in held if table is not None)
            out = []
            for number, table in enumerate(held):
                if table is None:
                    continue
                count = int(np.searchsorted(-table[BY].to_numpy(), -bound, side="right"))
                out.append(table.slice(0, count))
                held[number] = table.slice(count) if count < len(table) else _next(coming[number], arrow)
            found = arrow.concat_tables(out)
            yield found.take(arrow.array(np.argsort(-found[BY].to_numpy(), kind="stable")))
    finally:
        for file in files:
            file.close()


def _next(batches: Iterator[Any], arrow: Any) -> Any:
    """The next rows as a table; None where there are no more."""
    for batch in batches:
        if len(batch):
            return arrow.Table.from_batches([batch])
    return None
