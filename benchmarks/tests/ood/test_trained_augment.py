"""PixMix: the augmentations against the imaging library, the mixing by hand, the fractals as fractals, the training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from problems import striped
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.trained import pixmix
from sgoif_bench.ood.trained.enhance import ENHANCEMENTS

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
MEAN, SPREAD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def photographs(count: int = 12, side: int = 32) -> Tensor:
    """Bytes of many kinds: full range, low contrast, one value, two values, few values."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 3, side, side), generator=generator, dtype=torch.uint8)
    images[1::4] = images[1::4] // 4 + 60
    images[2] = 77
    images[3, :, : side // 2] = 3
    images[6] = images[6] // 64 * 70
    return images[:count]


def chosen(count: int, name: str, strength: float, sign: float) -> pixmix.Choice:
    kind = pixmix.AUGMENTATIONS.index(name)
    return pixmix.Choice(torch.full((count,), kind), torch.full((count,), strength), torch.full((count,), sign))


def imaging(image: Tensor, name: str, strength: float, sign: float) -> Tensor:
    """The same change by Pillow, with the strengths of the paper's code."""
    pillow = pytest.importorskip("PIL.Image")
    operations = pytest.importorskip("PIL.ImageOps")
    picture = pillow.fromarray(image.permute(1, 2, 0).numpy())
    height, width = image.shape[1:]
    shear = sign * strength * 0.3 / 10
    across, down = (sign * int(strength * (size / 3) / 10) for size in (width, height))
    coefficients = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, across, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, down),
    }
    if name in coefficients:
        changed = picture.transform(
            (width, height), pillow.Transform.AFFINE, coefficients[name], resample=pillow.Resampling.BILINEAR
        )
    elif name == "rotate":
        changed = picture.rotate(sign * int(strength * 30 / 10), resample=pillow.Resampling.BILINEAR)
    elif name == "posterize":
        changed = operations.posterize(picture, 4 - int(strength * 4 / 10))
    elif name == "solarize":
        changed = operations.solarize(picture, 256 - int(strength * 256 / 10))
    elif name in ENHANCEMENTS:
        enhance = getattr(pytest.importorskip("PIL.ImageEnhance"), name.capitalize())
        changed = enhance(picture).enhance(strength * 1.8 / 10 + 0.1)
    else:
        changed = getattr(operations, name)(picture)
    return torch.from_numpy(np.array(changed)).permute(2, 0, 1)


@pytest.mark.parametrize("name", pixmix.AUGMENTATIONS)
def test_augmentations_are_those_of_the_imaging_library(name: str) -> None:
    images = torch.cat([photographs(), photographs().flip(2)])[:, :, :, :24]
    augmenter = pixmix.Augmenter(images)
    for strength in (0.4, 1.7, 2.9, 9.0):
        for sign in (-1.0, 1.0):
            found = augmenter.apply(chosen(len(images), name, strength, sign))
            expected = torch.stack([imaging(image, name, strength, sign) for image in images])
            apart = (found.int() - expected.int()).abs()
            interpolated = name in ("rotate", "shear_x", "shear_y")
            assert int(apart.max()) <= int(interpolated or name in ENHANCEMENTS)
            assert float((apart > 0).float().mean()) < (0.02 if name in ENHANCEMENTS else 0.003)


