"""Batches: every image in an epoch, functions of seed and step, own mean and spread, honest augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgoif.audit.batches import Batches, LabelledPixels, Moves, Normalisation, batches_per_epoch, stream

CPU = torch.device("cpu")


def images(count: int = 40, channels: int = 3, size: int = 8) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def make(pixels: Any, rows: Any, size: int = 7, **options: Any) -> Batches:
    labels = np.arange(len(pixels)) % 3
    given = {"seed": 0, "augment": False, "device": CPU, **options}
    return Batches(pixels, labels, np.asarray(rows), size, Normalisation.of(pixels), **given)


def test_an_epoch_holds_every_row_in_batches_of_one_size_the_last_filled_up() -> None:
    rows = np.arange(0, 40, 2)
    batches = make(images(), rows)
    assert len(batches) == 3
    for epoch in range(3):
        parts = [batches.at(epoch * 3 + k)[2].tolist() for k in range(3)]
        assert [len(set(part)) for part in parts] == [7, 7, 7]
        first, middle, last = map(set, parts)
        assert first | middle | last == set(rows.tolist())
        assert len(first & last) == 1
        assert not middle & (first | last)
    assert batches.at(0)[2].tolist() != batches.at(3)[2].tolist()


def test_pixels_labels_and_rows_belong_together() -> None:
    pixels = images()
    batches = make(pixels, np.arange(5, 40))
    x, y, index = batches.at(4)
    values = pixels.astype(np.float64)
    expected = (values - values.mean((0, 2, 3), keepdims=True)) / values.std((0, 2, 3), keepdims=True)
    assert torch.allclose(x, torch.from_numpy(expected[index.numpy()]).float(), atol=1e-5)
    assert y.tolist() == [int(i) % 3 for i in index]


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    pixels, rows = images(), np.arange(40)
    one, two = make(pixels, rows, augment=True), make(pixels, rows, augment=True)
    for step in (0, 3, 7, 11):
        one.at(step)
    for step in (11, 2):
        for a, b in zip(one.at(step), two.at(step), strict=True):
            assert torch.equal(a, b)
    other = make(pixels, rows, augment=True, seed=1)
    assert not torch.equal(other.at(2)[2], one.at(2)[2])
    assert stream(0, 1, 2) != stream(0, 2, 1) != stream(1, 0, 2)


@given(st.integers(2, 300), st.integers(2, 64))
def test_no_batch_has_a_single_image(examples: int, size: int) -> None:
    parts = batches_per_epoch(examples, size)
    counts = np.diff([examples * k // parts for k in range(parts + 1)])
    assert counts.min() >= 2
    assert counts.sum() == examples
    assert counts.max() <= max(size, 3)


@pytest.mark.parametrize("size", [8, 12, 33])
def test_shifts_reflect_at_the_border_and_stay_small(size: int) -> None:
    most = max(1, size // 8)
    pictures = torch.from_numpy(images(30, 3, size))
    moved = Moves.drawn(len(pictures), pictures.shape[-2:], 5, mirror=True).applied(pictures)
    padded = torch.nn.functional.pad(pictures.float(), [most] * 4, mode="reflect")
    found = set()
    for picture, result in zip(padded, moved.float(), strict=True):
        fits = [
            (dy, dx, flip)
            for dy in range(2 * most + 1)
            for dx in range(2 * most + 1)
            for flip in (False, True)
            if torch.equal(
                (lambda w, f=flip: w.flip(-1) if f else w)(picture[:, dy : dy + size, dx : dx + size]), result
            )
        ]
        assert len(fits) == 1
        found.add(fits[0])
    assert {flip for *_, flip in found} == {False, True}
    assert len({(dy, dx) for dy, dx, _ in found}) > 3


def test_grey_images_are_never_mirrored() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 20, dtype=np.uint8), (64, 1, 12, 12)).copy()
    grey = make(ramp, np.arange(64), 64, augment=True)
    colour = make(np.repeat(ramp, 3, axis=1), np.arange(64), 64, augment=True)

    def rising(batches: Batches) -> float:
        x = torch.cat([batches.at(step)[0] for step in range(3)])
        return float((x[:, 0, :, 8] > x[:, 0, :, 3]).float().mean())

    assert rising(grey) == 1.0
    assert 0.3 < rising(colour) < 0.7


def test_images_without_contrast_do_not_divide_by_zero() -> None:
    flat = np.full((4, 1, 8, 8), 7, dtype=np.uint8)
    assert torch.equal(Normalisation.of(flat)(torch.from_numpy(flat)), torch.zeros(4, 1, 8, 8))


def test_held_out_images_are_seen_as_they_are() -> None:
    pixels = images(6)
    normalise = Normalisation.of(pixels)
    data = LabelledPixels(pixels, np.array([2, 1, 0, 2, 1, 0]), normalise)
    x, y = data[3]
    assert (len(data), y) == (6, 2)
    assert torch.equal(x, normalise(torch.from_numpy(pixels))[3])
