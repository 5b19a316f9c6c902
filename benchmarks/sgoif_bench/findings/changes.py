"""What is done to a picture so that there is something to find. Every change is random within limits."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

Picture = Image.Image
Change = Callable[[Picture, Generator], Picture]
QUALITY = 92


def encoded(picture: Picture, suffix: str, quality: int = QUALITY) -> bytes:
    """The bytes of a file."""
    target = io.BytesIO()
    if suffix == ".png":
        picture.save(target, "PNG")
    else:
        picture.save(target, "JPEG", quality=quality)
    return target.getvalue()


def nothing(picture: Picture, rng: Generator) -> Picture:
    """As it is."""
    del rng
    return picture


def dark(picture: Picture, rng: Generator) -> Picture:
    """A twentieth to a quarter of the light."""
    share = rng.uniform(0.05, 0.25)
    return picture.point(lambda level: round(level * share))


def bright(picture: Picture, rng: Generator) -> Picture:
    """White but for 1 to 4% of what there was."""
    share = rng.uniform(0.01, 0.04)
    return picture.point(lambda level: round(255 - (255 - level) * share))


def blurry(picture: Picture, rng: Generator) -> Picture:
    """A Gaussian blur of 2 to 4 pixels where the longer side has 256, and where it has fewer."""
    return picture.filter(ImageFilter.GaussianBlur(rng.uniform(2, 4) * max(1.0, max(picture.size) / 256)))


def empty(picture: Picture, rng: Generator) -> Picture:
    """One colour, and noise of one level."""
    colour = rng.integers(20, 235, 3)
    return Image.fromarray((colour + rng.integers(-1, 2, (picture.height, picture.width, 3))).astype(np.uint8))


def strip(picture: Picture, rng: Generator) -> Picture:
    """A strip that is 2.5 to 4 times as elongated."""
    share = rng.uniform(2.5, 4)
    width, height = picture.size
    if width >= height:
        return picture.crop((0, 0, width, max(1, round(height / share))))
    return picture.crop((0, 0, max(1, round(width / share)), height))


def smaller(picture: Picture, rng: Generator) -> Picture:
    """A quarter to two fifths of the size."""
    return resized(picture, rng.uniform(0.25, 0.4))


def larger(picture: Picture, rng: Generator) -> Picture:
    """Two and a half to four times the size."""
    return resized(picture, rng.uniform(2.5, 4))


def grey(picture: Picture, rng: Generator) -> Picture:
    """Without colour, stored with one channel or with three."""
    shades = picture.convert("L")
    return shades if rng.random() < 0.5 else shades.convert("RGB")


def narrowed(picture: Picture, rng: Generator) -> Picture:
    """An eighth of the width is cut off."""
    del rng
    return picture.crop((0, 0, picture.width * 7 // 8, picture.height))


def framed(picture: Picture, rng: Generator) -> Picture:
    """A thin frame of one colour."""
    del rng
    wide = max(1, min(picture.size) // 24)
    whole = Image.new("RGB", picture.size, (200, 30, 30))
    whole.paste(picture.crop((wide, wide, picture.width - wide, picture.height - wide)), (wide, wide))
    return whole


def moved(picture: Picture, rng: Generator) -> Picture:
    """As the next frame of a burst: turned by up to 4°, moved by up to 8%, brightened by up to 5%."""
    turned = picture.rotate(rng.uniform(-4, 4), Image.Resampling.BICUBIC)
    width, height = picture.size
    by = [rng.uniform(-0.08, 0.08) for _ in range(2)]
    left, top = round(width * (0.1 + by[0])), round(height * (0.1 + by[1]))
    part = turned.crop((left, top, left + round(width * 0.8), top + round(height * 0.8)))
    light = rng.uniform(0.95, 1.05)
    return part.resize((width, height), Image.Resampling.BICUBIC).point(lambda level: min(255, round(level * light)))


def compressed(picture: Picture, rng: Generator) -> Picture:
    """Through a JPEG of quality 50 to 85."""
    return Image.open(io.BytesIO(encoded(picture, ".jpg", int(rng.integers(50, 86))))).convert("RGB")


def rescaled(picture: Picture, rng: Generator) -> Picture:
    """At 0.6 to 1.6 of the size."""
    return resized(picture, rng.uniform(0.6, 1.6))


def relit(picture: Picture, rng: Generator) -> Picture:
    """Darker by up to a fifth, or brighter by up to a tenth."""
    light = rng.uniform(0.8, 1.1)
    return picture.point(lambda level: min(255, round(level * light)))


def cropped(picture: Picture, rng: Generator) -> Picture:
    """Each side loses up to 5%."""
    width, height = picture.size
    left, top, right, bottom = rng.uniform(0, 0.05, 4) * (width, height, width, height)
    box = (round(left), round(top), width - max(1, round(right)), height - round(bottom))
    return picture.crop(box)


def mirrored(picture: Picture, rng: Generator) -> Picture:
    """Left and right exchanged."""
    del rng
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def resized(picture: Picture, share: float) -> Picture:
    """At this share of the size."""
    width, height = (max(4, round(side * share)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


COPIES: Mapping[str, Change] = {
    "jpeg": compressed,
    "resized": rescaled,
    "brightness": relit,
    "cropped": cropped,
    "mirrored": mirrored,
    "grey": grey,
}
"""What copies that are not exact went through."""
