"""Methods that train on tasks of their own making, CutPaste, DRAEM and CSI, and the views of images they share."""

from __future__ import annotations

import colorsys
import dataclasses
import functools
import itertools
import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.trained import csi, cutpaste, draem, perlin, unet, views
from sgoif_bench.ood.trained.method import Scorer, Train

striped = runpy.run_path(str(Path(__file__).parents[1] / "labels" / "problems.py"))["striped"]
SIDE = 12
QUIET: Callable[[str], None] = lambda line: None  # noqa: E731
METHODS: dict[str, Train] = {
    "cutpaste": cutpaste.cutpaste,
    "draem": functools.partial(draem.draem, width=8, learning_rate=2e-3),
    "csi": csi.csi,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stripes(size: int = 256, epochs: int = 4, seed: int = 3, batch_size: int = 64) -> Problem:
    problem: Problem = striped(size=size, epochs=epochs, rate=0.0, seed=seed, noise=0.1, anchors=20)[0]
    return dataclasses.replace(problem, recipe=dataclasses.replace(problem.recipe, batch_size=batch_size))


def pictures(count: int = 6, channels: int = 3, side: int = SIDE, seed: int = 1) -> Tensor:
    return torch.rand(count, channels, side, side, generator=seeded(seed))


# Methods on a small problem


@dataclasses.dataclass
class Run:
    problem: Problem
    scorer: Scorer
    lines: list[str]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    found = {}
    for name, method in METHODS.items():
        problem = stripes(size=192, epochs=10, batch_size=32) if name == "draem" else stripes()
        lines: list[str] = []
        found[name] = Run(problem, method(problem, None, lines.append), lines)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_noise_scores_higher_than_images_of_the_training_kind(runs: dict[str, Run], name: str) -> None:
    problem, scorer = runs[name].problem, runs[name].scorer
    unseen = stripes(size=120, seed=9).images
    noise = torch.randint(0, 256, unseen.shape, generator=seeded()).to(torch.uint8)
    score = torch.cat([scorer.score(normalise(images, problem.mean, problem.spread)) for images in (unseen, noise)])
    assert score.shape == (240,)
    assert score.dtype == torch.float32
    assert torch.isfinite(score).all()
    assert not score.requires_grad
    assert auroc(np.arange(240) >= 120, score.numpy()) > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_an_image_scores_the_same_in_any_company(runs: dict[str, Run], name: str) -> None:
    problem, scorer = runs[name].problem, runs[name].scorer
    x = normalise(problem.images[:8], problem.mean, problem.spread)
    torch.testing.assert_close(scorer.score(x[:3]), scorer.score(x)[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_progress_is_told_and_details_fit_a_result_file(runs: dict[str, Run], name: str) -> None:
    assert len(runs[name].lines) >= runs[name].problem.recipe.epochs
    assert json.loads(json.dumps(runs[name].scorer.details)) == runs[name].scorer.details


def test_only_csi_classifies(runs: dict[str, Run]) -> None:
    assert runs["cutpaste"].scorer.classifier is None
    assert runs["draem"].scorer.classifier is None
    problem, classifier = runs["csi"].problem, runs["csi"].scorer.classifier
    assert classifier is not None
    with torch.no_grad():
        logits = classifier(normalise(problem.images, problem.mean, problem.spread))
    assert logits.shape == (len(problem), problem.classes)


def test_trainings_are_what_was_seen(runs: dict[str, Run]) -> None:
    assert runs["cutpaste"].scorer.trainings == 3
    assert runs["draem"].scorer.trainings == 1
    # Four turns in two views for 4 epochs, then four turns for 4/7 of an epoch, rounded to one.
    assert runs["csi"].scorer.trainings == 8 + 4 * 1 / 4
    assert runs["csi"].scorer.details["linear_epochs"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_scores_and_the_global_random_state_is_left_alone(name: str) -> None:
    scores = []
    for global_seed, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        problem = dataclasses.replace(stripes(size=64, epochs=1), seed=seed)
        scores.append(METHODS[name](problem, None, QUIET).score(torch.ones(2, 1, SIDE, SIDE) / 3))
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("channels", "side"), [(3, 8), (1, 17)])
def test_other_sizes_and_channels(name: str, channels: int, side: int) -> None:
    given = stripes(size=32, epochs=1)
    images = (255 * pictures(32, channels, side)).to(torch.uint8)
    problem = Problem(images, given.labels, given.classes, given.recipe, given.device)
    score = METHODS[name](problem, None, QUIET).score(normalise(images[:4], problem.mean, problem.spread))
    assert score.shape == (4,)
    assert torch.isfinite(score).all()


@pytest.mark.parametrize("shape", [(3, 12, 10), (3, 6, 6), (2, 12, 12)])
@pytest.mark.parametrize("name", METHODS)
def test_images_that_do_not_fit_are_refused(name: str, shape: tuple[int, int, int]) -> None:
    given = stripes(size=32, epochs=1)
    problem = Problem(torch.zeros(32, *shape, dtype=torch.uint8), given.labels, 4, given.recipe, given.device)
    with pytest.raises(SettingError, match="×".join(map(str, shape))):
        METHODS[name](problem, None, QUIET)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (functools.partial(csi.csi, temperature=0.0), "temperature = 0.0"),
        (functools.partial(draem.draem, width=1), "width = 1"),
        (functools.partial(draem.draem, learning_rate=-1.0), "learning_rate = -1.0"),
        (functools.partial(draem.draem, textures=torch.zeros(2, 1, 9, 9, dtype=torch.uint8)), r"\[2, 1, 9, 9\]"),
        (functools.partial(draem.draem, textures=torch.zeros(2, 1, SIDE, SIDE)), "float32"),
        (functools.partial(draem.draem, textures=torch.zeros(0, 1, SIDE, SIDE, dtype=torch.uint8)), "at least one"),
    ],
)
def test_bad_settings_are_refused(call: Train, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call(stripes(size=32, epochs=1), None, QUIET)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: views.Jitter(brightness=1.5, contrast=0, saturation=0, hue=0), "brightness = 1.5"),
        (lambda: views.Jitter(brightness=0, contrast=0, saturation=0, hue=0.6), "hue = 0.6"),
        (lambda: views.ContrastiveViews(scale=(0.5, 0.2)), "scale"),
        (lambda: views.ContrastiveViews(ratio=(0.0, 1.0)), "ratio"),
        (lambda: views.ContrastiveViews(grey_share=2.0), "grey_share"),
        (lambda: views.changed(pictures(), seeded(), count=8), "count = 8"),
        (lambda: perlin.perlin(8, torch.tensor([[0, 1]]), seeded()), "cells"),
        (lambda: perlin.patterns(2, 3, 8, seeded(), octaves=0), "octaves = 0"),
        (lambda: unet.Restoring(1, 3, 4), "3×3"),
        (lambda: cutpaste.Gaussian(torch.zeros(1, 4)), r"\[1, 4\]"),
    ],
)
def test_bad_settings_of_the_parts_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


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


