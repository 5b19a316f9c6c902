"""Any file to an upright image of mode L or RGB, or to a reason."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from image_cases import picture, same_pixels
from PIL import Image, ImageOps

from sgoif.images import decode as module
from sgoif.images.decode import decode, size_of, to_plain
from sgoif.images.errors import UnreadableImageError


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, format, **options)  # type: ignore[arg-type]
    return target.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "TGA"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_plain_images_come_back_exactly(tmp_path: Path, format: str, mode: str) -> None:
    image = picture(0, mode=mode)
    data = encoded(image, format)
    (tmp_path / "image").write_bytes(data)
    assert same_pixels(decode(data), image)
    assert same_pixels(decode(tmp_path / "image"), image)
    assert size_of(data) == image.size


@pytest.mark.parametrize(("least", "side"), [(400, 400), (399, 400), (200, 200), (199, 200), (60, 100), (1, 50)])
def test_a_large_jpeg_comes_smaller_where_that_is_enough(least: int, side: int) -> None:
    image = Image.linear_gradient("L").resize((600, 400))
    found = decode(encoded(image, "JPEG", quality=95), least=least)
    assert found.size == (side * 3 // 2, side)
    expected = np.asarray(image.resize(found.size, Image.Resampling.BOX), dtype=float)
    assert np.abs(np.asarray(found) - expected).mean() < 2
    assert decode(encoded(image), least=least).size == (600, 400)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_undone(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(picture(1, 16, 8), format, exif=exif, **options)
    found = decode(data)
    with Image.open(io.BytesIO(data)) as image:
        assert same_pixels(found, ImageOps.exif_transpose(image))
    if format != "JPEG":
        turned = found.size == (8, 16)
        assert turned == (orientation >= 5)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_lose_the_image() -> None:
    data = encoded(picture(2), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff\xff")
    assert decode(data).size == (16, 12)


def test_transparency_lies_on_white() -> None:
    values = np.random.default_rng(0).integers(0, 256, (12, 16, 4), dtype=np.uint8)
    alpha = values[..., 3:].astype(float) / 255
    expected = values[..., :3] * alpha + 255 * (1 - alpha)
    found = decode(encoded(Image.fromarray(values)))
    assert found.mode == "RGB"
    assert np.abs(np.asarray(found).astype(float) - expected).max() <= 1
    grey = Image.fromarray(values).convert("LA")
    shade, cover = (np.asarray(grey)[..., i].astype(float) for i in (0, 1))
    found = decode(encoded(grey))
    assert found.mode == "L"
    assert np.abs(np.asarray(found) - (shade * cover + 255 * (255 - cover)) / 255).max() <= 1
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert np.asarray(decode(encoded(clear))).min() == 255


def test_palettes_with_and_without_a_transparent_colour() -> None:
    image = picture(3).quantize(16)
    assert same_pixels(decode(encoded(image)), image.convert("RGB"))
    image.putpixel((0, 0), 5)
    image.putpixel((1, 0), 4)
    with_hole = decode(encoded(image, transparency=5))
    assert with_hole.mode == "RGB"
    assert with_hole.getpixel((0, 0)) == (255, 255, 255)
    assert with_hole.getpixel((1, 0)) == image.convert("RGB").getpixel((1, 0))


def test_a_transparent_colour_of_a_grey_or_rgb_image() -> None:
    grey = Image.fromarray(np.array([[10, 20], [30, 10]], dtype=np.uint8))
    found = decode(encoded(grey, transparency=10))
    assert found.mode == "L"
    assert np.asarray(found).tolist() == [[255, 20], [30, 255]]


def test_sixteen_bits_with_a_transparent_shade_keep_their_shades() -> None:
    grey = Image.fromarray((np.arange(400).reshape(20, 20) * 160).astype(np.uint16))
    plain, chosen = io.BytesIO(), io.BytesIO()
    grey.save(plain, "PNG")
    grey.save(chosen, "PNG", transparency=0)
    assert np.array_equal(np.asarray(decode(chosen.getvalue())), np.asarray(decode(plain.getvalue())))


def test_one_bit_sixteen_bits_and_floats() -> None:
    dots = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    assert np.asarray(decode(encoded(dots))).tolist() == [[0, 255], [255, 0]]
    deep = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    for format in ("PNG", "TIFF"):
        found = decode(encoded(Image.fromarray(deep), format))
        assert found.mode == "L"
        assert np.asarray(found).tolist() == [[0, 1], [128, 255]]
    unit = np.array([[0.0, 0.5], [0.25, 1.0]], dtype=np.float32)
    assert np.asarray(decode(encoded(Image.fromarray(unit), "TIFF"))).tolist() == [[0, 128], [64, 255]]
    whole = np.array([[0, 65535]], dtype=np.int32)
    assert np.asarray(decode(encoded(Image.fromarray(whole), "TIFF"))).tolist() == [[0, 255]]


def test_the_range_of_numbers_is_told_from_their_values() -> None:
    def to_bytes(row: list[float], kind: type) -> list[int]:
        return np.asarray(to_plain(Image.fromarray(np.array([row], dtype=kind))))[0].tolist()

    assert to_bytes([0, 4095], np.uint16) == [0, 255]
    assert to_bytes([0, 200], np.uint16) == [0, 200]
    assert to_bytes([-1.0, 0.0, 1.0], np.float32) == [0, 128, 255]
    assert to_bytes([5e5, 5e5], np.float32) == [0, 0]
    assert to_bytes([np.nan, np.inf, 1.0], np.float32) == [0, 0, 255]


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB"])
def test_other_colour_spaces_become_rgb(mode: str) -> None:
    if mode == "LAB":
        found = decode(encoded(Image.new("LAB", (4, 4), (0, 128, 128)), "TIFF"))
        assert np.asarray(found).max() < 10  # black
        found = to_plain(Image.new("LAB", (4, 4), (255, 128, 128)))
        assert np.asarray(found).min() > 245
        return
    red = Image.new("RGB", (16, 16), (200, 30, 40)).convert(mode)
    found = decode(encoded(red, "TIFF" if mode == "CMYK" else "JPEG"))
    assert found.mode == "RGB"
    assert np.abs(np.asarray(found).astype(int) - (200, 30, 40)).max() <= 6


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data).getpixel((0, 0)) == (255, 0, 0)


def huge_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


UNREADABLE = {
    "empty": (b"", "empty"),
    "text": (b"this is not an image at all", "not an image"),
    "cut": (encoded(picture(4, 64, 64))[:2000], "cut off"),
    "cut jpeg": (encoded(picture(4, 64, 64), "JPEG")[:900], "cut off"),
    "only a header": (encoded(picture(4))[:30], "cut off|not an image"),
    "bomb": (huge_png(40_000, 40_000), "more pixels|more than the limit"),
    "no width": (huge_png(0, 10), "no pixels|not an image|damaged"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "not an image"),
}


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_says_why(tmp_path: Path, case: str) -> None:
    data, reason = UNREADABLE[case]
    (tmp_path / "image.png").write_bytes(data)
    for source in (data, tmp_path / "image.png"):
        with pytest.raises(UnreadableImageError, match=reason):
            decode(source)


def test_the_limit_holds_where_a_program_lifted_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(UnreadableImageError, match="more than the limit"):
        decode(huge_png(40_000, 40_000))
    monkeypatch.setattr(module, "MOST_PIXELS", 100)
    with pytest.raises(UnreadableImageError, match=r"16×12 pixels"):
        decode(encoded(picture(5)))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError, match="no such file"):
        decode(tmp_path / "none.png")
    with pytest.raises(UnreadableImageError, match="directory"):
        decode(tmp_path)
