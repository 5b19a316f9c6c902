"""Damage to files: flipped, lost, repeated and foreign bytes; and damage from within, where the file stays well formed.

A checksum or a syntax error ends the reading of most damaged files at once. So archives are also packed again around
damaged entries, JSON is changed value by value, and tables are made with cells of odd kinds.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
from typing import Any

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1)
WORDS = (
    b"\0", b"\xff" * 8, b"\n", b"\r\n", b",", b'"', b";", b"\t", b"'", b"=", b"../", b"/etc/passwd", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"NaN", b"-1", b"1e999", b"Infinity", b"null", b"{", b"}", b"[" * 30, b"(" * 30, b"9" * 40,
    b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"'shape': (-1,)", b"'descr': '|O'", b"(1 << 60,)",
    b"cos\nsystem\n", b"\x80\x04", b"class0", b"train", b"\x1b[2J", "ä€😀".encode(), b"keep", b"relabel", b"drop",
)  # fmt: skip
"""Pieces that mean something to some reader."""
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1.5, -0.0, 1e308, float("nan"), float("inf"), 1 << 70, "", "x", "\0", "\ud800", "../..",
    [], {}, [[]], [None], {"a": 1}, "9" * 50, [0] * 40, "float16", "bfloat16", "load",
)  # fmt: skip
MOST = 60_000


def damaged(content: bytes, shape: str, draw: random.Random) -> bytes:
    """Damage that suits the kind of file, or any file."""
    kind = draw.random()
    if kind < 0.03:
        return draw.randbytes(draw.randrange(300))
    if kind < 0.35 or shape not in INSIDE:
        return bytewise(content, draw)
    return INSIDE[shape](content, draw)


def bytewise(content: bytes, draw: random.Random) -> bytes:
    """A few changes anywhere."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(data) + 1)
        if draw.random() < 0.4:  # heads decide more than the rest
            at = min(at, draw.randrange(128))
        act = draw.randrange(7)
        if act == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif act == 1 and at < len(data):
            data[at] = draw.randrange(256)
        elif act == 2:
            del data[at : at + draw.choice((1, 2, 8, 64, len(data)))]
        elif act == 3:
            data[at:at] = draw.choice(WORDS)
        elif act == 4:
            number, size = draw.choice(NUMBERS), draw.choice((1, 2, 4, 8))
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, draw.choice(("little", "big")))
        elif act == 5:
            data[at:at] = data[at : at + draw.choice((1, 4, 64, 512))]
        else:
            there = draw.randrange(len(data) + 1)
            size = draw.choice((1, 4, 16, 64))
            data[at : at + size] = data[there : there + size]
        del data[MOST + len(content) :]
    return bytes(data)