# CutPaste


def piece(height: float, width: float, source: tuple[float, float], target: tuple[float, float], angle: float) -> Any:
    def each(value: float) -> Tensor:
        return torch.tensor(value).view(1, 1, 1, 1)

    return cutpaste.Pieces(
        each(height), each(width), (each(source[0]), each(source[1])), (each(target[0]), each(target[1])), each(angle)
    )


def test_a_piece_of_the_image_itself_is_pasted() -> None:
    pixels = pictures(1)
    # Rows 1 to 3 and columns 2 to 5 go to rows 6 to 8 and columns 7 to 10.
    pasted = cutpaste.paste(pixels, piece(3, 4, (2, 3.5), (7, 8.5), 0.0), seeded(), jitter=None)
    expected = pixels.clone()
    expected[:, :, 6:9, 7:11] = pixels[:, :, 1:4, 2:6]
    torch.testing.assert_close(pasted, expected, atol=1e-5, rtol=0)


def test_a_scar_is_turned_before_it_is_pasted() -> None:
    pixels = pictures(1)
    # Rows 2 to 6 of column 4, turned by a quarter circle and put in the middle of row 8.
    pasted = cutpaste.paste(pixels, piece(5, 1, (4, 4), (8, 5), math.pi / 2), seeded(), jitter=None)
    where = (pasted != pixels).any(1)[0].nonzero()
    assert where.tolist() == [[8, column] for column in range(3, 8)]
    torch.testing.assert_close(pasted[:, :, 8, 3:8], pixels[:, :, 2:7, 4], atol=1e-5, rtol=0)


