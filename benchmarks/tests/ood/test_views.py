"""Changes of images that methods train on: colours, crops, turns, noise and patterns."""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from self_supervised_cases import SIDE, pictures, seeded, stripes

from sgoif_bench.batches import normalise
from sgoif_bench.ood.trained import perlin, views

# Views


def test_pixels_and_normalised_images_are_each_others_inverse() -> None:
    problem = stripes(size=32, epochs=1)
    x = normalise(problem.images, problem.mean, problem.spread)
    pixels = views.to_pixels(problem, x)
    torch.testing.assert_close(pixels, problem.images.float() / 255)
    torch.testing.assert_close(views.to_network(problem, pixels), x)
    plain = torch.cat([batch for batch, _, _ in views.pixel_batches(problem, augment=False, batch_size=10)])
    assert sorted(plain.flatten(1).sum(1).tolist()) == pytest.approx(sorted(pixels.flatten(1).sum(1).tolist()))
    assert max(len(y) for _, y, _ in views.pixel_batches(problem, batch_size=10)) <= 10


def test_hue_saturation_and_value_by_the_standard_library() -> None:
    pixels = pictures(2, side=5)
    pixels[0, :, 0, 0] = 0.4  # grey
    pixels[0, :, 0, 1] = 0  # black
    pixels[0, :, 0, 2] = torch.tensor([1.0, 0.0, 0.0])
    hsv = views.rgb_to_hsv(pixels)
    for image, row, column in itertools.product(range(2), range(5), range(5)):
        expected = colorsys.rgb_to_hsv(*pixels[image, :, row, column].tolist())
        assert hsv[image, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(views.hsv_to_rgb(hsv), pixels, atol=1e-6, rtol=0)


def test_jitter_without_strength_changes_nothing_and_with_strength_each_image_differently() -> None:
    still = views.Jitter(brightness=0, contrast=0, saturation=0, hue=0)
    for channels in (1, 3):
        pixels = pictures(4, channels)
        torch.testing.assert_close(still(pixels, seeded()), pixels, atol=1e-5, rtol=0)
    pixels = (0.3 + 0.4 * pictures(1)).expand(200, -1, -1, -1)
    brighter = views.Jitter(brightness=0.4, contrast=0, saturation=0, hue=0)(pixels, seeded())
    factor = (brighter / pixels).flatten(1)
    assert (factor.amax(1) - factor.amin(1)).max() < 1e-4
    assert 0.6 <= factor.min() < 0.65
    assert 1.35 < factor.max() <= 1.4 + 1e-4
    turned = views.rgb_to_hsv(views.Jitter(brightness=0, contrast=0, saturation=0, hue=0.1)(pixels, seeded()))
    difference = (turned[:, 0] - views.rgb_to_hsv(pixels)[:, 0] + 0.5) % 1 - 0.5
    assert 0.09 < difference.abs().max() <= 0.1 + 1e-4


def test_contrast_is_about_the_mean_of_what_it_is_told_to_look_at() -> None:
    pixels = torch.tensor([0.2, 0.4, 0.9, 0.5]).view(1, 1, 2, 2)
    doubled = views.change_contrast(pixels, torch.tensor(0.5).view(1, 1, 1, 1))
    assert doubled.flatten().tolist() == pytest.approx([0.35, 0.45, 0.7, 0.5])
    top = torch.tensor([1.0, 1.0, 0.0, 0.0]).view(1, 1, 2, 2)
    about_top = views.change_contrast(pixels, torch.tensor(0.5).view(1, 1, 1, 1), top)
    assert about_top.flatten().tolist() == pytest.approx([0.25, 0.35, 0.6, 0.4])


def test_grey_and_mirror_and_quarter_turns() -> None:
    pixels = pictures(40)
    grey = views.to_grey(pixels)
    torch.testing.assert_close(grey[:, 0], 0.299 * pixels[:, 0] + 0.587 * pixels[:, 1] + 0.114 * pixels[:, 2])
    assert torch.equal(grey[:, 0], grey[:, 2])
    flipped = views.mirrored(pixels, seeded())
    is_flipped = (flipped == pixels.flip(3)).flatten(1).all(1)
    assert torch.equal(is_flipped, ~(flipped == pixels).flatten(1).all(1))
    assert 10 < is_flipped.sum() < 30
    turns = views.quarter_turns(pixels).chunk(4)
    assert torch.equal(turns[0], pixels)
    for turn in (1, 2, 3):
        # A quarter circle against the clock takes row i, column j to row S − 1 − j, column i.
        assert torch.equal(turns[turn][:, :, SIDE - 1, 0], turns[turn - 1][:, :, 0, 0])
        assert torch.equal(turns[turn][:, :, SIDE - 1 - 5, 2], turns[turn - 1][:, :, 2, 5])


def test_crops_lie_within_the_image_with_the_wanted_area_and_shape() -> None:
    top, left, height, width = views.crop_boxes(2000, 32, seeded(), (0.08, 1.0), (3 / 4, 4 / 3)).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 32).all()
    assert (left + width <= 32).all()
    area = height * width / 32**2
    assert 0.06 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert 0.45 < area.mean() < 0.6
    assert (width / height).min() > 0.6
    assert (width / height).max() < 1.6
    assert left.max() > 20
    # Where no box fits, it is the whole image.
    whole = views.crop_boxes(3, 10, seeded(), (1.0, 1.0), (2.0, 2.5))
    assert whole.tolist() == [[0, 0, 10, 10]] * 3


