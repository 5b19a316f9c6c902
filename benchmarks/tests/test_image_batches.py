"""Augmentation, normalising, batches."""

from __future__ import annotations

import pytest
import torch

from sgoif.errors import SettingError
from sgoif_bench.batches import CIFAR_MEAN, CIFAR_STD, Batches, crop_and_flip, normalise


def test_every_augmented_image_is_a_crop_of_the_reflected_one() -> None:
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8)
    moved = crop_and_flip(images, torch.Generator().manual_seed(1), padding=2)
    padded = torch.nn.functional.pad(images.float(), (2, 2, 2, 2), mode="reflect").to(torch.uint8)
    mirrored = 0
    for number in range(len(images)):
        crops = [padded[number, :, y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
        plain = any(torch.equal(moved[number], crop) for crop in crops)
        flipped = any(torch.equal(moved[number], crop.flip(-1)) for crop in crops)
        assert plain or flipped
        mirrored += flipped
    assert 0 < mirrored < len(images)


def test_augmentation_repeats_with_its_own_generator_only() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    state = torch.get_rng_state()
    first = crop_and_flip(images, torch.Generator().manual_seed(7))
    second = crop_and_flip(images, torch.Generator().manual_seed(7))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(SettingError, match="smaller than the image"):
        crop_and_flip(images, torch.Generator(), padding=32)


def test_normalised_values() -> None:
    white = normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    expected = [(1 - mean) / spread for mean, spread in zip(CIFAR_MEAN, CIFAR_STD, strict=True)]
    assert white[0, :, 0, 0].tolist() == pytest.approx(expected)


def test_an_epoch_holds_every_example_once_with_its_own_label() -> None:
    images = torch.zeros(10, 3, 32, 32, dtype=torch.uint8)
    labels, index = torch.arange(10) % 3, torch.arange(10) * 11
    batches = Batches(images, labels, index, batch_size=4, augment=False, channels_last=True)
    seen = [(y, i) for x, y, i in batches if x.is_contiguous(memory_format=torch.channels_last)]
    assert len(batches) == 3
    assert [len(y) for y, _ in seen] == [4, 3, 3]
    given, names = torch.cat([y for y, _ in seen]), torch.cat([i for _, i in seen])
    assert sorted(names.tolist()) == index.tolist()
    assert torch.equal(given, (names // 11) % 3)
    following = torch.cat([i for _, _, i in batches])
    assert not torch.equal(names, following)


def test_batches_that_cannot_be_made() -> None:
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(SettingError, match="batch_size"):
        Batches(images, torch.zeros(4), torch.arange(4), batch_size=5)
    with pytest.raises(SettingError, match="do not match"):
        Batches(images, torch.zeros(3), torch.arange(4), batch_size=2)