def test_only_the_piece_is_jittered() -> None:
    pixels = (0.3 + 0.4 * pictures(100, seed=2)).contiguous()
    pieces = cutpaste.draw_rectangles(100, SIDE, seeded(3))
    plain = cutpaste.paste(pixels, pieces, seeded(), jitter=None)
    jittered = cutpaste.paste(pixels, pieces, seeded())
    row = (torch.arange(SIDE).view(1, 1, -1, 1) - pieces.target[0]).abs() < pieces.height / 2
    column = (torch.arange(SIDE).view(1, 1, 1, -1) - pieces.target[1]).abs() < pieces.width / 2
    within = (row & column).expand_as(pixels)
    assert torch.equal(jittered[~within], pixels[~within])
    assert torch.equal(plain[~within], pixels[~within])
    change = (jittered - plain).abs()
    assert 0.01 < change[within].mean() < 0.1


def test_rectangles_and_scars_have_the_sizes_of_the_paper() -> None:
    pieces = cutpaste.draw_rectangles(4000, 256, seeded())
    area = pieces.height * pieces.width / 256**2
    assert area.min() == pytest.approx(0.02, abs=0.002)
    assert area.max() == pytest.approx(0.15, abs=0.002)
    aspect = pieces.width / pieces.height
    assert aspect.min() == pytest.approx(0.3, abs=0.02)
    assert aspect.max() == pytest.approx(3.3, abs=0.1)
    assert (aspect < 1).float().mean() == pytest.approx(0.5, abs=0.03)
    assert torch.equal(pieces.angle, torch.zeros_like(pieces.angle))
    scars = cutpaste.draw_scars(4000, 256, seeded())
    assert (int(scars.width.min()), int(scars.width.max())) == (2, 16)
    assert (int(scars.height.min()), int(scars.height.max())) == (10, 25)
    assert 44 < math.degrees(float(scars.angle.abs().max())) <= 45
    for drawn, side in ((pieces, 256), (scars, 256), (cutpaste.draw_scars(500, 8, seeded()), 8)):
        for middles in (drawn.source, drawn.target):
            for middle, size in zip(middles, (drawn.height, drawn.width), strict=True):
                assert (middle - (size - 1) / 2 >= 0).all()
                assert (middle + (size - 1) / 2 <= side - 1).all()
    small = cutpaste.draw_scars(500, 32, seeded())
    assert set(small.width.unique().tolist()) == {1, 2}
    assert set(small.height.unique().tolist()) == {2, 3}


def test_three_ways_are_the_image_a_rectangle_and_a_scar() -> None:
    made, tasks = cutpaste.three_ways(pictures(20, side=32), seeded())
    assert tasks.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    whole, rectangle, scar = made.chunk(3)
    changed = [(part != whole).any(1).float().mean(dim=(1, 2)) for part in (rectangle, scar)]
    assert (changed[0] > 0.01).all()
    assert (changed[0] < 0.2).all()
    assert (changed[1] > 0).all()
    assert (changed[1] < 0.02).all()


def test_pieces_are_told_apart(runs: dict[str, Run]) -> None:
    # A guess is right in a third of cases; most scars on so small an image are two pixels of noise.
    assert runs["cutpaste"].scorer.details["task_accuracy"] > 0.42