def _zip(content: bytes, draw: random.Random) -> bytes:
    """One entry damaged, the archive around it sound."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    name = draw.choice(list(entries))
    target = io.BytesIO()
    packing = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    if name == "meta.npy" and draw.random() < 0.8:
        head = entries[name][:128]
        text = _json(entries[name][128:], draw)
        entries[name] = head[:10] + _header(len(text)) + text
    elif draw.random() < 0.1:
        entries.pop(name)
    elif draw.random() < 0.1:
        entries[draw.choice(list(entries))] = entries[name]
    else:
        entries[name] = bytewise(entries[name], draw)
    with zipfile.ZipFile(target, "w", packing) as archive:
        for entry, data in entries.items():
            archive.writestr(entry if draw.random() < 0.98 else f"../{entry}", data)
        if draw.random() < 0.05:
            archive.filelist[0].file_size = draw.choice(NUMBERS) % (1 << 32)
    return target.getvalue()


def _header(length: int) -> bytes:
    """The rest of the 128 bytes before an array of so many bytes."""
    return f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({length},), }}".ljust(117).encode() + b"\n"


def _gzip(content: bytes, draw: random.Random) -> bytes:
    return gzip.compress(bytewise(gzip.decompress(content), draw), 1)


def _json(content: bytes, draw: random.Random) -> bytes:
    """One or two values replaced, removed or added."""
    if draw.random() < 0.02:
        return b'{"a":' * 3000 + b"1" + b"}" * 3000
    whole = json.loads(content)
    for _ in range(draw.choice((1, 1, 2))):
        whole = _changed(whole, draw)
    return json.dumps(whole).encode()


def _changed(value: Any, draw: random.Random) -> Any:
    odd = draw.choice(ODD)
    if draw.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return odd
    if isinstance(value, dict):
        key = draw.choice(list(value))
        act = draw.random()
        if act < 0.15:
            return {name: entry for name, entry in value.items() if name != key}
        if act < 0.25:
            return {**value, draw.choice(("x", "", "path", "version")): odd}
        return {**value, key: _changed(value[key], draw)}
    at = draw.randrange(len(value))
    act = draw.random()
    if act < 0.15:
        return value[:at] + value[at + 1 :]
    if act < 0.3:
        return [*value, odd]
    return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]


def _lines(content: bytes, draw: random.Random) -> bytes:
    """JSON lines: one changed from within, some moved."""
    lines = content.splitlines()
    at = draw.randrange(len(lines))
    if draw.random() < 0.8:
        lines[at] = _json(lines[at], draw)
    else:
        draw.shuffle(lines)
    return b"\n".join(lines) + draw.choice((b"\n", b"", b"\n\n"))


def _text(content: bytes, draw: random.Random) -> bytes:
    """Words of some meaning between and instead of cells."""
    cells = content.replace(b"\r\n", b"\n").split(b",")
    for _ in range(draw.choice((1, 2, 5))):
        at = draw.randrange(len(cells))
        cells[at] = draw.choice((draw.choice(WORDS), cells[at] + draw.choice(WORDS), draw.choice(cells)))
    return draw.choice((b",", b";", b"\t", b",")).join(cells)


def _pickle(content: bytes, draw: random.Random) -> bytes:
    """Whole instructions put in: numbers, names, tuples of tuples, places in the memo."""
    at = draw.randrange(len(content)) if draw.random() < 0.5 else min(len(content), draw.randrange(60))
    made = draw.choice(
        (
            b"r" + struct.pack("<I", draw.choice(NUMBERS) % (1 << 32)),
            b"B" + struct.pack("<I", draw.choice(NUMBERS) % (1 << 32)),
            b"\x8e" + struct.pack("<Q", draw.choice(NUMBERS)),
            b"\x96" + struct.pack("<Q", draw.choice(NUMBERS)),
            b"cos\nsystem\n(S'true'\ntR",
            b"cnumpy.core.multiarray\n_reconstruct\n",
            b")" + b"\x94h\x00h\x00\x86" * draw.choice((1, 40)),
            b"](" + b"2" * 30 + b"e",
            b"2" * draw.choice((1, 20)) + b"\x86s",
            b"0", b".", b"(", b"t", b"R", b"b", b"}", b"u", b"N", b"K\xff", b"\x8a\xff" + b"\x7f" * 255, b"\x8f",
        )
    )  # fmt: skip
    return content[:at] + made + content[at:]


def _table(content: bytes, draw: random.Random) -> bytes:
    """A sound Parquet file with cells of odd kinds."""
    import datetime
    import decimal

    import pyarrow
    import pyarrow.parquet

    columns = {
        "text": pyarrow.array(["class0/0.png", None, "a\0b", "../x"]),
        "bytes": pyarrow.array([b"\xff\xfe", b"class0/0.png", None, b""]),
        "broken": pyarrow.array([b"\xff", b"\xed\xa0\x80", b"a", None]).view(pyarrow.string()),
        "numbers": pyarrow.array([0, -1, 1 << 62, None]),
        "floats": pyarrow.array([0.0, float("nan"), float("inf"), 1e300]),
        "lists": pyarrow.array([[1], [], None, [2, 3]]),
        "structs": pyarrow.array([{"bytes": b"\x89PNG", "path": "class0/0"}, {"bytes": None, "path": ".."}, None, {}]),
        "dates": pyarrow.array([datetime.datetime(2020, 1, 1), None, None, datetime.datetime(1, 1, 1)]),
        "stamps": pyarrow.array([0, 1, (1 << 63) - 1, -(1 << 62)]).cast(pyarrow.int64()).view(pyarrow.timestamp("us")),
        "decimals": pyarrow.array([decimal.Decimal("1.5"), None, decimal.Decimal("-7"), decimal.Decimal(0)]),
        "words": pyarrow.array(["a", "b", "a", None]).dictionary_encode(),
        "bools": pyarrow.array([True, False, None, True]),
        "nulls": pyarrow.nulls(4),
    }  # fmt: skip
    names = draw.choice((("path", "label"), ("image", "label"), ("image", "label", "split"), ("label",), ("path",) * 2))
    chosen = [columns[draw.choice(list(columns))] for _ in names]
    table = pyarrow.Table.from_arrays(chosen, names=list(names))
    if draw.random() < 0.3:
        kind = {"_type": "ClassLabel", "names": draw.choice((["a", "b"], [], "ab", None, [1, 2]))}
        about = json.dumps({"info": {"features": {"label": kind}}}).encode()
        table = table.replace_schema_metadata({b"huggingface": about})
    target = io.BytesIO()
    pyarrow.parquet.write_table(table, target, coerce_timestamps=None)
    return target.getvalue()


INSIDE = {"zip": _zip, "json": _json, "lines": _lines, "text": _text, "pickle": _pickle, "table": _table, "gzip": _gzip}