def test_tables_by_hand() -> None:
    image = torch.tensor([[10, 20], [30, 60]], dtype=torch.uint8).view(1, 1, 2, 2)
    counts = pixmix.histograms(image)
    assert counts.sum() == 4
    assert counts[0, 0, [10, 20, 30, 60]].tolist() == [1, 1, 1, 1]
    stretched = pixmix.look_up(image, pixmix.autocontrast_table(counts))
    assert stretched.flatten().tolist() == [0, 51, 102, 255]
    assert pixmix.posterize_table(torch.tensor([3, 4]))[:, [31, 32, 47, 255]].tolist() == [
        [0, 32, 32, 224],
        [16, 32, 32, 240],
    ]
    assert pixmix.solarize_table(torch.tensor([200]))[0, [199, 200, 255]].tolist() == [199, 55, 0]
    # 1021 pixels, 255 of them the brightest: step 3; values 0, 1, 2 have 511, 255 and 255 pixels.
    channel = torch.cat([torch.full((511,), 0), torch.full((255,), 1), torch.full((255,), 2)]).to(torch.uint8)
    table = pixmix.equalize_table(pixmix.histograms(channel.view(1, 1, 1, -1)))
    assert table[0, 0, :3].tolist() == [0, (1 + 511) // 3, (1 + 766) // 3]


def test_every_image_of_a_batch_gets_its_own_change() -> None:
    images = torch.cat([photographs(), photographs().flip(2)])[: len(pixmix.AUGMENTATIONS)]
    kind, strength = torch.arange(len(images)), torch.linspace(1, 3, len(images))
    sign = torch.where(kind % 2 == 0, 1.0, -1.0)
    together = pixmix.Augmenter(images).apply(pixmix.Choice(kind, strength, sign))
    for row, name in enumerate(pixmix.AUGMENTATIONS):
        alone = pixmix.Augmenter(images[row : row + 1])
        single = alone.apply(chosen(1, name, float(strength[row]), float(sign[row])))
        assert torch.equal(together[row], single[0])


# Mixing


def test_mixing_by_hand() -> None:
    z, o = torch.tensor([0.5, 0.9, 0.0, 1.0]), torch.tensor([0.5, 0.1, 0.5, 0.0])
    a, b = torch.tensor(0.8), torch.tensor(0.25)
    expected = [(0.8 * (2 * p - 1) + 0.25 * (2 * q - 1) + 1) / 2 for p, q in zip(z.tolist(), o.tolist(), strict=True)]
    assert pixmix.mix_add(z, o, a, b).tolist() == pytest.approx(expected)
    product = pixmix.mix_multiply(z, o, a, b).tolist()
    assert product[:3] == pytest.approx([0.5, 1.8**0.8 * 0.2**0.25 / 2, 0.0])
    assert product[3] < 1e-6
    assert pixmix.mix_multiply(z, o, torch.tensor(1.5), torch.tensor(-0.9)).isfinite().all()


def mixer(pictures: Tensor, seed: int = 0, **settings: Any) -> pixmix.PixMix:
    return pixmix.PixMix(pictures, MEAN, SPREAD, torch.Generator().manual_seed(seed), **settings)


def test_weights_have_the_distributions_of_the_paper() -> None:
    a, b = (part.flatten() for part in mixer(photographs(), beta=3.0).weights(40_000))
    inner = b > 0
    assert float(inner.float().mean()) == pytest.approx(0.5, abs=0.01)
    # Beta(3, 1) has mean 3/4 and variance 3/80, Beta(1, 3) mean 1/4 and the same variance.
    for values, mean in ((a[inner], 0.75), (b[inner], 0.25), (a[~inner], 1.25), (b[~inner], -0.25)):
        assert float(values.mean()) == pytest.approx(mean, abs=0.01)
        assert float(values.var()) == pytest.approx(3 / 80, abs=0.003)
    assert abs(float(torch.corrcoef(torch.stack([a[inner], b[inner]]))[0, 1])) < 0.03


def test_choices_cover_every_augmentation_evenly_and_mildly() -> None:
    kind, strength, sign = mixer(photographs(), severity=3.0).choose(26_000)
    assert torch.bincount(kind).tolist() == pytest.approx([2000] * 13, rel=0.1)
    assert 0.1 <= float(strength.min()) < 0.11
    assert 2.99 < float(strength.max()) <= 3.0
    assert sorted(sign.unique().tolist()) == [-1, 1]


def test_crops_are_windows_of_the_pictures() -> None:
    pictures = torch.randint(0, 256, (5, 3, 9, 9), dtype=torch.uint8)
    crops = mixer(pictures).crop(50, 8, 7)
    windows = {
        tuple(picture[:, y : y + 8, x : x + 7].flatten().tolist()): (number, y, x)
        for number, picture in enumerate(pictures)
        for y in range(2)
        for x in range(3)
    }
    found = {windows[tuple(crop.flatten().tolist())] for crop in crops}
    assert len({number for number, _, _ in found}) == 5
    assert {(y, x) for _, y, x in found} == {(y, x) for y in range(2) for x in range(3)}


def test_without_rounds_half_of_the_images_stay_and_half_are_augmented() -> None:
    images = photographs(4)[:1].expand(400, -1, -1, -1)
    x = normalise(images, MEAN, SPREAD)
    out = mixer(photographs(), rounds=0)(x)
    same = torch.isclose(out, x, atol=1e-4).flatten(1).all(dim=1)
    # Translations by no pixel and rotations by no degree leave an image too.
    assert 0.45 < float(same.float().mean()) < 0.7


def test_mixed_images_are_what_the_paper_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the chances fixed, the whole recipe in plain numbers: first augmented, then the picture added twice."""
    images, pictures = photographs(6), photographs(6).flip(3)
    made = mixer(pictures, rounds=2)
    solarized = pixmix.Augmenter(images).apply(chosen(6, "solarize", 2.9, 1.0)).float() / 255
    coins = iter([True, False, True, False, False])  # start augmented; (picture, add); (picture, multiply)
    monkeypatch.setattr(made, "_coin", lambda count: torch.full((count, 1, 1, 1), next(coins)))
    monkeypatch.setattr(made, "_uniform", lambda *shape: torch.full(shape, 0.999))
    monkeypatch.setattr(made, "choose", lambda count: chosen(count, "solarize", 2.9, 1.0))
    monkeypatch.setattr(made, "weights", lambda count: (torch.tensor(1.2), torch.tensor(-0.3)))
    monkeypatch.setattr(made, "crop", lambda count, height, width: pictures)
    other = pictures.float() / 255
    z = ((1.2 * (2 * solarized - 1) - 0.3 * (2 * other - 1) + 1) / 2).clamp(0, 1)
    z = ((2 * z) ** 1.2 * (2 * other).clamp_min(1e-37) ** -0.3 / 2).clamp(0, 1)
    expected = (z - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(SPREAD).view(1, 3, 1, 1)
    assert torch.allclose(made(normalise(images, MEAN, SPREAD)), expected, atol=1e-4)


def test_number_of_rounds_is_even_from_none_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.full((3000, 3, 2, 2), 100, dtype=torch.uint8)
    made = mixer(images[:1], rounds=4)
    monkeypatch.setattr(made, "choose", lambda count: chosen(count, "autocontrast", 1.0, 1.0))
    monkeypatch.setattr(pixmix, "mix_add", lambda z, o, a, b: z + 0.1)
    monkeypatch.setattr(pixmix, "mix_multiply", lambda z, o, a, b: z + 0.1)
    out = made(normalise(images, MEAN, SPREAD))[:, 0, 0, 0] * SPREAD[0] + MEAN[0]
    rounds = ((out - 100 / 255) / 0.1).round().long()
    assert torch.bincount(rounds).tolist() == pytest.approx([600] * 5, rel=0.15)


def test_mixing_keeps_layout_and_range_and_repeats_by_seed() -> None:
    x = normalise(photographs(), MEAN, SPREAD).contiguous(memory_format=torch.channels_last)
    once, again, other = (mixer(photographs(), seed=seed)(x) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.allclose(once, other)
    assert once.is_contiguous(memory_format=torch.channels_last)
    pixels = once * torch.tensor(SPREAD).view(1, 3, 1, 1) + torch.tensor(MEAN).view(1, 3, 1, 1)
    assert float(pixels.min()) > -1e-4
    assert float(pixels.max()) < 1 + 1e-4


# Fractals


def test_systems_contract_and_keep_the_rule_of_singular_values() -> None:
    systems = pixmix.draw_systems(300, torch.Generator().manual_seed(0))
    sigma = torch.linalg.svdvals(systems.matrices)
    assert float(sigma.max()) < 1
    present = systems.probabilities > 0
    sizes = present.sum(dim=1)
    assert sorted(sizes.unique().tolist()) == [2, 3, 4, 5, 6]
    assert torch.allclose(systems.probabilities.sum(dim=1), torch.ones(300))
    sums = ((sigma[..., 0] + 2 * sigma[..., 1]) * present).sum(dim=1)
    inside = (sums > (5 + sizes) / 2 - 0.25) & (sums < (6 + sizes) / 2 + 0.25)
    assert float(inside.float().mean()) > 0.95
    assert systems.matrices.det().sign().unique().tolist() == [-1, 1]


def test_the_chaos_game_draws_the_attractor() -> None:
    """Three halvings towards corners make the Sierpinski triangle, which has no points in its middle triangles."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    matrices = (0.5 * torch.eye(2)).expand(1, pixmix.MOST_MAPS, 2, 2)
    shifts = torch.zeros(1, pixmix.MOST_MAPS, 2)
    shifts[0, :3] = corners / 2
    probabilities = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0, 0, 0]])
    systems = pixmix.Systems(matrices, shifts, probabilities)
    points, colours = pixmix.visits(systems, torch.Generator().manual_seed(0))
    assert points.shape == (1, pixmix.WALKERS * pixmix.VISITS, 2)
    assert ((colours >= 0) & (colours <= 1)).all()
    # In binary, the coordinates of a point of this triangle never have a 1 in the same place.
    digits = (points[0].double() * 2**8).long()
    assert ((digits[:, 0] & digits[:, 1]) == 0).double().mean() > 0.999
    cells = {tuple(cell) for cell in (points[0] * 2**5).long().tolist()}
    assert len(cells) == 3**5, "every cell of the fifth generation is visited"