def test_gaussian_distance_and_shrinkage_by_a_slow_loop() -> None:
    features = torch.randn(30, 4, generator=seeded()) @ torch.randn(4, 4, generator=seeded(1))
    gaussian = cutpaste.Gaussian(features)
    x = features.double().numpy()
    mean = x.mean(0)
    products = [np.outer(row - mean, row - mean) for row in x]
    sample = sum(products) / len(x)
    level = np.trace(sample) / 4
    distance = ((sample - level * np.eye(4)) ** 2).sum()
    error = sum(((product - sample) ** 2).sum() for product in products) / len(x) ** 2
    shrinkage = min(error, distance) / distance
    assert 0 < shrinkage < 1
    assert gaussian.shrinkage == pytest.approx(shrinkage)
    precision = np.linalg.inv((1 - shrinkage) * sample + shrinkage * level * np.eye(4))
    asked = np.array([[1.0, 2, 3, 4], [0, 0, 0, 0]])
    expected = [math.sqrt((row - mean) @ precision @ (row - mean)) for row in asked]
    assert gaussian.distance(torch.tensor(asked)).tolist() == pytest.approx(expected, rel=1e-5)


def test_gaussian_agrees_with_a_peer_library() -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    features = torch.randn(50, 6, generator=seeded()) * torch.tensor([1.0, 2, 3, 4, 5, 0])
    fitted = covariance.LedoitWolf().fit(features.double().numpy())
    gaussian = cutpaste.Gaussian(features)
    assert gaussian.shrinkage == pytest.approx(fitted.shrinkage_)
    expected = np.sqrt(fitted.mahalanobis(features.double().numpy() + 1))
    assert gaussian.distance(features + 1).tolist() == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_feature_that_never_fired_counts_and_constant_features_do_no_harm() -> None:
    features = torch.randn(100, 3, generator=seeded()) * torch.tensor([1.0, 1.0, 0.0])
    gaussian = cutpaste.Gaussian(features)
    ordinary, fired = gaussian.distance(torch.tensor([[1.0, 1, 0], [1.0, 1, 1]])).tolist()
    assert fired > 1.2 * ordinary
    constant = cutpaste.Gaussian(torch.ones(10, 3))
    assert torch.isfinite(constant.distance(torch.tensor([[1.0, 1, 1], [2.0, 1, 1]]))).all()


# DRAEM


def slow_ssim(first: Tensor, second: Tensor) -> float:
    """One channel, one image: every mean a sum over a window, zeros beyond the image."""
    side = first.shape[-1]
    bell = [math.exp(-((i - 5) ** 2) / (2 * 1.5**2)) for i in range(11)]
    total = sum(bell)
    values = []
    for row, column in itertools.product(range(side), range(side)):
        sums = [0.0] * 5
        for i, j in itertools.product(range(11), range(11)):
            y, x = row + i - 5, column + j - 5
            if 0 <= y < side and 0 <= x < side:
                a, b, weight = float(first[y, x]), float(second[y, x]), bell[i] * bell[j] / total**2
                for position, value in enumerate((a, b, a * a, b * b, a * b)):
                    sums[position] += weight * value
        a, b, aa, bb, ab = sums
        numerator = (2 * a * b + 1e-4) * (2 * (ab - a * b) + 9e-4)
        values.append(numerator / ((a * a + b * b + 1e-4) * (aa - a * a + bb - b * b + 9e-4)))
    return sum(values) / len(values)


def test_ssim_by_a_slow_loop_and_of_equal_images() -> None:
    first, second = pictures(1, 1, 9)[0, 0], pictures(1, 1, 9, seed=5)[0, 0]
    assert float(draem.ssim(first[None, None], second[None, None])) == pytest.approx(slow_ssim(first, second), abs=1e-4)
    both = pictures(3)
    assert float(draem.ssim(both, both)) == pytest.approx(1, abs=1e-6)
    near, far = both + 0.02 * torch.randn_like(both), both + 0.5 * torch.randn_like(both)
    assert 1 > draem.ssim(both, near) > draem.ssim(both, far)


