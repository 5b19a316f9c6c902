"""Bad images planted among good ones are found, and good ones are not, whatever kind of images a set is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from sgoif.findings import Check, Examined, Severity
from sgoif.findings.kinds.quality import (
    Blurry,
    Bright,
    Dark,
    Empty,
    GreyAmongColour,
    OddAspect,
    OddSize,
    fence,
    unusually_low,
)
from sgoif.images.measurements import Measurements, measure

CHECKS = (Dark, Bright, Blurry, Empty, OddAspect, OddSize, GreyAmongColour)


def scene(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    """Discs of many sizes and colours."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    image = np.full((height, width, 3), random.integers(60, 190, 3), dtype=np.uint8)
    for radius in np.sort(width / random.uniform(3, 40, 60))[::-1]:
        inside = (x - random.uniform(0, width)) ** 2 + (y - random.uniform(0, height)) ** 2 < radius**2
        image[inside] = random.integers(10, 246, 3)
    return Image.fromarray(image)


def stroke(seed: int) -> Image.Image:
    """Two strokes on black, as in handwritten digits."""
    random = np.random.default_rng(seed)
    image = np.zeros((28, 28), dtype=np.uint8)
    for _ in range(2):
        row, column = random.integers(4, 14, 2)
        image[row : row + 10, column : column + 2] = random.integers(180, 256)
    return Image.fromarray(image)


def examined(images: Sequence[Image.Image], labels: Sequence[int] | None = None) -> Examined:
    rows = []
    for image in images:
        values = np.asarray(image)
        grey = values.ndim == 2 or bool((values == values[..., :1]).all())
        rows.append(measure(image, bytes(16), grey=grey))
    given = np.zeros(len(images), dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    names = [f"{number}.png" for number in range(len(images))]
    return Examined(names, given, [str(number) for number in range(given.max(initial=0) + 1)], Measurements.of(rows))


def found(check: type[Check], seen: Examined) -> list[int]:
    return [int(Path(finding.images[0]).stem) for finding in check().find(seen)]


def pale(image: Image.Image) -> Image.Image:
    return Image.fromarray((255 - (255 - np.asarray(image)) * 0.04).astype(np.uint8))


def noise_alone(image: Image.Image) -> Image.Image:
    values = np.random.default_rng(0).normal(120, 3, np.asarray(image).shape)
    return Image.fromarray(values.astype(np.uint8))


SPOIL: list[tuple[type[Check], Callable[[Image.Image], Image.Image]]] = [
    (Dark, lambda image: Image.fromarray((np.asarray(image) * 0.2).astype(np.uint8))),
    (Bright, pale),
    (Blurry, lambda image: image.filter(ImageFilter.GaussianBlur(2.5))),
    (Empty, noise_alone),
    (OddAspect, lambda image: image.crop((0, 0, 64, 10))),
    (OddSize, lambda image: image.resize((16, 12))),
    (GreyAmongColour, lambda image: image.convert("L")),
    (GreyAmongColour, lambda image: image.convert("L").convert("RGB")),
]


@pytest.fixture(scope="module")
def clean() -> list[Image.Image]:
    return [scene(seed) for seed in range(300)]


@pytest.mark.parametrize(("check", "spoil"), SPOIL, ids=[check.kind for check, _ in SPOIL])
def test_what_was_planted_is_found_and_nothing_else(
    clean: list[Image.Image], check: type[Check], spoil: Callable[[Image.Image], Image.Image]
) -> None:
    planted = list(range(5, 300, 25))
    seen = examined([spoil(image) if number in planted else image for number, image in enumerate(clean)])
    assert sorted(found(check, seen)) == planted
    finding = check().find(seen)[0]
    assert finding.kind == check.kind
    assert finding.advice
    assert finding.severity in (Severity.WARNING, Severity.NOTE)
    assert all(isinstance(value, str | int | float) for value in finding.evidence.values())


@pytest.mark.parametrize("make", [scene, stroke], ids=["scenes", "strokes"])
def test_good_images_raise_no_alarm(make: Callable[[int], Image.Image]) -> None:
    seen = examined([make(seed) for seed in range(1000, 1600)])
    assert {check.kind: found(check, seen) for check in CHECKS} == {check.kind: [] for check in CHECKS}


@pytest.mark.parametrize(("check", "spoil"), SPOIL[:6], ids=[check.kind for check, _ in SPOIL[:6]])
def test_what_all_images_of_a_set_or_class_have_is_not_held_against_one(
    clean: list[Image.Image], check: type[Check], spoil: Callable[[Image.Image], Image.Image]
) -> None:
    assert len(found(check, examined([spoil(image) for image in clean[:60]]))) <= 1
    labels = [int(number >= 260) for number in range(300)]
    images = [spoil(image) if label else image for image, label in zip(clean, labels, strict=True)]
    assert len(found(check, examined(images, labels))) <= 1
    assert sorted(found(check, examined(images))) == list(range(260, 300))


def test_the_worst_comes_first(clean: list[Image.Image]) -> None:
    images = [*clean[:100], *(clean[0].filter(ImageFilter.GaussianBlur(radius)) for radius in (2.5, 6, 4))]
    assert found(Blurry, examined(images)) == [101, 102, 100]


def test_a_blank_digit_and_one_that_is_not(clean: list[Image.Image]) -> None:
    images = [*(stroke(seed) for seed in range(200)), Image.new("L", (28, 28), 0)]
    assert found(Empty, examined(images)) == found(Dark, examined(images)) == [200]


def test_a_set_of_grey_images_has_none_that_is_odd(clean: list[Image.Image]) -> None:
    assert found(GreyAmongColour, examined([image.convert("L") for image in clean[:50]])) == []
    assert found(GreyAmongColour, examined([*(image.convert("L") for image in clean[:50]), *clean[50:250]])) == []


def test_portraits_among_landscapes_and_a_pixel_more_are_not_odd(clean: list[Image.Image]) -> None:
    images = [*clean[:100], *(image.rotate(90, expand=True) for image in clean[100:110]), clean[0].resize((65, 48))]
    seen = examined(images)
    assert found(OddAspect, seen) == found(OddSize, seen) == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_images(clean: list[Image.Image], count: int) -> None:
    seen = examined([image.point(lambda level: level // 20) for image in clean[:count]], labels=[0] * count)
    assert [found(check, seen) for check in CHECKS] == [[] for _ in CHECKS]


def test_one_of_a_thousand_normal_values_lies_below_the_fence() -> None:
    values = np.random.default_rng(0).normal(5, 2, 200_000)
    assert np.mean(values < fence(values)) == pytest.approx(0.001, rel=0.15)
    spoilt = np.concatenate([values, np.full(40_000, -20.0), np.full(9, np.nan)])
    assert unusually_low(spoilt, np.full(len(spoilt), -1))[200_000:240_000].all()
    assert fence(np.full(3, np.nan)) == float("-inf")


def test_brightness_as_cleanvision_measures_it() -> None:
    property_of = pytest.importorskip("cleanvision.issue_managers.image_property")
    for seed in range(20):
        image = scene(seed) if seed % 2 else stroke(seed)
        row: Any = measure(image, bytes(16), grey=image.mode == "L")[0]
        darkest, brightest = property_of.calc_percentile_brightness(image, percentiles=[5, 99])
        assert [row["darkest"], row["brightest"]] == pytest.approx([darkest, brightest], abs=0.02)