def test_pictures_are_coloured_varied_and_repeatable() -> None:
    once, again = (pixmix.fractals(12, 18, torch.Generator().manual_seed(4)) for _ in range(2))
    assert once.shape == (12, 3, 18, 18)
    assert once.dtype == torch.uint8
    assert torch.equal(once, again)
    flat = once.float().flatten(1)
    assert float(torch.cdist(flat, flat)[~torch.eye(12, dtype=torch.bool)].min()) > 500
    assert float(once.float().flatten(2).std(dim=2).mean()) > 20
    assert float((once.float().amax(dim=1) - once.float().amin(dim=1)).mean()) > 30
    rough = (once[:, :, 1:].int() - once[:, :, :-1].int()).abs().float().mean(dim=(1, 2, 3))
    smooth = pixmix.background(12, 18, torch.Generator().manual_seed(4)) * 255
    assert float(rough.min()) > 3 * float((smooth[:, :, 1:] - smooth[:, :, :-1]).abs().mean() / 3)


def test_pictures_are_brought_to_the_images() -> None:
    grey = pixmix.brought_to(photographs(4, side=20), 1, 16, 8)
    assert grey.shape == (4, 1, 18, 9)
    mean = photographs(4, side=18).float().mean(dim=1, keepdim=True)
    assert torch.equal(pixmix.brought_to(photographs(4, side=18), 1, 16, 16), mean.round().to(torch.uint8))
    same = photographs(4, side=36)
    assert torch.equal(pixmix.brought_to(same, 3, 32, 32), same)
    assert pixmix.brought_to(grey, 3, 16, 8).shape == (4, 3, 18, 9)
    dark = pixmix.brought_to(torch.full((1, 3, 50, 70), 9, dtype=torch.uint8), 3, 32, 32)
    assert dark.unique().tolist() == [9]