def test_focal_loss_by_hand() -> None:
    # Logits (0, log 3): p = (¼, ¾). The first pixel is an anomaly, the second is not.
    logits = torch.tensor([0.0, math.log(3)]).view(1, 2, 1, 1).expand(1, 2, 1, 2)
    mask = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    expected = (-(0.25**2) * math.log(0.75) - 0.75**2 * math.log(0.25)) / 2
    assert float(draem.focal_loss(logits, mask)) == pytest.approx(expected)


def test_blending_by_hand() -> None:
    image, foreign = torch.full((1, 1, 1, 2), 0.2), torch.full((1, 1, 1, 2), 1.0)
    mask, opacity = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor(0.25).view(1, 1, 1, 1)
    # 0.75 · 0.2 + 0.25 · 1 under the mask, 0.2 beside it.
    assert draem.blend(image, foreign, mask, opacity).flatten().tolist() == pytest.approx([0.4, 0.2])


def test_anomalies_are_where_the_mask_says_and_half_of_the_images_stay_whole() -> None:
    pixels = pictures(400)
    given, mask = draem.draw_anomalies(pixels, draem.Foreign((3, SIDE, SIDE), None, pixels.device), seeded())
    outside = (mask == 0).expand_as(pixels)
    assert torch.equal(given[outside], pixels[outside])
    assert (given[~outside] != pixels[~outside]).float().mean() > 0.9
    assert ((given >= 0) & (given <= 1)).all()
    touched = mask.flatten(1).any(1).float().mean()
    assert 0.3 < touched < 0.5


def test_given_textures_are_what_is_blended_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draem, "changed", lambda pixels, generator: pixels)
    textures = torch.tensor([255, 128], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, SIDE, SIDE)
    foreign = draem.Foreign((3, SIDE, SIDE), textures, torch.device("cpu"))
    drawn = foreign.draw(pictures(50), seeded())
    assert sorted(drawn.unique().tolist()) == pytest.approx([128 / 255, 1])
    # Without them: other images of the batch, never the same one, or smooth patterns.
    pixels = pictures(50)
    drawn = draem.Foreign((3, SIDE, SIDE), None, torch.device("cpu")).draw(pixels, seeded())
    same = (drawn[:, None] == pixels[None]).flatten(2).all(2)
    assert not same.diagonal().any()
    assert 15 < same.any(1).sum() < 35


def test_textures_change_what_is_learned() -> None:
    problem = stripes(size=32, epochs=1)
    textures = torch.full((1, 1, SIDE, SIDE), 255, dtype=torch.uint8)
    given = draem.draem(problem, None, QUIET, width=2, textures=textures)
    default = draem.draem(problem, None, QUIET, width=2)
    assert (given.details["textures"], default.details["textures"]) == (1, 0)
    x = torch.randn(4, 1, SIDE, SIDE, generator=seeded())
    assert not torch.equal(given.score(x), default.score(x))


@pytest.mark.parametrize("side", [8, 12, 17, 32])
def test_networks_of_draem_keep_the_size_of_the_image(side: int) -> None:
    images = pictures(2, 3, side)
    restored = unet.Restoring(3, side, 4)(images)
    assert restored.shape == images.shape
    assert unet.Marking(3, side, 2)(restored, images).shape == (2, 2, side, side)


