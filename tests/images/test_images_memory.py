"""One image takes little more memory than its pixels, whatever they are stored as; what would take more is refused."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgoif.images import decode as module
from sgoif.images.backends import Arrays
from sgoif.images.decode import decode, to_plain
from sgoif.images.errors import UnreadableImageError

pytest.importorskip("resource")
WORKER = Path(__file__).parent / "memory_of_an_image.py"
SLACK = 58_000_000
"""Room for strips and for what the allocator keeps."""
MODES = ["I;16", "I", "F", "LA", "La", "PA", "RGBA", "RGBa"]


def taken(cases: list[tuple[str, int]]) -> list[int]:
    done = subprocess.run([sys.executable, str(WORKER), json.dumps(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def deep_png(path: Path, side: int) -> Path:
    """16 bits of grey, all of one shade: a small file of many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj()
    packed = b"".join(packer.compress(bytes(1 + 2 * side)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    return path


def test_files_of_deep_pixels_take_little_more_than_their_pixels(tmp_path: Path) -> None:
    deep = deep_png(tmp_path / "deep.png", 5000)
    assert deep.stat().st_size < 100_000
    cases = [(str(deep), 5000)]
    for mode in ("I", "F"):
        Image.new(mode, (3000, 3000), 7).save(tmp_path / f"{mode}.tif", compression="tiff_deflate")
        cases.append((str(tmp_path / f"{mode}.tif"), 3000))
    for (what, side), found, bytes_each in zip(cases, taken(cases), (3, 5, 5), strict=True):
        assert found < bytes_each * side**2 + SLACK, what


def test_every_mode_takes_no_more_than_what_it_becomes() -> None:
    side = 3000
    cases = [(what, side) for what in (*MODES, "L shade", "P shade", "RGB shade")]
    most = {"I;16": 1, "I": 1, "F": 1, "LA": 1, "La": 1, "L shade": 1}
    for (what, _), found in zip(cases, taken(cases), strict=True):
        assert found < most.get(what, 4) * side**2 + SLACK, what


@pytest.mark.parametrize("mode", MODES)
def test_strips_change_no_pixel(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray((values[..., 0].astype(kind) - (mode != "I;16") * 90) * 11)
    elif mode == "PA":
        image = Image.fromarray(values[..., :3]).quantize(16).convert("PA")
        image.putalpha(Image.fromarray(values[..., 3]))
    else:
        image = Image.fromarray(values).convert("LA" if mode in ("LA", "La") else "RGBA").convert(mode)
    assert image.mode == mode
    whole = np.asarray(to_plain(image))
    monkeypatch.setattr(module.strips, "__defaults__", (100,))
    assert len(list(module.strips(image))) == 14
    assert np.array_equal(np.asarray(to_plain(image)), whole)


def test_numbers_of_an_archive_are_scaled_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((3, 20, 10, 3), dtype=np.float32)
    whole = [np.asarray(Arrays([values], scale=255.0).image(row)) for row in range(3)]
    monkeypatch.setattr("sgoif.images.backends.STRIP", 60)
    for row in range(3):
        assert np.array_equal(np.asarray(Arrays([values], scale=255.0).image(row)), whole[row])
    values[1, 15, 3, 0] = np.inf
    with pytest.raises(UnreadableImageError, match="infinite"):
        Arrays([values], scale=255.0).image(1)


def test_bytes_are_limited_as_well_as_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    Image.new("RGB", (100, 100)).save(target, "WEBP")
    assert decode(target.getvalue()).size == (100, 100)
    monkeypatch.setattr(module, "MOST_BYTES", 150_000)
    with pytest.raises(UnreadableImageError, match=r"100×100 pixels of a WEBP file need up to 200,000 bytes.*smaller"):
        decode(target.getvalue())
    plain = io.BytesIO()
    Image.new("RGB", (100, 100)).save(plain, "PNG")
    assert decode(plain.getvalue()).size == (100, 100)
