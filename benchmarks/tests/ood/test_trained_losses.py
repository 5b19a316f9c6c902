"""Methods that train with a loss or a head of their own: LogitNorm, G-ODIN, VOS, UDG, MOS, and what they share."""

from __future__ import annotations

import copy
import dataclasses
import math
import runpy
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.audit.networks import ResNet9
from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.metrics import auroc
from sgoif_bench.models import small_cnn
from sgoif_bench.ood.trained import common, godin, logitnorm, mos, udg, vos
from sgoif_bench.ood.trained.method import Scorer

striped = runpy.run_path(str(Path(__file__).parents[1] / "labels" / "problems.py"))["striped"]
SIDE, TESTED = 12, 200
QUIET: Callable[[str], None] = lambda line: None  # noqa: E731


def clean(size: int = 400, epochs: int = 8, seed: int = 3, **settings: Any) -> Problem:
    """Stripes with right labels."""
    problem, _ = striped(size=size, epochs=epochs, rate=0.0, seed=seed, noise=0.2, **settings)
    return problem


def rings(count: int, seed: int) -> Tensor:
    """Circles as bright and as noisy as the stripes."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    down, across, radius = (4 + 4 * torch.rand(count, 1, 1, generator=generator) for _ in range(3))
    distance = ((y - down) ** 2 + (x - across) ** 2).sqrt() - (radius - 2)
    noise = 0.2 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (255 * ((-(distance**2)).exp() + noise).clamp(0, 1)).to(torch.uint8).unsqueeze(1)


def as_input(problem: Problem, images: Tensor) -> Tensor:
    return normalise(images, problem.mean, problem.spread)


METHODS: dict[str, Callable[[Problem], Scorer]] = {
    "logitnorm": lambda problem: logitnorm.logitnorm(problem, None, QUIET),
    # So small a network is pushed far by the usual steps, which only end where the score of a deep one falls again.
    "godin": lambda problem: godin.godin(slower(problem), None, QUIET, magnitudes=(0.0, 0.0025, 0.005)),
    "vos": lambda problem: vos.vos(problem, None, QUIET, draws=1000),
    "udg": lambda problem: udg.udg(problem, rings(200, seed=5), QUIET),
    "mos": lambda problem: mos.mos(problem, None, QUIET),
}


def slower(problem: Problem) -> Problem:
    recipe = dataclasses.replace(problem.recipe, epochs=15, learning_rate=0.05)
    return dataclasses.replace(problem, recipe=recipe)


@pytest.fixture(scope="module")
def runs() -> dict[str, Scorer]:
    problem = clean()
    state = torch.get_rng_state()
    found = {name: method(problem) for name, method in METHODS.items()}
    assert torch.equal(state, torch.get_rng_state()), "a method drew from the global generator"
    return found


@pytest.mark.parametrize("name", METHODS)
def test_rings_score_higher_than_new_stripes_which_are_classified(runs: dict[str, Scorer], name: str) -> None:
    problem, unseen, scorer = clean(), clean(size=TESTED, seed=11), runs[name]
    inside, outside = (as_input(problem, images) for images in (unseen.images, rings(TESTED, seed=6)))
    scores = torch.cat([scorer.score(inside), scorer.score(outside)])
    assert scores.shape == (2 * TESTED,)
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert len(scores.unique()) > 1.9 * TESTED
    assert auroc(np.arange(2 * TESTED) >= TESTED, scores.numpy()) > 0.85
    assert scorer.classifier is not None
    with torch.no_grad():
        answers = scorer.classifier.eval()(inside).argmax(dim=1).numpy()
    assert (answers == unseen.labels).mean() > 0.95
    with torch.inference_mode():
        assert torch.allclose(scorer.score(inside), scores[:TESTED], atol=1e-6)


def test_cost_is_counted_in_plain_trainings(runs: dict[str, Scorer]) -> None:
    assert runs["logitnorm"].trainings == runs["vos"].trainings == 1
    assert runs["godin"].trainings == pytest.approx(1 - 80 / 400, abs=0.01)
    assert runs["mos"].trainings == pytest.approx(1 + 2 / 8 / 3)
    # Batches of 57 or 58 of 400 stripes, and of 100 of 200 rings.
    assert runs["udg"].trainings == pytest.approx((400 + 7 * 100) / 400)


@pytest.mark.parametrize("name", ["logitnorm", "vos", "udg", "mos"])
def test_a_seed_repeats_the_result_and_another_does_not(name: str) -> None:
    problem = clean(size=120, epochs=2)
    images = as_input(problem, rings(20, seed=1))
    once, again = (METHODS[name](problem).score(images) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.allclose(once, METHODS[name](dataclasses.replace(problem, seed=4)).score(images))


# Shared


def test_doubt_is_exact_and_does_not_saturate() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [9.0, -3.0, 1.0], [4.0, 4.0, -1.0]])
    expected = 1 - logits.double().softmax(dim=1).max(dim=1).values
    assert torch.allclose(common.log_doubt(logits).double(), expected.log(), atol=1e-5)
    certain = common.log_doubt(torch.tensor([[400.0, 0.0], [500.0, 0.0]]))
    assert certain.tolist() == pytest.approx([-400, -500])


@pytest.mark.parametrize("model", [small_cnn(1, 3, width=4), ResNet9(1, 3, width=4, image=SIDE)])
def test_headless_network_gives_the_features_and_keeps_what_follows_the_head(model: nn.Module) -> None:
    model.eval()
    images, head = torch.randn(5, 1, SIDE, SIDE), last_linear(model)
    with common.Tap(model) as tap:
        model(images)
        features = tap.features
    assert not head._forward_pre_hooks
    body, width = common.headless(copy.deepcopy(model))
    assert width == head.in_features == features.shape[1]
    factor = 1 / 8 if isinstance(model, ResNet9) else 1.0
    assert torch.allclose(body(images), factor * features)


def test_tap_and_headless_say_what_is_missing() -> None:
    with common.Tap(small_cnn(1, 3, width=4)) as tap, pytest.raises(SettingError, match="no forward pass"):
        _ = tap.features
    with pytest.raises(SettingError, match="single linear layer"):
        common.headless(nn.Linear(3, 2))


def test_parameters_without_decay_stay_on_the_schedule() -> None:
    problem, layer = clean(size=64), nn.Linear(3, 3)
    optimizer, schedule = problem.optimizer(layer, 10)
    common.without_decay(optimizer, [layer.bias])
    assert [group["params"][0] is layer.weight for group in optimizer.param_groups] == [True, False]
    for step in range(1, 6):
        before = layer.weight.detach().clone(), layer.bias.detach().clone()
        layer.weight.grad, layer.bias.grad = torch.zeros(3, 3), torch.zeros(3)
        optimizer.step()
        schedule.step()
        twin, alone = problem.optimizer(nn.Linear(1, 1), 10)
        for _ in range(step):
            twin.step()
            alone.step()
        assert [group["lr"] for group in optimizer.param_groups] == 2 * alone.get_last_lr()
        assert torch.equal(layer.bias, before[1])
        assert (layer.weight.abs() < before[0].abs()).all()


def test_outliers_must_look_like_the_images() -> None:
    problem = clean(size=64)
    with pytest.raises(SettingError, match="UDG learns from a set of images without labels"):
        udg.udg(problem, None, QUIET)
    for wrong in (torch.rand(4, 1, SIDE, SIDE), torch.zeros(4, 3, SIDE, SIDE, dtype=torch.uint8), rings(1, 0)[:0]):
        with pytest.raises(SettingError, match=r"must be torch.uint8 \[M, 1, 12, 12\]"):
            udg.udg(problem, wrong, QUIET)


def test_kmeans_finds_blobs_and_loses_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    blobs = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]).repeat_interleave(30, dim=0)
    points = blobs + 0.3 * torch.randn(90, 2, generator=generator)
    which, centres = min(
        (common.kmeans(points, 3, 20, generator) for _ in range(5)),
        key=lambda found: float(common.nearest(points, found[1])[1].sum()),
    )
    assert sorted(which[::30].tolist()) == [0, 1, 2]
    assert torch.equal(which, which[::30].repeat_interleave(30))
    for cluster in range(3):
        assert torch.allclose(centres[cluster], points[which == cluster].mean(dim=0), atol=1e-5)
    same = torch.ones(10, 2)
    assert sorted(common.kmeans(same, 4, 3, generator)[0].unique().tolist()) == [0, 1, 2, 3]
    monkeypatch.setattr(common, "DISTANCES_AT_ONCE", 7)
    places, distances = common.nearest(points, centres)
    exact = torch.cdist(points.double(), centres.double())
    assert torch.equal(places, exact.argmin(dim=1))
    assert torch.allclose(distances.double(), exact.amin(dim=1) ** 2, atol=1e-4)
    with pytest.raises(SettingError, match="clusters = 11"):
        common.kmeans(same, 11, 3, generator)


# LogitNorm


def test_logitnorm_loss_by_hand() -> None:
    logits = torch.tensor([[3.0, 4.0], [-0.6, 0.8]])
    # Both rows have the directions (±0.6, 0.8); with τ = 0.5 they become (±1.2, 1.6).
    losses = [math.log(1 + math.exp(0.4)), math.log(1 + math.exp(-2.8))]
    labels = torch.tensor([0, 1])
    assert float(logitnorm.logitnorm_loss(logits, labels, 0.5)) == pytest.approx(sum(losses) / 2, rel=1e-5)
    longer = logitnorm.logitnorm_loss(100 * logits, labels, 0.5)
    assert float(longer) == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_logitnorm_trains_with_its_loss_and_scores_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = clean(size=120, epochs=2)
    images = as_input(problem, problem.images[:9])
    usual = logitnorm.logitnorm(problem, None, QUIET)
    assert usual.classifier is not None
    logits = usual.classifier(images).detach()
    certainty = 1 - usual.score(images).exp()
    assert torch.allclose(certainty, logits.softmax(dim=1).amax(dim=1), atol=1e-5)
    plain = problem.fit(problem.new_model(), problem.batches()).eval()
    monkeypatch.setattr(
        logitnorm, "logitnorm_loss", lambda logits, labels, temperature: F.cross_entropy(logits, labels)
    )
    replaced = logitnorm.logitnorm(problem, None, QUIET).classifier
    assert replaced is not None
    assert torch.equal(replaced(images), plain(images))
    assert not torch.allclose(logits, plain(images), rtol=1e-2)
    with pytest.raises(SettingError, match="temperature = 0"):
        logitnorm.logitnorm(problem, None, QUIET, temperature=0)


# G-ODIN


def flat_network() -> godin.DividendDivisor:
    network = godin.DividendDivisor(nn.Flatten(), 2, 3)
    with torch.no_grad():
        network.centroids.copy_(torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, -1.0]]))
    return network.eval()


def test_dividend_and_divisor_by_hand() -> None:
    network = flat_network()
    images = torch.tensor([[3.0, 4.0], [0.0, -2.0]]).view(2, 2, 1, 1)
    root = math.sqrt(0.5)
    expected = torch.tensor([[0.6, 0.8, -1.4 * root], [0.0, -1.0, root]])
    assert torch.allclose(network.dividends(images.flatten(1)), expected, atol=1e-3)
    assert torch.allclose(network.score(images), torch.tensor([0.8, root]), atol=1e-3)
    linear, norm = network.divisor
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.5, -1.0]]))
        linear.bias.copy_(torch.tensor([0.25]))
        norm.running_mean.fill_(1.0)
        norm.running_var.fill_(4.0)
        norm.weight.fill_(3.0)
        norm.bias.fill_(-1.0)
    inner = torch.tensor([0.5 * 3 - 4 + 0.25, 2 + 0.25])
    g = torch.sigmoid((inner - 1) / 2 * 3 - 1).unsqueeze(1)
    assert torch.allclose(network(images), expected / g, rtol=1e-2, atol=1e-3)


def test_step_raises_the_score_of_every_image_and_has_one_size_per_channel() -> None:
    problem = clean(size=64)
    network = godin.new_network(problem).eval()
    images = as_input(problem, problem.images[:12])
    steps = torch.full((1, 1, 1, 1), 1e-3)
    moved = godin.moved(network, images, steps)
    assert torch.allclose((moved - images).abs(), steps.expand_as(images), rtol=1e-2)
    with torch.no_grad():
        before, after = network.score(images), network.score(moved)
        back = network.score(2 * images - moved)
    assert (after > before).all()
    assert (back < before).all()
    assert torch.equal(godin.moved(network, images, 0 * steps), images)
    single = torch.cat([godin.moved(network, image.unsqueeze(0), steps) for image in images])
    assert torch.allclose(single, moved, atol=1e-6)


def test_a_tiny_divisor_spoils_no_gradient() -> None:
    u = torch.tensor([[2.0], [-3.0], [-60.0], [-200.0]], requires_grad=True)
    assert torch.allclose(godin.one_over_sigmoid(u[:2]), 1 / u[:2].sigmoid())
    cosines = torch.tensor([[0.9, 0.1]]).expand(4, 2)
    nn.functional.cross_entropy(cosines * godin.one_over_sigmoid(u), torch.zeros(4, dtype=torch.long)).backward()
    assert u.grad is not None
    assert torch.isfinite(u.grad).all()
    assert float(u.grad[0]) > 0, "a larger divisor, a less certain answer"


def test_an_image_far_from_all_others_in_a_batch_does_not_throw_the_weights_away() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = godin.DividendDivisor(nn.Flatten(), 8, 3)
        images = torch.randn(512, 8)
    downwards = -network.divisor[0].weight.detach().squeeze(0)
    images[0] = 100 * downwards / downwards.norm()
    with torch.no_grad():
        labels = network.dividends(images).argmin(dim=1)
        assert float(network.divisor(images).min()) < -15
    nn.functional.cross_entropy(network(images.view(512, 8, 1, 1)), labels).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert max(float(gradient.norm()) for gradient in gradients) < 10


def test_magnitude_is_the_one_with_the_largest_mean_score_on_the_given_rows() -> None:
    images = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8)
    given = clean(size=64)
    problem = Problem(images, np.arange(40) % 3, 3, given.recipe, given.device)
    network = godin.DividendDivisor(nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh()), 8, 3).eval()
    rows = np.arange(5, 25)
    means = {}
    for magnitude in (0.0, 0.05, 0.5, 5.0):
        x = as_input(problem, images[5:25])
        x.requires_grad_()
        network.score(x).sum().backward()
        assert x.grad is not None
        step = magnitude * x.grad.sign() / torch.tensor(problem.spread).view(1, 3, 1, 1)
        means[magnitude] = float(network.score(x + step).mean().detach())
    best = max(means, key=lambda magnitude: means[magnitude])
    assert best not in (0.0, 5.0), "the toy should have its best step in between"
    assert godin.choose_magnitude(network, problem, rows, list(means)) == best
    nn.init.constant_(network.centroids, math.nan)
    with pytest.raises(SettingError, match=r"G-ODIN diverged.*--learning-rate"):
        godin.choose_magnitude(network, problem, rows, list(means))


def test_godin_trains_outside_the_hold_out_and_without_decay_of_centroids(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = clean(size=160, epochs=1)
    freed: list[Any] = []
    chosen: list[Any] = []
    taught: list[int] = []
    monkeypatch.setattr(godin, "without_decay", lambda optimizer, parameters: freed.extend(parameters))
    monkeypatch.setattr(godin, "choose_magnitude", lambda network, given, rows, sizes: chosen.append(rows) or sizes[1])
    fit = Problem.fit

    def watched(self: Problem, model: nn.Module, batches: Any, **how: Any) -> nn.Module:
        taught.extend(batches.index.tolist())
        return fit(self, model, batches, **how)

    monkeypatch.setattr(Problem, "fit", watched)
    scorer = godin.godin(problem, None, QUIET, magnitudes=(0.04, 0.0, 0.01))
    assert isinstance(scorer.classifier, godin.DividendDivisor)
    assert len(freed) == 1
    assert freed[0] is scorer.classifier.centroids
    assert sorted([*taught, *chosen[0]]) == list(range(160))
    assert scorer.details["magnitude"] == 0.01
    images = as_input(problem, problem.images[:5])
    moved = godin.moved(scorer.classifier, images, torch.tensor(0.01 / problem.spread[0]).view(1, 1, 1, 1))
    assert torch.allclose(scorer.score(images), -scorer.classifier.score(moved), atol=1e-6)
    for wrong in ((), (-0.1, 0.1)):
        with pytest.raises(SettingError, match="magnitudes"):
            godin.godin(problem, None, QUIET, magnitudes=wrong)


def test_godin_that_diverges_ends_with_the_epoch() -> None:
    problem = clean(size=160, epochs=3)
    problem.recipe = dataclasses.replace(problem.recipe, learning_rate=1e30)
    with pytest.raises(SettingError, match=r"diverged in epoch 1;.*--learning-rate"):
        godin.godin(problem, None, QUIET)


# VOS


def test_queues_hold_the_latest_features_of_every_class() -> None:
    generator = torch.Generator().manual_seed(0)
    queues = vos.Queues(3, 5, 2, torch.device("cpu"))
    slow: list[deque[list[float]]] = [deque(maxlen=5) for _ in range(3)]
    for size in (4, 1, 9, 30, 7):
        labels = torch.randint(0, 3, (size,), generator=generator)
        features = torch.randn(size, 2, generator=generator)
        assert queues.full == all(len(queue) == 5 for queue in slow)
        queues.push(features, labels)
        for feature, label in zip(features.tolist(), labels.tolist(), strict=True):
            slow[label].append(feature)
    assert queues.full
    for label, queue in enumerate(slow):
        assert sorted(queues.features[label].tolist()) == sorted(queue)


def test_gaussians_share_one_covariance() -> None:
    queues = vos.Queues(2, 50, 3, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(100, 3, generator=generator) @ torch.randn(3, 3, generator=generator) + 4
    queues.push(features, torch.arange(100) % 2)
    means, factor = queues.gaussians()
    covariance = torch.zeros(3, 3)
    for label in range(2):
        own = features[label::2]
        assert torch.allclose(means[label], own.mean(dim=0), atol=1e-5)
        for row in own - own.mean(dim=0):
            covariance += torch.outer(row, row) / 100
    assert torch.allclose(factor @ factor.T, covariance + 1e-4 * torch.eye(3), atol=1e-4)


def test_virtual_outliers_are_the_least_likely_draws() -> None:
    means = torch.tensor([[0.0, 1.0, 2.0], [5.0, -5.0, 0.0]])
    factor = torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.1]])
    found = vos.virtual_outliers(means, factor, 200, 2, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    for place, mean in enumerate(means):
        gaussian = torch.distributions.MultivariateNormal(mean, scale_tril=factor)
        draws = mean + torch.randn(200, 3, generator=generator) @ factor.T
        least = gaussian.log_prob(draws).argsort()[:2]
        assert torch.allclose(found[2 * place : 2 * place + 2], draws[least], atol=1e-5)


def test_uncertainty_by_hand() -> None:
    uncertainty = vos.Uncertainty(3, torch.Generator().manual_seed(0))
    assert ((uncertainty.weight >= 0) & (uncertainty.weight <= 1)).all()
    with torch.no_grad():
        uncertainty.weight.copy_(torch.tensor([0.5, -2.0, 2.0]))
        uncertainty.slope.copy_(torch.tensor([-1.0, 0.5]))
        uncertainty.offset.copy_(torch.tensor([0.1, 0.2]))
    logits = torch.tensor([[1.0, 9.0, 0.0], [2.0, 0.0, 3.0]])
    virtual = torch.tensor([[-1.0, 0.0, -2.0]])
    energies = [math.log(0.5 * math.exp(row[0]) + 2 * math.exp(row[2])) for row in [*logits, *virtual]]
    assert uncertainty.energy(logits).tolist() == pytest.approx(energies[:2], rel=1e-5)
    losses = []
    for energy, label in zip(energies, (1, 1, 0), strict=True):
        answers = [-energy + 0.1, 0.5 * energy + 0.2]
        losses.append(math.log(sum(math.exp(answer) for answer in answers)) - answers[label])
    assert float(uncertainty.loss(logits, virtual).detach()) == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert uncertainty.energy(torch.tensor([[0.0, 900.0, 1.0]])).isfinite().all()


def test_virtual_outliers_go_through_the_head_only_once_they_are_due() -> None:
    problem = clean(size=64)
    model = problem.new_model()
    synthesis = vos.Synthesis(problem, model, length=10, draws=20)
    images, index = as_input(problem, problem.images), torch.arange(64)
    with synthesis.around(index):
        assert len(model(images)) == 64
    synthesis.on = True
    with synthesis.around(index), common.Tap(model) as tap:
        logits = model(images)
        features = tap.features.detach()
    head = last_linear(model)
    assert torch.equal(logits, F.linear(features, head.weight, head.bias))
    virtual = features[64:]
    assert logits.shape == (68, 4)
    means, factor = synthesis.queues.gaussians()
    away = torch.linalg.solve_triangular(factor, (virtual - means).T, upper=False).norm(dim=0)
    assert (away > math.sqrt(factor.shape[0])).all(), "outliers should lie farther out than usual draws"
    assert len(model(images)) == 64
    empty = vos.Synthesis(problem, model, length=200, draws=20)
    empty.on = True
    with empty.around(index):
        assert len(model(images)) == 64, "queues are not full yet"


def test_vos_starts_after_its_share_and_weight_zero_is_a_plain_training(runs: dict[str, Scorer]) -> None:
    details = runs["vos"].details
    assert details["start_epoch"] == 3
    assert details["steps_with_outliers"] == 5 * 7
    problem = clean(size=200, epochs=3)
    images = as_input(problem, problem.images[:20])
    without = vos.vos(problem, None, QUIET, weight=0.0, draws=50).classifier
    plain = problem.fit(problem.new_model(), problem.batches())
    with_outliers = vos.vos(problem, None, QUIET, weight=2.0, draws=50).classifier
    assert without is not None
    assert with_outliers is not None
    outputs = [model.eval()(images).detach() for model in (without, plain, with_outliers)]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-2)
    assert not torch.allclose(outputs[2], outputs[1], atol=0.1)


def test_vos_queue_is_as_long_as_the_smallest_class_can_fill() -> None:
    problem = clean(size=100)
    smallest = int(np.bincount(problem.labels).min())
    assert vos.queue_length(problem, 2) == 2 * smallest
    assert vos.queue_length(problem, 0) == smallest
    assert vos.queue_length(problem, 10_000) == 1000
    empty = dataclasses.replace(problem, classes=5)
    with pytest.raises(SettingError, match="has no examples"):
        vos.vos(empty, None, QUIET)
    for wrong in ({"weight": -1.0}, {"start_share": 1.0}, {"draws": 0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            vos.vos(problem, None, QUIET, **wrong)


# UDG


def test_filtering_by_hand() -> None:
    #          cluster 0: four of five are class 2     1: all unlabelled   2: exactly 80% class 0 of 5    3: mixed
    clusters = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3])
    labels = torch.tensor([2, 2, 2, 2, 2, -1, -1, -1, 0, 0, 0, 0, -1, 1, 0])
    found = udg.filtered(clusters, labels, count=5, classes=3, purity=0.8)
    assert found.tolist() == [2] * 6 + [-1] * 9
    assert udg.filtered(clusters, labels, 5, 3, 0.79).tolist() == [2] * 6 + [-1] * 2 + [0] * 5 + [-1] * 2


def test_cluster_weights_by_hand() -> None:
    weights = udg.cluster_weights(torch.tensor([0, 0, 0, 0, 2]), count=3)
    # Sizes 4, 0 and 1: 1/2 and 1, whose mean is 3/4; the empty cluster does not count.
    assert weights.tolist() == pytest.approx([2 / 3] * 4 + [4 / 3])


def test_udg_loss_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, -1.0], [0.5, 0.5]])
    second = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    labels, clusters = torch.tensor([0, 0, -1, -1]), torch.tensor([0, 2, 0, 1])
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5])
    logs, grouped = logits.log_softmax(dim=1), second.log_softmax(dim=1)
    supervised = -(logs[0, 0] + logs[1, 0]) / 2
    uniform = -(logs[2].mean() + logs[3].mean()) / 2
    clustered = -sum(weights[row] * grouped[row, clusters[row]] for row in range(4)) / 4
    found = udg.udg_loss(logits, second, labels, clusters, weights)
    assert float(found) == pytest.approx(float(supervised + 0.5 * uniform + 0.1 * clustered), rel=1e-5)
    known = udg.udg_loss(logits, second, torch.tensor([0, 0, 1, 1]), clusters, weights)
    assert known.isfinite()


def test_whitening_makes_directions_equal_and_rows_one_long() -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(300, 4, generator=generator) * torch.tensor([10.0, 1.0, 0.1, 0.0]) + 3
    white = udg.whitened(features, directions=2)
    # Rows of the left singular vectors are whitened rows; products between them do not depend on the sign of an axis.
    left, spread, _ = torch.linalg.svd(features - features.mean(dim=0), full_matrices=False)
    expected = F.normalize(left[:, :2], dim=1)
    assert spread[1] > 5 * spread[2]
    assert white.shape == (300, 2)
    assert torch.allclose(white @ white.T, expected @ expected.T, atol=1e-3)
    assert udg.whitened(features).shape == (300, 3)
    assert udg.whitened(torch.ones(5, 2)).isfinite().all()


def test_unlabelled_images_of_known_classes_get_their_label_and_others_none() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = 8 * torch.eye(3)
    given = torch.arange(300) % 3
    features = corners[given] + 0.3 * torch.randn(300, 3, generator=generator)
    labels = given.clone()
    hidden, strange = slice(150, 156), slice(156, 186)
    labels[hidden] = labels[strange] = -1
    labels[0] = 1  # a wrong label among the given ones is not corrected
    features[strange] = -8 + 0.3 * torch.randn(30, 3, generator=generator)
    order = torch.cat([torch.arange(150), torch.arange(186, 300), torch.arange(150, 186)])
    groups = udg.regroup(features[order], labels[order], 264, 8, 3, 0.8, generator)
    assert torch.equal(groups.labels[:264], labels[order][:264])
    assert torch.equal(groups.labels[264:270], given[hidden])
    assert (groups.labels[270:] == udg.UNKNOWN).all()
    assert len(groups.clusters.unique()) == 8


def test_udg_filters_stripes_out_of_the_unlabelled_set_and_unlearns_the_rest() -> None:
    problem, further = clean(size=400, epochs=6), clean(size=40, seed=8)
    mixed = torch.cat([further.images, rings(160, seed=5)])
    lines: list[str] = []
    scorer = udg.udg(problem, mixed, lines.append)
    assert len(lines) == 6
    assert "filtered" in lines[-1]
    assert scorer.details["clusters"] == 600 // 40
    assert 15 < scorer.details["filtered"][-1] < 60
    doubt = scorer.score(as_input(problem, mixed)).exp()
    assert doubt[:40].median() < 0.2
    assert doubt[40:].median() > 0.4


def test_unlabelled_images_are_normalised_like_the_others_and_settings_are_checked() -> None:
    problem = clean(size=64)
    unlabelled = udg.unlabelled_problem(problem, 255 - rings(40, seed=1))
    assert unlabelled.mean == problem.mean
    assert unlabelled.spread == problem.spread
    assert unlabelled.recipe.batch_size == 2 * problem.recipe.batch_size
    assert len(unlabelled) == 40
    assert udg.cluster_count(100_000, 1000) == 1000
    assert udg.cluster_count(30, 1000) == 1
    for wrong in ({"clusters": 0}, {"purity": 1.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            udg.udg(problem, rings(10, 0), QUIET, **wrong)


# MOS


def by_group(logits: Tensor, group_of: list[int]) -> list[tuple[list[int], Tensor]]:
    """Classes of each group and their probabilities with that of "others" last, the slow way."""
    found = []
    for group in range(max(group_of) + 1):
        members = [label for label, own in enumerate(group_of) if own == group]
        columns = [*members, len(group_of) + group]
        found.append((members, logits[:, columns].softmax(dim=1)))
    return found


def test_group_softmax_by_hand() -> None:
    group_of = [1, 0, 1, 2, 0]
    groups = mos.Groups(group_of, torch.device("cpu"))
    logits = torch.randn(6, groups.outputs, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    classes, others = groups.log_probabilities(logits)
    loss, least = torch.zeros(6), torch.ones(6)
    for group, (members, p) in enumerate(by_group(logits, group_of)):
        assert torch.allclose(classes[:, members].exp(), p[:, :-1], atol=1e-6)
        assert torch.allclose(others[:, group].exp(), p[:, -1], atol=1e-6)
        for row, label in enumerate(labels.tolist()):
            target = members.index(label) if label in members else len(members)
            loss[row] -= p[row, target].log()
        least = torch.minimum(least, p[:, -1])
    assert groups.outputs == 8
    assert float(groups.loss(logits, labels)) == pytest.approx(float(loss.mean()), rel=1e-5)
    assert torch.allclose(groups.score(logits), least, atol=1e-6)


def test_an_input_that_is_others_everywhere_scores_highest() -> None:
    groups = mos.Groups([0, 0, 1], torch.device("cpu"))
    belongs, foreign = [5.0, 0.0, 0.0, 0.0, 3.0], [0.0, 0.0, 0.0, 4.0, 4.0]
    low, high = groups.score(torch.tensor([belongs, foreign])).tolist()
    assert low < 0.01
    assert high > 0.9


def test_classes_are_grouped_by_their_mean_features() -> None:
    means = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.1, 0.0], [9.0, 9.2], [0.0, 0.2]])
    found = mos.cluster_classes(means, 2, torch.Generator().manual_seed(0))
    assert found[0] == found[2] == found[4] != found[1] == found[3]
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    averages = mos.class_means(features, torch.tensor([0, 0, 2]), 3)
    assert averages.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 5.0]]
    assert [mos.default_groups(classes) for classes in (2, 10, 100, 1000)] == [2, 2, 4, 8]


def test_mos_trains_a_new_head_on_the_body_of_a_plain_network() -> None:
    problem = clean(size=300, epochs=4)
    scorer = mos.mos(problem, None, QUIET, groups=[0, 1, 1, 2])
    assert isinstance(scorer.classifier, mos.GroupClassifier)
    assert scorer.details == {"groups": [0, 1, 1, 2], "tuning_epochs": 1}
    plain = problem.fit(problem.new_model(), problem.batches())
    body, _ = common.headless(plain)
    trained = scorer.classifier.network
    for name, value in body.state_dict().items():
        assert torch.equal(trained.body.state_dict()[name], value), name
    assert trained.head.weight.abs().max() > 0
    images = as_input(problem, problem.images[:30])
    logits = trained(images).detach()
    parts = by_group(logits, [0, 1, 1, 2])
    answers = []
    for row in range(30):
        best = max(parts, key=lambda part: float(part[1][row, :-1].max()))
        answers.append(best[0][int(best[1][row, :-1].argmax())])
    assert scorer.classifier(images).argmax(dim=1).tolist() == answers
    least = torch.stack([p[:, -1] for _, p in parts]).amin(dim=0)
    assert torch.allclose(scorer.score(images), least, atol=1e-6)


def test_mos_checks_its_groups() -> None:
    problem = clean(size=64)
    for wrong, said in ((1, "groups = 1"), (5, "groups = 5"), ([0, 1], "name 2 classes")):
        with pytest.raises(SettingError, match=said):
            mos.mos(problem, None, QUIET, groups=wrong)
    for numbers in ([0, 2, 2, 0], [0, 0, 0, 0]):
        with pytest.raises(SettingError, match="without a gap"):
            mos.Groups(numbers, torch.device("cpu"))