def test_networks_of_draem_have_the_shape_of_the_authors() -> None:
    # Counted by hand from the layers: 3×3 convolutions with bias, and two numbers per channel of a batch norm.
    def convolutions(*channels: int) -> int:
        return sum(9 * a * b + b + 2 * b for a, b in itertools.pairwise(channels))

    w = 4
    down = convolutions(3, w, w) + convolutions(w, 2 * w, 2 * w) + convolutions(2 * w, 4 * w, 4 * w)
    down += convolutions(4 * w, 8 * w, 8 * w) + convolutions(8 * w, 8 * w, 8 * w)
    up = convolutions(8 * w, 8 * w, 8 * w, 4 * w) + convolutions(4 * w, 4 * w, 4 * w, 2 * w)
    up += convolutions(2 * w, 2 * w, 2 * w, w) + convolutions(w, w, w, w)
    restoring = unet.Restoring(3, 256, w)
    assert sum(part.numel() for part in restoring.parameters()) == down + up + 9 * w * 3 + 3
    marking = unet.Marking(3, 256, w)
    down = convolutions(6, w, w) + convolutions(w, 2 * w, 2 * w) + convolutions(2 * w, 4 * w, 4 * w)
    down += convolutions(4 * w, 8 * w, 8 * w) + 2 * convolutions(8 * w, 8 * w, 8 * w)
    up = convolutions(8 * w, 8 * w) + convolutions(16 * w, 8 * w, 8 * w)
    up += convolutions(8 * w, 4 * w) + convolutions(12 * w, 4 * w, 4 * w)
    up += convolutions(4 * w, 2 * w) + convolutions(6 * w, 2 * w, 2 * w)
    up += convolutions(2 * w, w) + convolutions(3 * w, w, w) + convolutions(w, w) + convolutions(2 * w, w, w)
    assert sum(part.numel() for part in marking.parameters()) == down + up + 9 * w * 2 + 2


def test_restoring_cannot_look_past_its_narrow_end_but_marking_can() -> None:
    images = pictures(2, 1, 16).requires_grad_()
    restoring, marking = unet.Restoring(1, 16, 4), unet.Marking(1, 16, 4)
    for network in (restoring, marking):
        network.down.blocks[-1].register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    (past,) = torch.autograd.grad(restoring(images).sum(), images, allow_unused=True)
    assert past is None
    (past,) = torch.autograd.grad(marking(torch.zeros_like(images), images)[0].sum(), images, allow_unused=True)
    assert past is not None
    assert (past != 0).any()


def test_image_score_by_hand() -> None:
    assert [draem.filter_side(side) for side in (8, 32, 64, 256, 224)] == [3, 3, 5, 21, 19]
    marks = torch.zeros(2, 1, 8, 8)
    marks[0, 0, 3:5, 3:5] = 0.9
    marks[1, 0, 0, 0] = 0.9
    assert draem.image_score(marks).tolist() == pytest.approx([4 * 0.9 / 9, 0.9 / 9])


def test_an_image_with_something_foreign_in_it_scores_higher(runs: dict[str, Run]) -> None:
    problem, scorer = runs["draem"].problem, runs["draem"].scorer
    whole = stripes(size=100, seed=11).images.float() / 255
    given = whole.clone()
    given[:, :, 3:9, 3:9] = (torch.arange(6)[:, None] + torch.arange(6)) % 2
    score = torch.cat([scorer.score(views.to_network(problem, images)) for images in (whole, given)])
    assert auroc(np.arange(200) >= 100, score.numpy()) > 0.95


# CSI


def slow_contrastive_loss(z: Tensor, labels: list[int], temperature: float) -> float:
    count = len(labels)
    unit = [row / row.norm() for row in z.double()]
    total = 0.0
    for i in range(count):
        others = [a for a in range(count) if a != i]
        denominator = sum(math.exp(float(unit[i] @ unit[a]) / temperature) for a in others)
        positives = [p for p in others if labels[p] == labels[i]]
        shares = [math.exp(float(unit[i] @ unit[p]) / temperature) / denominator for p in positives]
        total += -sum(math.log(share) for share in shares) / len(positives)
    return total / count


