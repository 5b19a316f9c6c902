"""Shards of small pictures, some under a wrong label, and the commands that read them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from warm_processes import WarmProcess, python

PART_ROWS = 130
COMMAND = """
import sys
from pytest import MonkeyPatch
from backbone_cases import offer
from sgoif.cli import main
offer(MonkeyPatch())
sys.exit(main(sys.argv[1:]))
"""


def picture(seed: int, kind: int) -> bytes:
    """Stripes, a grid or rings."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:24, 0:24] / 24
    wave = (x, x * y * 4, np.hypot(x - 0.5, y - 0.5) * 3)[kind]
    values = 127 + 70 * np.sin(12 * wave + rng.uniform(0, 6))[..., None] + rng.normal(0, 12, (24, 24, 3))
    file = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(file, "png")
    return file.getvalue()


def tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def pairs(first: int, count: int) -> Iterable[tuple[str, bytes]]:
    """Pictures with labels, of which every twelfth is wrong; by turns in a .cls and in a .json file."""
    for number in range(first, first + count):
        kind = number % 3
        label = (kind + (number % 12 == 5)) % 3
        yield f"train/{number:05}.png", picture(number, kind)
        if number % 2:
            yield f"train/{number:05}.cls", str(label).encode()
        else:
            yield f"train/{number:05}.json", json.dumps({"label": label, "width": 24}).encode()


def make_shards(folder: Path, shards: int = 4, each: int = 60) -> str:
    """Shards, and the range that means them."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        (folder / f"part-{shard:03}.tar").write_bytes(tar(pairs(shard * each, each)))
    return f"{folder}/part-{{000..{shards - 1:03}}}.tar"


def command(*words: str, rank: int | None = None, world: int = 2, port: int = 0, **variables: str) -> WarmProcess:
    """The command line, which knows a small network; as torchrun starts it where a rank is given."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port)} if rank is not None else {}  # fmt: skip
    return python(COMMAND, *words, **place, **variables)


def finished(*processes: WarmProcess) -> list[tuple[str, str]]:
    told = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), told
    return told


def tables(folder: Path) -> dict[str, Any]:
    """Every Parquet file of a folder, as rows."""
    import pyarrow.parquet

    return {path.name: pyarrow.parquet.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))}
