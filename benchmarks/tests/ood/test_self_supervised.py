"""Methods that train on tasks of their own making, CutPaste, DRAEM and CSI, and the views of images they share."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from self_supervised_cases import SIDE, pictures, seeded, stripes
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.trained import csi, cutpaste, draem, perlin, unet, views
from sgoif_bench.ood.trained.method import Scorer, Train

pytestmark = pytest.mark.long

QUIET: Callable[[str], None] = lambda line: None  # noqa: E731
METHODS: dict[str, Train] = {
    "cutpaste": cutpaste.cutpaste,
    "draem": functools.partial(draem.draem, width=8, learning_rate=2e-3),
    "csi": csi.csi,
}


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


def test_contrast_has_the_numbers_of_the_authors_labelled_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    temperatures: list[float] = []
    optimizers: list[Any] = []
    plain = csi.contrastive_loss

    def loss(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
        temperatures.append(temperature)
        return plain(embeddings, labels, temperature)

    monkeypatch.setattr(csi, "contrastive_loss", loss)
    make = Problem.optimizer

    def kept(self: Problem, model: nn.Module, steps: int) -> Any:
        optimizers.append(pair := make(self, model, steps))
        return pair

    monkeypatch.setattr(Problem, "optimizer", kept)
    csi.csi(stripes(size=48, epochs=1), None, QUIET)
    assert set(temperatures) == {0.07}
    assert [group["weight_decay"] for group in optimizers[0][0].param_groups] == [1e-6]


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
    assert runs["csi"].scorer.trainings == 8 + 4
    assert runs["csi"].scorer.details["linear_epochs"] == 4


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