@pytest.mark.parametrize("temperature", [0.5, 0.07])
def test_contrastive_loss_by_a_slow_loop(temperature: float) -> None:
    z = torch.randn(10, 3, generator=seeded())
    labels = [0, 1, 2, 0, 1, 0, 1, 2, 0, 1]
    expected = slow_contrastive_loss(z, labels, temperature)
    assert float(csi.contrastive_loss(z, torch.tensor(labels), temperature)) == pytest.approx(expected, rel=1e-4)
    # Only directions count.
    assert float(csi.contrastive_loss(7 * z, torch.tensor(labels), temperature)) == pytest.approx(expected, rel=1e-4)


def test_contrastive_loss_pulls_equal_labels_together_and_has_a_finite_gradient() -> None:
    z = torch.randn(8, 4, generator=seeded()).requires_grad_()
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    csi.contrastive_loss(z, labels).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().sum() > 0
    together = torch.eye(4).repeat(2, 1)
    apart = torch.cat((torch.eye(4), torch.eye(4).roll(1, 0)))
    assert csi.contrastive_loss(together, labels) < csi.contrastive_loss(apart, labels)


def test_a_turned_image_is_of_another_class() -> None:
    assert csi.shifted_labels(torch.tensor([1, 0]), 3).tolist() == [1, 0, 4, 3, 7, 6, 10, 9]


def test_contrast_is_trained_on_both_views_of_all_turns_of_a_quarter_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Tensor, Tensor]] = []
    loss = csi.contrastive_loss

    def watched(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
        calls.append((embeddings, labels))
        return loss(embeddings, labels, temperature)

    monkeypatch.setattr(csi, "contrastive_loss", watched)
    csi.csi(stripes(size=64, epochs=1), None, QUIET)
    assert [len(labels) for _, labels in calls] == [8 * 16] * 4
    for embeddings, labels in calls:
        assert embeddings.shape == (128, csi.PROJECTION)
        first, second = labels.chunk(2)
        assert torch.equal(first, second)
        assert torch.equal(first[16:32], first[:16] + 4)
        assert torch.equal(first[48:], first[:16] + 12)


def test_ensemble_by_hand() -> None:
    # Features are the corner pixel after each turn; the joint layer's row k + K s multiplies it by 10 s + k.
    body = torch.nn.Sequential(torch.nn.Flatten())
    heads = csi.Heads(4, 2)
    with torch.no_grad():
        heads.joint.weight.zero_()
        heads.joint.bias.zero_()
        for turn, label in itertools.product(range(4), range(2)):
            heads.joint.weight[label + 2 * turn, 0] = 10 * turn + label
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    corners = [float(torch.rot90(image, turn, (2, 3))[0, 0, 0, 0]) for turn in range(4)]
    assert corners == [1, 2, 4, 3]
    expected = [sum((10 * turn + label) * corner for turn, corner in enumerate(corners)) / 4 for label in (0, 1)]
    assert csi.Ensemble(body, heads)(image)[0].tolist() == pytest.approx(expected)


def test_turns_are_learned_where_they_can_be_seen() -> None:
    # A bright edge at the top, over the whole width or its left half: every turn of every class looks different.
    generator = seeded()
    labels = torch.randint(0, 2, (256,), generator=generator)
    pixels = 0.1 * torch.rand(256, 1, 8, 8, generator=generator)
    pixels[:, :, :2] += 0.5
    pixels[labels == 1, :, :2] += 0.35
    given = stripes(size=32, epochs=5)
    problem = Problem((255 * pixels).to(torch.uint8), labels.numpy(), 2, given.recipe, given.device)
    gentle = views.ContrastiveViews(
        jitter=views.Jitter(brightness=0.05, contrast=0.05, saturation=0, hue=0), scale=(0.8, 1.0)
    )
    scorer = csi.csi(problem, None, QUIET, views=gentle)
    assert scorer.details["turn_accuracy"] > 0.7
    assert scorer.details["joint_accuracy"] > 0.5
    assert scorer.classifier is not None
    predicted = problem.predict(scorer.classifier).argmax(dim=1)
    assert (predicted == labels).float().mean() > 0.9
