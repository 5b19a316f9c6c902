"""ARPL: reciprocal points, their radius, and confusing samples."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from problems import striped
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.trained import arpl
from sgoif_bench.ood.trained.common import headless
from sgoif_bench.ood.trained.method import Scorer, Train

pytestmark = pytest.mark.long

SIDE = 12
QUIET: Callable[[str], None] = lambda line: None  # noqa: E731
METHODS: dict[str, Train] = {
    "with confusing samples": functools.partial(arpl.arpl, gan_width=4),
    "alone": functools.partial(arpl.arpl, confusing=False),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stripes(size: int = 320, epochs: int = 4, seed: int = 3) -> Problem:
    problem: Problem = striped(size=size, epochs=epochs, rate=0.0, seed=seed, noise=0.35, anchors=20)[0]
    return problem


def points_of(points: list[list[float]], radius: float = 0.0) -> arpl.ReciprocalPoints:
    made = arpl.ReciprocalPoints(len(points), len(points[0]))
    with torch.no_grad():
        made.points.copy_(torch.tensor(points))
        made.radius.fill_(radius)
    return made


@dataclasses.dataclass
class Run:
    problem: Problem
    scorer: Scorer
    lines: list[str]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    found = {}
    for name, method in METHODS.items():
        lines: list[str] = []
        problem = stripes()
        found[name] = Run(problem, method(problem, None, lines.append), lines)
    return found


# On a small problem


@pytest.mark.parametrize("name", METHODS)
def test_noise_scores_higher_than_images_of_the_training_kind(runs: dict[str, Run], name: str) -> None:
    problem, scorer = runs[name].problem, runs[name].scorer
    unseen = stripes(size=150, seed=9).images
    noise = torch.randint(0, 256, unseen.shape, generator=seeded()).to(torch.uint8)
    score = torch.cat([scorer.score(normalise(images, problem.mean, problem.spread)) for images in (unseen, noise)])
    assert score.shape == (300,)
    assert torch.isfinite(score).all()
    assert not score.requires_grad
    assert auroc(np.arange(300) >= 150, score.numpy()) > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_classes_are_learned_and_the_score_is_the_negative_largest_logit(runs: dict[str, Run], name: str) -> None:
    problem, scorer = runs[name].problem, runs[name].scorer
    unseen = stripes(size=150, seed=9)
    x = normalise(unseen.images, problem.mean, problem.spread)
    assert scorer.classifier is not None
    with torch.no_grad():
        logits = scorer.classifier(x)
    assert (logits.argmax(dim=1).numpy() == unseen.labels).mean() > 0.9
    torch.testing.assert_close(scorer.score(x), -logits.max(dim=1).values)


@pytest.mark.parametrize("name", METHODS)
def test_progress_is_told_and_details_fit_a_result_file(runs: dict[str, Run], name: str) -> None:
    scorer = runs[name].scorer
    assert len(runs[name].lines) == 4
    assert json.loads(json.dumps(scorer.details)) == scorer.details
    assert scorer.details["confusing"] == (name != "alone")
    assert scorer.trainings == (1 if name == "alone" else 3)
    # The radius is learned: the margin of the known examples pulls it up from its start at zero.
    assert scorer.details["radius"] > 0.1


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


@pytest.mark.parametrize(("channels", "side"), [(3, 8), (1, 17), (3, 32)])
def test_other_sizes_and_channels(channels: int, side: int) -> None:
    given = stripes(size=24, epochs=1)
    images = torch.randint(0, 256, (24, channels, side, side), generator=seeded()).to(torch.uint8)
    problem = Problem(images, given.labels, given.classes, given.recipe, given.device)
    scorer = arpl.arpl(problem, None, QUIET, gan_width=2)
    assert torch.isfinite(scorer.score(normalise(images[:4], problem.mean, problem.spread))).all()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="gan_width = 0"):
        arpl.arpl(stripes(size=24, epochs=1), None, QUIET, gan_width=0)
    given = stripes(size=24, epochs=1)
    long = Problem(torch.zeros(24, 1, 12, 20, dtype=torch.uint8), given.labels, 4, given.recipe, given.device)
    with pytest.raises(SettingError, match="12×20"):
        arpl.arpl(long, None, QUIET)


# Reciprocal points


def test_distances_and_logits_by_hand() -> None:
    points = points_of([[1.0, 0.0], [0.0, -2.0]])
    features = torch.tensor([[3.0, 2.0], [0.0, 0.0]])
    # ‖(2, 2)‖²/2 = 4 and ‖(3, 4)‖²/2 = 12.5; dots 3 and −4.
    torch.testing.assert_close(points.distances(features), torch.tensor([[4.0, 12.5], [0.5, 2.0]]))
    torch.testing.assert_close(points(features), torch.tensor([[1.0, 16.5], [0.5, 2.0]]))


def test_distances_by_a_slow_loop() -> None:
    points = arpl.ReciprocalPoints(5, 7)
    features = torch.randn(6, 7, generator=seeded())
    with torch.no_grad():
        expected = torch.stack([torch.stack([((f - p) ** 2).mean() for p in points.points]) for f in features])
        torch.testing.assert_close(points.distances(features), expected, rtol=1e-4, atol=1e-5)


def test_loss_by_hand() -> None:
    points = points_of([[1.0, 0.0], [0.0, -2.0]], radius=3.0)
    features = torch.tensor([[3.0, 2.0], [0.0, 0.0]])
    labels = torch.tensor([1, 0])
    # Logits (1, 16.5) and (0.5, 2). Own distances 12.5 and 0.5: outside by 12.5 − 3 + 1 = 10.5, and within.
    cross_entropy = (math.log(1 + math.exp(1 - 16.5)) + math.log(1 + math.exp(2 - 0.5))) / 2
    assert float(points.loss(features, labels).detach()) == pytest.approx(cross_entropy + 0.1 * 10.5 / 2, rel=1e-5)


def test_radius_grows_where_examples_lie_outside_and_stays_where_they_lie_within() -> None:
    features, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    # The own distance is 2, so the margin is met from R = 3 on.
    for radius, slope in ((0.0, -0.1), (2.9, -0.1), (3.1, 0.0)):
        points = points_of([[0.0, 0.0], [1.0, 1.0]], radius)
        points.loss(features, labels).backward()
        assert points.radius.grad is not None
        assert float(points.radius.grad) == pytest.approx(slope)


def test_confusion_loss_is_least_where_all_points_are_equally_far() -> None:
    points = points_of([[1.0, 0.0], [-1.0, 0.0]])
    with torch.no_grad():
        assert float(points.confusion_loss(torch.tensor([[0.0, 5.0]]))) == pytest.approx(0.5)
        assert float(points.confusion_loss(torch.tensor([[50.0, 0.0]]))) == pytest.approx(1.0)
        # Distances ½(1 + 1)² and 0 differ by 2, so q = (σ(−2), σ(2)); the mean of entropies is in the exponent.
        q = 1 / (1 + math.exp(2))
        entropy = -(q * math.log(q) + (1 - q) * math.log(1 - q))
        both = points.confusion_loss(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        assert float(both) == pytest.approx(math.exp(-(entropy + math.log(2)) / 2), rel=1e-5)


# Confusing samples


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 12), (3, 28), (3, 32), (3, 64)])
def test_generator_and_discriminator_fit_the_images(channels: int, side: int) -> None:
    made = arpl.Generator(channels, side, width=2)(torch.randn(3, arpl.NOISE))
    assert made.shape == (3, channels, side, side)
    assert arpl.Discriminator(channels, side, width=2)(made).shape == (3,)


def test_networks_for_32_pixels_are_those_of_the_authors() -> None:
    def shapes(network: nn.Module, kind: type[nn.Module]) -> list[tuple[int, ...]]:
        return [tuple(module.weight.shape) for module in network.modules() if isinstance(module, kind)]  # type: ignore[arg-type]

    generator, discriminator = arpl.Generator(3, 32), arpl.Discriminator(3, 32)
    expected = [(100, 512, 4, 4), (512, 256, 4, 4), (256, 128, 4, 4), (128, 3, 4, 4)]
    assert shapes(generator, nn.ConvTranspose2d) == expected
    assert shapes(generator, nn.BatchNorm2d) == [(512,), (256,), (128,)]
    expected = [(128, 3, 4, 4), (256, 128, 4, 4), (512, 256, 4, 4), (1024, 512, 4, 4)]
    assert shapes(discriminator, nn.Conv2d) == expected
    assert shapes(discriminator, nn.BatchNorm2d) == [(256,), (512,)]
    assert shapes(discriminator, nn.Linear) == [(1, 1024)]
    weights = torch.cat(
        [module.weight.flatten() for module in generator.modules() if isinstance(module, nn.ConvTranspose2d)]
    )
    assert float(weights.detach().std()) == pytest.approx(0.02, rel=0.02)


def test_generated_images_have_norms_of_their_own() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2)))
    twins = arpl.with_twin_norms(plain).train()
    found = [module for module in twins.modules() if isinstance(module, arpl.TwinNorm)]
    assert len(found) == 2
    real, generated = torch.zeros(4, 1, 6, 6), 5 + torch.randn(4, 1, 6, 6)
    with arpl.generated_images(twins):
        twins(generated)
    untouched = found[0].real.running_mean
    assert untouched is not None
    assert torch.equal(untouched, torch.zeros(2))
    assert found[0].generated.running_mean is not None
    moved = found[0].generated.running_mean.clone()
    assert (moved != 0).all()
    twins(real)
    assert torch.equal(found[0].generated.running_mean, moved)
    assert not torch.equal(untouched, torch.zeros(2))
    with pytest.raises(RuntimeError, match="stop"), arpl.generated_images(twins):
        raise RuntimeError("stop")
    assert not any(twin.sees_generated for twin in found)


def small_classifier(problem: Problem) -> arpl.Classifier:
    body, width = headless(problem.new_model())
    return arpl.Classifier(arpl.with_twin_norms(body), arpl.ReciprocalPoints(problem.classes, width)).train()


def test_a_lesson_teaches_generator_and_discriminator_and_leaves_the_classifier_alone() -> None:
    problem = stripes(size=64, epochs=1)
    classifier, confusion = small_classifier(problem), arpl.Confusion(problem, width=4)
    watched = {"generator": confusion.generator, "discriminator": confusion.discriminator, "classifier": classifier}
    before = {name: [p.detach().clone() for p in network.parameters()] for name, network in watched.items()}
    x, _, _ = next(iter(problem.batches()))
    confusion.learn(x, classifier)
    for name, network in watched.items():
        same = [torch.equal(old, new) for old, new in zip(before[name], network.parameters(), strict=True)]
        assert all(same) if name == "classifier" else not any(same)
        # A gradient left behind would become part of the next step.
        assert all(p.grad is None for p in network.parameters())


def test_discriminator_learns_to_tell_real_images_from_generated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arpl, "GAN_RATE", 0.01)
    problem = stripes(size=64, epochs=1)
    classifier, confusion = small_classifier(problem), arpl.Confusion(problem, width=4)
    x, _, _ = next(iter(problem.batches()))

    @torch.no_grad()
    def gap() -> float:
        return float(confusion.discriminator(x).mean() - confusion.discriminator(confusion.draw(64)).mean())

    start = gap()
    for _ in range(8):
        confusion.learn(x, classifier)
    assert gap() > start + 0.15


def test_generator_seeks_images_equally_far_from_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arpl, "GAN_RATE", 0.01)
    problem = stripes(size=64, epochs=1)
    x, _, _ = next(iter(problem.batches()))

    def confusion_after(weight: float) -> float:
        monkeypatch.setattr(arpl, "CONFUSION_WEIGHT", weight)
        torch.manual_seed(0)
        classifier, confusion = small_classifier(problem), arpl.Confusion(problem, width=4)
        with torch.no_grad():
            classifier.points.points.mul_(30)
        for _ in range(8):
            confusion.learn(x, classifier)
        with torch.no_grad(), arpl.generated_images(classifier):
            return float(classifier.points.confusion_loss(classifier.features(confusion.draw(64))))

    assert confusion_after(100.0) < 0.9 * confusion_after(0.0)


def test_every_step_shows_the_classifier_real_images_once_and_generated_ones_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[tuple[bool, bool]] = []
    features = arpl.Classifier.features

    def watched(self: arpl.Classifier, images: Tensor) -> Tensor:
        twin = next(module for module in self.modules() if isinstance(module, arpl.TwinNorm))
        passes.append((twin.sees_generated, images.requires_grad))
        return features(self, images)

    monkeypatch.setattr(arpl.Classifier, "features", watched)
    arpl.arpl(stripes(size=128, epochs=1), None, QUIET, gan_width=2)
    # The generator learns through the classifier; then real images; then generated ones that teach the classifier only.
    assert passes == [(True, True), (False, False), (True, False)] * 2


def test_confusing_samples_change_what_is_learned(runs: dict[str, Run]) -> None:
    x = torch.randn(5, 1, SIDE, SIDE, generator=seeded())
    first, second = (runs[name].scorer.score(x) for name in METHODS)
    assert (first - second).abs().max() > 1e-3
