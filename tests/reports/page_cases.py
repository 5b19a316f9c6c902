"""Pages to test with: tables of any size with labels, probabilities and pictures that can be told apart."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.reports.page import MAX_BYTES, PageData, write_page
from sgoif.reports.page_data import Pairs
from sgoif.reports.page_json import suspicion_order
from sgoif.tasks.review import RankedReview

HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "<!-- <script> -->",
    "a \"quoted\", name's & <b>bold</b>",
    "two\nlines\r\nand\ttab",
    "line\u2028separator\u2029here",
    "=HYPERLINK(\"http://example.invalid\")",
    "'already quoted",
    "+1", "-2", "@import", "\tstart", "\rreturn",
    "写真/猫 🐈.png",
    "قطة/صورة\u202e.png",
    " spaces around ",
    "{{style}} ${x} %s",
    "long" * 50,
    "not-unicode-\udcff\udce9.png",
    "a;=cmd()\t+1,'x;'y", "\uff1dfull width;\uff20", 'said "=1" and "\'2"',
]  # fmt: skip


def png(red: int, green: int, blue: int, size: int = 8) -> bytes:
    """A plain square."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    lines = (b"\0" + bytes((red, green, blue)) * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def thumbnail(row: int) -> bytes:
    """A square whose colour tells the row."""
    return png(row % 256, row // 256 % 256, 80)


def page_data(rows: int = 60, classes: int = 4, hurt: int = 3, **changes: Any) -> PageData:
    """A table in no particular order: the name of a row says its number."""
    random = np.random.default_rng(rows + classes)
    given = random.integers(classes, size=rows)
    suggested = (given + random.integers(1, max(classes, 2), size=rows)) % classes
    probability = random.permutation(np.linspace(0.001, 0.999, rows))
    influence = random.normal(size=rows)
    numbers = np.r_[probability, 1 - probability]
    data = PageData(
        title="photos",
        source="/data/photos",
        class_names=[f"class {i}" for i in range(classes)],
        names=[f"class {given[i]}/img{i}.png" for i in range(rows)],
        table=ScoreTable(
            {
                "given_label": given,
                "predicted_label": suggested,
                "probability_wrong": probability,
                "confidence": random.uniform(size=rows),
                "influence": influence,
                "interval_low": influence - 0.5,
                "interval_high": influence + 0.5,
                "n_observations": random.integers(1, 30, size=rows),
                "is_label_issue": probability > 0.5,
            }
        ),
        harmed=random.integers(-1, rows, size=(rows, hurt)),
        thumbnail=thumbnail,
        noise_rate=(0.2, 0.15, 0.25),
        fdr=0.1,
        precision=[(100, 0.993), (1000, 0.95)],
        confusion=Pairs(np.r_[given, given], np.r_[suggested, given], numbers),
        history=[
            {"step": 50 * i, "residual_median": 3.0 / (i + 1), "tau": 2.0 / (i + 1), "confidence_mean": i / 40}
            for i in range(1, 40)
        ],
        facts={"model": "small ResNet", "epochs": "20", "seed": "0"},
        notes=["2 files could not be read and were left out."],
    )
    data = changed(data, **changes)
    return data if "review" in changes else replace(data, review=review_of(data))


def page_html(data: PageData, *, max_bytes: int = MAX_BYTES) -> str:
    """The page as one text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write_page(path, data, max_bytes=max_bytes)
        return path.read_text(encoding="utf-8")


def changed(data: PageData, **changes: Any) -> PageData:
    """The same page with other columns of its table, or other fields."""
    columns = {name: changes.pop(name, data.table[name]) for name in data.table.columns}
    return replace(data, table=ScoreTable(columns), **changes)


def review_of(data: PageData) -> RankedReview:
    """Looks drawn from the list as the page shows it."""
    order = suspicion_order(data.table)
    return RankedReview(order, data.table["probability_wrong"][order])


def as_pairs(matrix: np.ndarray[Any, Any]) -> Pairs:
    """The entries of a matrix of classes."""
    given, true = np.nonzero(matrix)
    return Pairs(given, true, matrix[given, true])


def as_matrix(pairs: Pairs, classes: int) -> np.ndarray[Any, Any]:
    """The matrix of some pairs, added up one by one."""
    matrix = np.zeros((classes, classes))
    np.add.at(matrix, (pairs.given, pairs.true), np.nan_to_num(pairs.number))
    return matrix


KINDS = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4"}


def stored(html: str) -> dict[str, Any]:
    """The data inside a page, columns as arrays."""
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', html, re.S)
    assert found is not None
    report: dict[str, Any] = json.loads(found[1])
    report["columns"] = {
        name: np.frombuffer(base64.b64decode(pack_array["data"]), dtype=KINDS[pack_array["type"]])
        for name, pack_array in report["columns"].items()
    }
    return report
