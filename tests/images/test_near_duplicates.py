"""Images that are nearly the same are found, and others are not taken for such."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from sklearn.datasets import load_digits, load_sample_images

from sgoif.images import likeness
from sgoif.images import near_duplicates as module
from sgoif.images.near_duplicates import find_near_duplicates

Array = np.ndarray[Any, Any]
SIDE = 32
CHANGES = ("encoded", "resized", "brighter")
MOVES = ("cropped", "mirrored", "both")


@pytest.fixture(scope="module")
def tiles() -> Array:
    """Pieces of two photographs that do not overlap."""
    found = []
    for photograph in load_sample_images().images:
        high, wide = (length // SIDE * SIDE for length in photograph.shape[:2])
        cut = photograph[:high, :wide].reshape(high // SIDE, SIDE, wide // SIDE, SIDE, 3)
        found.append(cut.transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE))
    return np.concatenate(found)


def changed(image: Array, how: str) -> Array:
    picture = Image.fromarray(image.transpose(1, 2, 0))
    if how == "encoded":
        target = io.BytesIO()
        picture.save(target, "JPEG", quality=85)
        picture = Image.open(target)
    elif how == "resized":
        picture = picture.resize((24, 24), Image.Resampling.BICUBIC).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    elif how == "brighter":
        picture = ImageEnhance.Brightness(picture).enhance(1.1)
    if how in ("mirrored", "both"):
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how in ("cropped", "both"):
        picture = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (2, 0, SIDE - 1, SIDE - 2))
    return np.asarray(picture).transpose(2, 0, 1)


def contrast(images: Array) -> Array:
    return images.astype(float).std((2, 3)).mean(1)


def pairs_of(groups: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    return {pair for group in groups for pair in combinations(group, 2)}


@pytest.mark.parametrize("how", [*CHANGES, *MOVES])
def test_a_changed_copy_is_found(tiles: Array, how: str) -> None:
    rows = np.flatnonzero(contrast(tiles) > 30)[::7]
    together = np.concatenate([tiles, np.stack([changed(tiles[row], how) for row in rows])])
    groups = find_near_duplicates(together)
    partners = [{int(row), len(tiles) + number} for number, row in enumerate(rows)]
    found = sum(any(pair <= set(group) for group in groups) for pair in partners)
    assert found > (0.8 if how in CHANGES or how == "mirrored" else 0.6) * len(rows)


def test_every_image_may_have_a_copy(tiles: Array) -> None:
    some = tiles[contrast(tiles) > 30][:150]
    together = np.concatenate([some, np.stack([changed(image, "encoded") for image in some])])
    pairs = {(row, len(some) + row) for row in range(len(some))}
    assert len(pairs & set(find_near_duplicates(together))) > 0.8 * len(some)


@pytest.mark.parametrize("ways", [CHANGES, MOVES])
def test_a_set_may_hold_four_copies_of_everything(tiles: Array, ways: tuple[str, ...]) -> None:
    some = tiles[contrast(tiles) > 30][:150]
    together = np.concatenate([some, *(np.stack([changed(image, how) for image in some]) for how in ways)])
    found = pairs_of(find_near_duplicates(together))
    wanted = {(row, row + step * len(some)) for row in range(len(some)) for step in range(1, 4)}
    assert len(wanted & found) > (0.9 if ways is CHANGES else 0.6) * len(wanted)


def test_different_images_are_not_alike_where_all_resemble_each_other() -> None:
    assert not find_near_duplicates((load_digits().images * 15.9).astype(np.uint8)[:, None])
    random = np.random.default_rng(0)
    one = random.integers(0, 256, (1, 3, SIDE, SIDE))
    frames = np.clip(one + random.normal(0, 30, (200, 3, SIDE, SIDE)), 0, 255).astype(np.uint8)
    assert not find_near_duplicates(frames), "all are a picture with other noise, and none is closer than the others"


def test_flat_images_have_nothing_to_compare() -> None:
    random = np.random.default_rng(1)
    colours = np.repeat(random.integers(0, 250, (40, 3, 1, 1)), SIDE, 2).repeat(SIDE, 3)
    noisy = (colours + random.integers(0, 5, (40, 3, SIDE, SIDE))).astype(np.uint8)
    assert not find_near_duplicates(np.concatenate([noisy, noisy]))


def test_groups_rows_and_small_sets(tiles: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.flatnonzero(contrast(tiles) > 30)[:60]
    images = np.concatenate([tiles[rows], tiles[rows[:2]], tiles[rows[:1]]])
    expected = [(0, 60, 62), (1, 61)]
    assert find_near_duplicates(images) == expected
    monkeypatch.setattr(likeness, "CELLS", 500)
    assert find_near_duplicates(images) == expected, "whatever the size of a chunk"
    assert find_near_duplicates(images, [row for row in range(63) if row != 60]) == [(0, 62), (1, 61)]
    assert find_near_duplicates(images[-3:]) == []
    assert find_near_duplicates(images[:0]) == []


def test_what_all_pairs_would_give_is_found_in_few(tiles: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    some = tiles[contrast(tiles) > 20]
    together = np.concatenate([some, *(np.stack([changed(image, how) for image in some]) for how in CHANGES)])
    looked: list[int] = []
    plain = module.candidates

    def counted(short: Array, width: float) -> Iterator[Array]:
        for pairs in plain(short, width):
            looked.append(pairs.shape[1])
            yield pairs

    monkeypatch.setattr(module, "candidates", counted)
    found = find_near_duplicates(together)
    assert found == find_near_duplicates(together)
    every = np.stack(np.triu_indices(len(together), 1))
    monkeypatch.setattr(module, "candidates", lambda short, width: iter([every]))
    exhaustive = pairs_of(find_near_duplicates(together))
    assert pairs_of(found) <= exhaustive
    assert len(pairs_of(found)) >= 0.99 * len(exhaustive)
    assert sum(looked) / 2 < 0.2 * every.shape[1]


def test_a_camera_that_stands_still_is_one_group() -> None:
    """A third of the images are nearly one: they have half a million pairs, which are not all looked at."""
    random = np.random.default_rng(2)
    others = random.integers(0, 256, (2000, 3, 16, 16))
    still = random.integers(20, 236, (1, 3, 16, 16)) + random.integers(-1, 2, (1000, 3, 16, 16))
    (found,) = find_near_duplicates(np.concatenate([others, still]).astype(np.uint8))
    assert found == tuple(range(2000, 3000))


def test_where_everything_resembles_everything_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    still = random.integers(20, 236, (1, 3, 16, 16)) + random.integers(-1, 2, (600, 3, 16, 16))
    looked: list[int] = []
    plain = module._joined
    monkeypatch.setattr(module, "_joined", lambda leader, pairs: looked.append(1) or plain(leader, pairs))
    monkeypatch.setattr(module, "MOST_CANDIDATES", 0)
    assert find_near_duplicates(still.astype(np.uint8)) == []
    assert not looked
