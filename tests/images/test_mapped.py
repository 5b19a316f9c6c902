"""Arrays on disk that are read without filling the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sgoif.images.mapped import Mapped


def resident() -> int:
    """Bytes of files that this process holds in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells what a process holds")
def test_what_was_read_does_not_stay_in_memory(tmp_path: Path) -> None:
    values = np.arange(2**28, dtype=np.uint8).reshape(2**12, 1, 256, 256)
    np.save(tmp_path / "a.npy", values)
    mapped = Mapped(np.load(tmp_path / "a.npy", mmap_mode="r"))
    before = resident()
    for start in range(0, len(mapped), 64):
        rows = np.arange(start, start + 64)
        assert np.array_equal(mapped[rows], values[rows])
    assert resident() - before < 2**27
    assert (len(mapped), mapped.shape) == (2**12, (2**12, 1, 256, 256))
    assert np.array_equal(mapped[7], values[7])


def test_an_array_in_memory_is_read_alike() -> None:
    values = np.arange(24).reshape(4, 6)
    assert np.array_equal(Mapped(values)[[3, 1]], values[[3, 1]])
