"""Methods that train with a loss or a head of their own: LogitNorm, G-ODIN, VOS, UDG, MOS, and what they share."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trained_cases import QUIET, SIDE, TESTED, as_input, clean, rings

from sgoif.audit.networks import ResNet9
from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.metrics import auroc
from sgoif_bench.models import small_cnn
from sgoif_bench.ood.trained import common, godin, logitnorm, mos, udg, vos
from sgoif_bench.ood.trained.method import Scorer

pytestmark = pytest.mark.long

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