# Training


def clean(size: int = 300, epochs: int = 8) -> Problem:
    problem, _ = striped(size=size, epochs=epochs, rate=0.0, seed=3, noise=0.2)
    return problem


def test_noise_scores_higher_than_new_stripes_which_are_classified() -> None:
    problem, lines = clean(), []
    state = torch.get_rng_state()
    scorer = pixmix.pixmix(problem, None, lines.append, pictures=40)
    assert torch.equal(state, torch.get_rng_state())
    assert len(lines) == 9
    assert scorer.trainings == 1
    assert scorer.details == {"pictures": 40, "rounds": 4, "beta": 3.0, "severity": 3.0}
    unseen, _ = striped(size=150, rate=0.0, seed=11, noise=0.2)
    noise = torch.randint(0, 256, (150, 1, 12, 12), dtype=torch.uint8)
    inside, outside = (normalise(images, problem.mean, problem.spread) for images in (unseen.images, noise))
    scores = torch.cat([scorer.score(inside), scorer.score(outside)])
    assert scores.isfinite().all()
    assert auroc(np.arange(300) >= 150, scores.numpy()) > 0.9
    assert torch.equal(scores[:150], scorer.score(inside)), "scores must not be mixed"
    assert scorer.classifier is not None
    assert (scorer.classifier(inside).argmax(dim=1).numpy() == unseen.labels).mean() > 0.95
    # Training mode does not mix any more either.
    scorer.classifier.train()
    assert not scorer.classifier._forward_pre_hooks


def test_training_sees_mixed_images_and_a_given_mixing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = clean(size=100, epochs=2)
    given = torch.full((3, 3, 20, 20), 200, dtype=torch.uint8)
    sets: list[Tensor] = []
    mixed: list[int] = []

    class Marked(pixmix.PixMix):
        def __init__(self, pictures: Tensor, *rest: Any) -> None:
            sets.append(pictures)
            super().__init__(pictures, *rest)

        def __call__(self, x: Tensor) -> Tensor:
            mixed.append(len(x))
            return torch.full_like(x, 0.25)

    monkeypatch.setattr(pixmix, "PixMix", Marked)
    seen: list[Tensor] = []
    model = problem.new_model()
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    monkeypatch.setattr(Problem, "new_model", lambda self, number=0: model)
    pixmix.pixmix(problem, None, lambda line: None, mixing_set=given)
    assert [tuple(pictures.shape) for pictures in sets] == [(3, 1, 14, 14)]
    assert sets[0].unique().tolist() == [200]
    assert sum(mixed) == 200
    assert all(torch.equal(x, torch.full_like(x, 0.25)) for x in seen)


def test_settings_are_checked() -> None:
    problem = clean(size=64)
    wrong: dict[str, Any] = {
        "mixing_set": torch.rand(3, 3, 8, 8),
        "pictures": 0,
        "rounds": -1,
        "beta": 0.0,
        "severity": 11.0,
    }
    for name, value in wrong.items():
        with pytest.raises(SettingError, match=name):
            pixmix.pixmix(problem, None, lambda line: None, **{name: value})
    with pytest.raises(SettingError, match="mixing_set"):
        pixmix.pixmix(problem, None, lambda line: None, mixing_set=photographs(2)[0])
    assert math.isclose(pixmix.PICTURE_SCALE, 1.125)
