"""One encoded image to one upright PIL image of mode "L" or "RGB".

Only raster formats that Pillow decodes by itself are opened; formats that start another program (EPS, PDF) are not.
"""

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from sgoif.core.types import Array
from sgoif.images.errors import UnreadableImageError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
    | {".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".tga", ".ico"}
)
WANTED = ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "TGA", "ICO")
MOST_PIXELS = 178_956_970
"""Pillow's own limit for decompression bombs, kept here even where a program has lifted Pillow's."""
MOST_BYTES = 1 << 31
"""Memory that one image may take while it is decoded."""
NARROW = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
"""Bytes that Pillow keeps for a pixel; 4 in all other modes."""
DECODERS = {"JPEG2000": 5, "WEBP": 4, "AVIF": 2, "JPEG": 1, "MPO": 1}
"""Bytes for every number of a pixel that decoders keep beside that: as 32 bits, whole frames, coefficients."""
STRIP = 1_000_000
"""Pixels that are converted at a time."""

Image.init()
FORMATS = [name for name in WANTED if name in Image.OPEN]


class LargeImageError(Exception):
    """The image is larger than the caller wants to decode beside others."""


def decode(source: Path | bytes, most: int | None = None, least: int | None = None) -> Image.Image:
    """Decode a file or its bytes; `UnreadableImageError` says why that cannot be done.

    More than `most` pixels raise `LargeImageError` before anything is decoded. With `least`, a large JPEG may come at a
    half, a quarter or an eighth of its size, with at least so many pixels a side; that takes a fraction of the time.
    """
    try:
        with _opened(source) as image:
            if most is not None and image.width * image.height > most:
                raise LargeImageError
            if least is not None:
                image.draft(None, (least, least))
            upright = _upright(image)
            upright.format = image.format
            return upright
    except (UnreadableImageError, LargeImageError):
        raise
    except Exception as error:  # decoders raise whatever they stumble over
        raise UnreadableImageError(reason(error)) from error


def size_of(source: Path | bytes) -> tuple[int, int]:
    """Width and height from the header alone, as stored: orientation is not applied."""
    try:
        with _opened(source) as image:
            return image.size
    except UnreadableImageError:
        raise
    except Exception as error:
        raise UnreadableImageError(reason(error)) from error


def _opened(source: Path | bytes) -> Image.Image:
    empty = not source if isinstance(source, bytes) else os.stat(source).st_size == 0
    if empty:
        raise UnreadableImageError("the file is empty")
    image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    width, height = image.size
    if width < 1 or height < 1:
        image.close()
        raise UnreadableImageError(f"the image has no pixels ({width}×{height})")
    if width * height > MOST_PIXELS:
        image.close()
        raise UnreadableImageError(f"{width}×{height} pixels are more than the limit of {MOST_PIXELS:,}")
    beside = DECODERS.get(image.format or "", 0) * len(image.getbands())
    needed = width * height * (NARROW.get(image.mode, 4) + beside + 4)  # the image as it is returned has up to 4
    if needed > MOST_BYTES:
        image.close()
        raise UnreadableImageError(
            f"{width}×{height} pixels of a {image.format} file need up to {needed:,} bytes, more than the limit of"
            f" {MOST_BYTES:,}; save it smaller"
        )
    return image


def reason(error: Exception) -> str:
    """Why an image cannot be read, in words."""
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than the limit of {MOST_PIXELS:,}"
    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror.lower()}"
    return f"damaged or cut off: {error}" if str(error) else f"damaged ({type(error).__name__})"


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    with suppress(Exception):  # damaged EXIF is no reason to lose the image
        ImageOps.exif_transpose(image, in_place=True)
    return to_plain(image)


def to_plain(image: Image.Image) -> Image.Image:
    """Any mode to "L" or "RGB"; what is transparent lies on white."""
    mode = image.mode
    if mode.startswith("I") or mode == "F":  # a transparent shade of these is no more than one shade
        return _in_bytes(image)
    if mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        return _on_white(image, grey=mode in ("L", "LA", "La", "1"))
    if mode in ("L", "RGB"):
        return image
    if mode == "1":
        return image.convert("L")
    if mode == "LAB":
        transform = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), mode, "RGB")
        converted = ImageCms.applyTransform(image, transform)
        assert converted is not None
        return converted
    return image.convert("RGB")


def strips(image: Image.Image, most: int = STRIP) -> Iterator[Image.Image]:
    """Rows in portions of about so many pixels, so that a large image is not held several times."""
    rows = max(most // image.width, 1)
    if rows >= image.height:
        yield image
        return
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(image: Image.Image, *, grey: bool) -> Image.Image:
    mode = "L" if grey else "RGB"
    whole, top = Image.new(mode, image.size), 0
    for strip in strips(image):
        if strip.mode in ("La", "RGBa"):
            strip = strip.convert("LA" if strip.mode == "La" else "RGBA")
        layer = strip.convert("RGBA")
        page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        page.alpha_composite(layer)
        whole.paste(page.convert(mode), (0, top))
        top += strip.height
    return whole


def _in_bytes(image: Image.Image) -> Image.Image:
    """Numbers of an unknown range to 0..255, by the least and the largest of all, a strip at a time."""
    ends = [(float(found.min()), float(found.max())) for found in map(_numbers, map(np.asarray, strips(image)))]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    whole, top = Image.new("L", image.size), 0
    for strip in strips(image):
        whole.paste(Image.fromarray(_scaled(np.asarray(strip), low, high)), (0, top))
        top += strip.height
    return whole


def _numbers(values: Array) -> Array:
    return np.nan_to_num(values.astype(np.float64), copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def _scaled(values: Array, low: float, high: float) -> Array:
    """8, 12 or 16 bits, the unit interval, or else from least to largest."""
    numbers = _numbers(values)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        scaled = numbers * 255
    elif low >= 0 and high <= 65535:
        # Cameras and scanners store 12 bits in 16; read as 16 they would keep 16 shades of grey.
        scaled = numbers * (255 / next(2**bits - 1 for bits in (8, 12, 16) if high <= 2**bits - 1))
    else:
        scaled = (numbers - low) * (255 / (high - low) if high > low else 0.0)
    rounded: Array = np.rint(scaled).astype(np.uint8)
    return rounded
