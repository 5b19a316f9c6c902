"""Where shards lie: local files, ranges of them such as `train-{000..999}.tar`, and what fsspec opens."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sgoif.errors import MissingExtraError, SgoifError
from sgoif.images.errors import why
from sgoif.images.text import as_unicode, shown

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_SHARDS = 10_000_000


class ShardError(SgoifError, ValueError):
    """A shard cannot be read, or the features of shards do not fit together."""


def addresses_of(given: Sequence[str]) -> list[str]:
    """The addresses that are meant, each once: ranges written out, local paths from the root of the file system."""
    found: dict[str, None] = {}
    for text in given:
        pieces = RANGE.split(text)  # text, first, last, text, first, last, text
        ranges = [range(int(low), int(high) + 1) for low, high in zip(pieces[1::3], pieces[2::3], strict=True)]
        count = 1
        for each in ranges:
            count *= len(each)
        if not 0 < count <= MOST_SHARDS:
            raise ShardError(f"{shown(text)} means {count:,} shards; expected 1 to {MOST_SHARDS:,}, as {{000..999}}")
        widths = [len(low) for low in pieces[1::3]]
        for numbers in itertools.product(*ranges):
            written = [f"{number:0{width}}" for number, width in zip(numbers, widths, strict=True)]
            address = pieces[0] + "".join(a + b for a, b in zip(written, pieces[3::3], strict=True))
            found[address if "://" in address else os.path.abspath(address)] = None
    if not found:
        raise ShardError("no shards were given; expected tar files, such as train-{000..999}.tar")
    return list(found)


def name_of(address: str) -> str:
    """The file name at the end of an address."""
    return as_unicode(address.rpartition("/")[2])


@contextmanager
def opened(address: str) -> Iterator[Any]:
    """The bytes of a shard, to be read and sought in."""
    if "://" in address:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtraError("fsspec", "remote", f"Reading {shown(address)}") from error
    try:
        file = fsspec.open(address, "rb").open() if "://" in address else open(address, "rb")  # noqa: SIM115
    except Exception as error:  # each store has errors of its own, or asks for another package
        raise ShardError(f"{shown(address)} cannot be opened: {why(error)}") from error
    with file:
        yield file
