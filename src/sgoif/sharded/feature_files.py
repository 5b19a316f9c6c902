"""Files of features: what is in them, and how the rows of one part are read from all of them.

shard, key     where the image is: a file name, and the key in that tar file
lot            a digest of both, by which rows are dealt into parts whatever the order of shards
label          as it was written there
features       float16 [width]; null where `problem` says why there are none
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from sgoif.core.provenance import write_json
from sgoif.core.types import Array
from sgoif.errors import MissingExtraError
from sgoif.images.text import shown
from sgoif.sharded.addresses import ShardError, name_of

FACTS = "features.json"
ROWS = 8192
"""Rows of a group in a file of features, at least."""


def pyarrow_for_shards(purpose: str) -> Any:
    """The package pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", purpose) from error
    return pyarrow


def schema_of(width: int) -> Any:
    """The columns of a file of features."""
    arrow = pyarrow_for_shards("Writing features")
    kinds = {"shard": arrow.string(), "key": arrow.string(), "lot": arrow.uint64(), "label": arrow.string()}
    return arrow.schema(
        [*kinds.items(), ("features", arrow.list_(arrow.float16(), width)), ("problem", arrow.string())]
    )


def as_table(
    shards: Sequence[str],
    keys: Sequence[str],
    labels: Sequence[str | None],
    problems: Sequence[str | None],
    rows: Array | None,
    width: int,
) -> Any:
    """Rows for a file; `rows` are the features of those without a problem."""
    arrow = pyarrow_for_shards("Writing features")
    missing = np.array([problem is not None for problem in problems])
    whole = np.zeros((len(keys), width), dtype=np.float16)
    if rows is not None:
        whole[~missing] = rows
    values = arrow.array(whole.reshape(-1))
    features = arrow.FixedSizeListArray.from_arrays(values, width, mask=arrow.array(missing))
    texts = (arrow.array(values, arrow.string()) for values in (shards, keys, labels, problems))
    shard, key, label, problem = texts
    columns = [shard, key, arrow.array(_lots(shards, keys)), label, features, problem]
    return arrow.table(columns, schema=schema_of(width))


def _lots(shards: Sequence[str], keys: Sequence[str]) -> Array:
    pairs = zip(shards, keys, strict=True)
    digests = (hashlib.blake2b(f"{shard}\0{key}".encode(), digest_size=8).digest() for shard, key in pairs)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def gathered(tables: Iterable[Any], least: int = ROWS) -> Iterator[Any]:
    """The same rows in fewer and larger tables."""
    arrow = pyarrow_for_shards("Writing features")
    waiting, count = list[Any](), 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        if count >= least:
            yield arrow.concat_tables(waiting).combine_chunks()
            waiting, count = [], 0
    if waiting:
        yield arrow.concat_tables(waiting).combine_chunks()


def is_complete(path: Path) -> bool:
    """Whether a Parquet file is there and has its end."""
    arrow = pyarrow_for_shards("Reading features")
    try:
        arrow.parquet.read_metadata(path)
    except (OSError, arrow.ArrowException):
        return False
    return True


class FeatureFolder:
    """A folder of such files, all by one network."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, facts: dict[str, Any]) -> Self:
        """Say by which network the features are, or find that they are by this one."""
        strange = any(self.path.glob("*.parquet"))  # looked for first: another process may begin meanwhile
        there = self.facts()
        if there is None:
            if strange:
                raise ShardError(f"{shown(self.path)} holds Parquet files of others; choose another folder with --out")
            write_json(self.path / FACTS, facts)
        elif there != facts:
            known = f"{there.get('backbone')} at {there.get('size')} pixels"
            raise ShardError(
                f"{shown(self.path)} holds features by {shown(known)}, and these would be by {facts['backbone']!r} at"
                f" {facts['size']} (or of other weights); choose another folder with --out"
            )
        return self

    def facts(self) -> dict[str, Any] | None:
        """By which network the features are; None where nobody has said so."""
        try:
            found = json.loads((self.path / FACTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ShardError(f"{shown(self.path / FACTS)} cannot be read: {error}") from error
        return found if isinstance(found, dict) else {}

    def file_of(self, address: str) -> Path:
        """The file for a shard: its name, made harmless, and a digest, since shards of several folders share names."""
        name = "".join(c if c.isalnum() and c.isascii() else "-" for c in name_of(address))[-80:]
        digest = hashlib.blake2b(address.encode(errors="surrogateescape"), digest_size=6).hexdigest()
        return self.path / f"{name}-{digest}.parquet"

    def files(self) -> list[Path]:
        """All files, in an order that does not depend on who wrote them when."""
        return sorted(self.path.glob("*.parquet"))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with a label and features, in the order of their lots."""

    shard: list[str]
    key: list[str]
    label: list[str]
    features: Array


Piece = tuple[Path, int]
"""A group of rows: file and number."""


def read_rows(pieces: Sequence[Piece], width: int) -> Rows:
    """The rows of some groups. Memory holds the features once."""
    arrow = pyarrow_for_shards("Reading features")
    names = ["shard", "key", "lot", "label"]
    tables = [_group(piece, [*names, "problem"]) for piece in pieces]
    tables = [table.filter(table["problem"].is_null()).select(names) for table in tables]
    texts = arrow.concat_tables(tables)
    sequence = np.argsort(texts["lot"].to_numpy(), kind="stable")
    features = np.empty((len(texts), width), dtype=np.float16)
    place = np.empty(len(texts), dtype=np.int64)
    place[sequence] = np.arange(len(texts))
    start = 0
    for piece, table in zip(pieces, tables, strict=True):
        found = _group(piece, ["features"])["features"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        features[place[start : start + len(table)]] = found.reshape(-1, width)
        start += len(table)
    texts = texts.take(arrow.array(sequence))
    return Rows(texts["shard"].to_pylist(), texts["key"].to_pylist(), texts["label"].to_pylist(), features)


def _group(piece: Piece, columns: Sequence[str]) -> Any:
    path, number = piece
    arrow = pyarrow_for_shards("Reading features")
    try:
        with arrow.parquet.ParquetFile(path) as file:
            return file.read_row_group(number, columns=list(columns))
    except (OSError, ValueError, KeyError, arrow.ArrowException) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ShardError:
    """The sentence for a file of features that cannot be read."""
    return ShardError(
        f"{shown(path)} is not a readable file of features ({error}): delete it and run sgoif features again"
    )


def part_of(lots: Array, parts: int) -> Array:
    """The part of every row, by the upper half of its lot."""
    return np.asarray(((lots >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32), dtype=np.int64)