def test_a_crop_is_the_box_enlarged() -> None:
    pixels = pictures(2, side=8)
    same = views.resize_crops(pixels, torch.tensor([[0.0, 0, 8, 8]] * 2))
    torch.testing.assert_close(same, pixels, atol=1e-5, rtol=0)
    boxes = torch.tensor([[2.0, 3, 4, 4], [1.0, 0, 2, 8]])
    cropped = views.resize_crops(pixels, boxes)
    expected = F.interpolate(pixels[:1, :, 2:6, 3:7], size=(8, 8), mode="bilinear", align_corners=False)
    # At the edge of the box interpolation of the cut piece cannot look at its neighbours, so only the inside is equal.
    torch.testing.assert_close(cropped[:1, :, 1:-1, 1:-1], expected[:, :, 1:-1, 1:-1], atol=1e-5, rtol=0)
    torch.testing.assert_close(cropped[1, :, 1], 0.875 * pixels[1, :, 1] + 0.125 * pixels[1, :, 0], atol=1e-5, rtol=0)


def test_contrastive_views_change_the_promised_shares() -> None:
    shares = views.ContrastiveViews(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    pixels = (0.3 + 0.4 * pictures(1)).expand(500, -1, -1, -1)
    seen = shares(pixels, seeded())
    untouched = ((seen - pixels).abs() < 1e-5).flatten(1).all(1).float().mean()
    assert untouched == pytest.approx(0.2 * 0.8, abs=0.05)
    is_grey = ((seen[:, 0] - seen[:, 1]).abs() < 1e-5).flatten(1).all(1).float().mean()
    assert is_grey == pytest.approx(0.2, abs=0.05)
    assert ((seen >= 0) & (seen <= 1)).all()


def test_strong_changes_by_hand() -> None:
    bytes_of = torch.arange(256.0).view(1, 1, 16, 16) / 255
    posterised = (255 * views.posterised(bytes_of.expand(50, -1, -1, -1), seeded())).round()
    steps = {len(row.unique()) for row in posterised.flatten(1)}
    assert steps == {2**bits for bits in range(1, 8)}
    assert (posterised <= 255 * bytes_of).all()
    solarised = views.solarised(bytes_of.expand(50, -1, -1, -1), seeded())
    turned = (solarised != bytes_of).flatten(1)
    first = turned.float().argmax(1)
    assert first.min() >= 32
    assert first.max() <= 128
    torch.testing.assert_close(
        solarised[turned.view_as(solarised)], (1 - bytes_of.expand_as(solarised))[solarised != bytes_of]
    )
    stretched = views.stretched(torch.tensor([0.2, 0.3, 0.6, 0.4]).view(1, 1, 2, 2))
    assert stretched.flatten().tolist() == pytest.approx([0, 0.25, 1, 0.5])
    flat = torch.full((1, 1, 2, 2), 0.7)
    assert torch.equal(views.stretched(flat), flat)
    assert torch.equal(views.equalised(flat), flat)
    # Bytes 10, 10, 20, 90: those not brighter, less the two darkest, are 0, 1 and 2 of 2.
    equalised = views.equalised(torch.tensor([10.0, 10, 20, 90]).view(1, 1, 2, 2) / 255)
    assert equalised.flatten().tolist() == pytest.approx([0, 0, 0.5, 1])
    smooth = torch.full((3, 3, 6, 6), 0.5)
    torch.testing.assert_close(views.sharpened(smooth, seeded()), smooth)
    spike = torch.zeros(200, 1, 5, 5)
    spike[:, :, 2, 2] = 0.5
    peak = views.sharpened(spike, seeded())[:, 0, 2, 2]
    assert peak.min() == pytest.approx(0.5 * 5 / 13, abs=0.01)
    assert peak.max() == pytest.approx(0.5 + 0.5 * 8 / 13, abs=0.01)


def test_every_image_gets_as_many_different_changes_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each change adds a power of two of its own: the sum tells which were applied, and twice would show.
    def adding(power: int) -> views.Change:
        return lambda pixels, generator: pixels + 2.0**power

    marks = tuple(adding(power) for power in range(len(views.CHANGES)))
    monkeypatch.setattr(views, "CHANGES", marks)
    sums = views.changed(torch.zeros(300, 1, 2, 2), seeded())[:, 0, 0, 0].long().tolist()
    assert {bin(number).count("1") for number in sums} == {3}
    assert len(set(sums)) == math.comb(7, 3)


# Perlin noise


def slow_perlin(side: int, cells: tuple[int, int], gradient: Callable[[int, int], tuple[float, float]]) -> list[float]:
    values = []
    for row, column in itertools.product(range(side), range(side)):
        y, x = (row + 0.5) / side * cells[0], (column + 0.5) / side * cells[1]
        total = 0.0
        for corner_y, corner_x in itertools.product(
            (math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)
        ):
            g_y, g_x = gradient(corner_y, corner_x)
            weight = 1.0
            for distance in (abs(y - corner_y), abs(x - corner_x)):
                weight *= 1 - (6 * distance**5 - 15 * distance**4 + 10 * distance**3)
            total += weight * (g_y * (y - corner_y) + g_x * (x - corner_x))
        values.append(math.sqrt(2) * total)
    return values


def test_perlin_noise_by_a_slow_loop() -> None:
    cells = torch.tensor([[3, 2], [1, 4]])
    noise = perlin.perlin(9, cells, seeded(4))
    size = 4 + 2 * math.ceil(0.21 * 4) + 2
    direction = 2 * math.pi * torch.rand(2, size, size, generator=seeded(4))
    for field in (0, 1):
        angles = direction[field].tolist()
        expected = slow_perlin(
            9, tuple(cells[field].tolist()), lambda y, x, a=angles: (math.cos(a[y][x]), math.sin(a[y][x]))
        )
        assert noise[field].flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_perlin_noise_is_bounded_smooth_and_as_fine_as_wanted() -> None:
    coarse, fine = (perlin.perlin(64, torch.full((200, 2), cells), seeded(1)) for cells in (2, 16))
    for noise in (coarse, fine):
        assert noise.abs().max() <= 1
        assert noise.abs().max() > 0.7
        assert abs(float(noise.mean())) < 0.02
    # Across a cell the slope is of the order of 1 per cell, so per pixel it goes with cells / side.
    steps = [float(noise.diff(dim=2).abs().amax()) for noise in (coarse, fine)]
    assert steps[0] < 0.15
    assert 3 * steps[0] < steps[1] < 1
    assert float((coarse[:, :, 1:] * coarse[:, :, :-1]).mean() / coarse.square().mean()) > 0.95


def test_a_turned_lattice_turns_the_noise() -> None:
    cells = torch.full((3, 2), 4)
    angles = torch.tensor([0.0, math.pi / 2, 0.4])
    straight = perlin.perlin(16, cells, seeded(2))
    turned = perlin.perlin(16, cells, seeded(2), angles)
    torch.testing.assert_close(turned[0], straight[0], atol=1e-4, rtol=0)
    # With rows r and columns c from the middle, the quarter turn reads the lattice at (c, −r).
    torch.testing.assert_close(turned[1], torch.rot90(straight[1], 1, (0, 1)), atol=1e-4, rtol=0)
    assert (turned[2] - straight[2]).abs().max() > 0.1
    assert turned[2].abs().max() <= 1


def test_blobs_are_masks_of_all_sizes_and_some_are_empty() -> None:
    for side in (8, 12, 32):
        masks = perlin.blobs(400, side, seeded())
        assert masks.shape == (400, 1, side, side)
        assert set(masks.unique().tolist()) == {0.0, 1.0}
        area = masks.mean(dim=(1, 2, 3))
        assert 0.02 < float((area == 0).float().mean()) < 0.5
        assert area.max() > 0.2
        assert 0.02 < area.mean() < 0.2


def test_patterns_lie_between_two_colours_and_differ() -> None:
    made = perlin.patterns(50, 3, 16, seeded())
    assert made.shape == (50, 3, 16, 16)
    assert ((made >= 0) & (made <= 1)).all()
    # All pixels on one line in colour space: the second singular value vanishes.
    centred = (made - made.mean(dim=(2, 3), keepdim=True)).flatten(2)
    singular = torch.linalg.svdvals(centred)
    assert (singular[:, 1] < 1e-4 * singular[:, 0].clamp_min(1)).all()
    assert made.std(dim=(2, 3)).mean() > 0.05
    assert (made[0] - made[1]).abs().mean() > 0.05
