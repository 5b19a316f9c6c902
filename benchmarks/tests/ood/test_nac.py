"""Neuron activation coverage against loops over neurons, images and thresholds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from detector_cases import Trained
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.models import lenet, resnet18_cifar, small_cnn, tiny_vit
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.detectors.nac import NAC, PUBLISHED, Coverage, balanced_part, over_positions
from sgoif_bench.ood.detectors.published import of_classes

COVERAGES = (Coverage(30.0, 9, 10), Coverage(8.0, 11, 12), Coverage(4.0, 12, 8))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bank_of(images: Tensor, labels: Tensor, batch: int = 7) -> Bank:
    """A bank whose stages are the images [n, 2, 4, 4] and the same halved, whose features are the pixels of those."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(8, 3)
    model = nn.Sequential(nn.Identity(), nn.AvgPool2d(2), nn.Flatten(), head)
    return Bank(Network(model, images[:1]), lambda: zip(images.split(batch), labels.split(batch), strict=True))


def slow_states(bank: Bank, images: Tensor) -> list[NDArray[np.float64]]:
    """z g of every neuron: of the features, of the halved images, of the images."""
    weight, bias = (part.detach().double().numpy() for part in (bank.network.head.weight, bank.network.head.bias))
    found: list[list[list[float]]] = [[], [], []]
    for image in images.double().numpy():
        halved = np.array([[[channel[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean() for j in (0, 1)] for i in (0, 1)]
                           for channel in image])  # fmt: skip
        features = halved.reshape(-1)
        logits = weight @ features + bias
        p = np.exp(logits) / np.exp(logits).sum()
        pull = weight.T @ (p - 1 / 3)
        found[0].append([z * g for z, g in zip(features, pull, strict=True)])
        # The gradient of a pixel is a quarter of that of the mean it is in, and there are four of them.
        pulls = pull.reshape(2, 4).sum(axis=1)
        found[1].append([halved[c].sum() * pulls[c] for c in (0, 1)])
        found[2].append([image[c].sum() * pulls[c] for c in (0, 1)])
    return [np.array(part) for part in found]


def slow_thresholds(count: int) -> list[float]:
    """As in the authors' code: logarithms to the base 1000 of even steps, and their mirror image."""
    half = count // 2
    steps = [1 + i * (math.sqrt(1000) - 1) / (half - 1) for i in range(half)]
    lower = [math.log(step) / math.log(1000) for step in steps[:-1]]
    return [*lower, 0.5, *(1 - value for value in reversed(lower[1:])), 1.01]


def slow_score(bank: Bank, part: Tensor, images: Tensor) -> list[float]:
    training, queries = slow_states(bank, part), slow_states(bank, images)
    scores = []
    for query in range(len(images)):
        layers = []
        for layer, coverage in enumerate(COVERAGES):
            ends = slow_thresholds(coverage.thresholds)
            neurons = []
            for neuron in range(training[layer].shape[1]):
                s = 1 / (1 + math.exp(-coverage.steepness * queries[layer][query, neuron]))
                low, high = next((a, b) for a, b in itertools.pairwise(ends) if a <= s < b)
                seen = [1 / (1 + math.exp(-coverage.steepness * x)) for x in training[layer][:, neuron]]
                neurons.append(min(1.0, sum(low <= x < high for x in seen) / coverage.enough))
            layers.append(sum(neurons) / len(neurons))
        scores.append(-sum(layers) / len(layers))
    return scores


def test_score_is_the_coverage_counted_by_hand() -> None:
    images, queries, labels = random(30, 2, 4, 4, seed=1), 2 * random(12, 2, 4, 4, seed=2), torch.arange(30) % 3
    # Features of exactly 0 have the state ½, whose interval they share with what is pulled one way and not the other.
    images[::2, :, :2], queries[::2, :, :2] = 0, 0
    bank = bank_of(images, labels)
    detector = NAC(coverages=COVERAGES, examples=30).fit(bank)
    expected = slow_score(bank, images, queries)
    assert detector.score(bank.network.see(queries)).tolist() == pytest.approx(expected, abs=1e-6)
    assert len({round(value, 4) for value in expected}) > 9
    # Every number counts: another steepness, another r, other intervals or fewer layers give other scores.
    for changed in (replace(COVERAGES[0], steepness=60.0), replace(COVERAGES[0], enough=12), Coverage(30.0, 9, 14)):
        other = NAC(coverages=(changed, *COVERAGES[1:]), examples=30).fit(bank).score(bank.network.see(queries))
        assert not np.allclose(other, expected, atol=1e-3)
    fewer = NAC(coverages=COVERAGES[:2], examples=30).fit(bank).score(bank.network.see(queries))
    assert not np.allclose(fewer, expected, atol=1e-3)


def test_thresholds_are_closest_about_a_half_which_is_one_of_them() -> None:
    edges = Coverage(1.0, 1.0, 50).edges()
    assert edges.tolist() == pytest.approx(slow_thresholds(50), abs=1e-6)
    assert len(edges) == 49
    widths = edges.diff()
    assert widths[:24].argmin() == 23
    assert widths[23] == pytest.approx(0.5 - math.log(math.sqrt(1000) - (math.sqrt(1000) - 1) / 24, 1000), abs=1e-6)
    # A state of exactly ½ counts with what is above it, 1 with the uppermost interval.
    assert Coverage(1.0, 1.0, 50).interval(torch.tensor([[0.0, 0.5, 1.0]])).tolist() == [[0, 24, 47]]


def test_a_part_has_equally_many_of_every_class() -> None:
    labels = torch.tensor([0] * 50 + [2] * 9 + [5] * 30)
    part = balanced_part(labels, 24, seed=1)
    assert labels[part].bincount().tolist() == [8, 0, 8, 0, 0, 8]
    assert torch.equal(part, balanced_part(labels, 24, seed=1))
    assert not torch.equal(part, balanced_part(labels, 24, seed=2))
    assert labels[balanced_part(labels, 80, seed=1)].bincount()[[0, 2, 5]].tolist() == [9, 9, 9]
    assert labels[balanced_part(labels, 1, seed=1)].bincount()[[0, 2, 5]].tolist() == [1, 1, 1]


def test_only_the_part_is_counted() -> None:
    images, labels = random(40, 2, 4, 4, seed=3), torch.arange(40) % 2
    bank = bank_of(images, labels)
    detector = NAC(coverages=COVERAGES, examples=10, seed=4).fit(bank)
    part = balanced_part(labels, 10, seed=4)
    queries = random(9, 2, 4, 4, seed=5)
    assert int(part.sum()) == 10
    expected = slow_score(bank, images[part], queries)
    assert detector.score(bank.network.see(queries)).tolist() == pytest.approx(expected, abs=1e-6)


def test_positions_are_summed_on_whichever_axes_they_are() -> None:
    maps = random(3, 5, 4, 4)
    assert torch.equal(over_positions(maps, 5), maps.sum(dim=(2, 3)))
    assert torch.allclose(over_positions(maps.movedim(1, 3), 5), maps.sum(dim=(2, 3)), atol=1e-5)
    tokens = random(3, 6, 5)
    assert torch.equal(over_positions(tokens, 5), tokens.sum(dim=1))
    assert torch.equal(over_positions(random(3, 5), 5), random(3, 5))


def test_published_numbers_go_by_the_classes() -> None:
    assert [each.steepness for each in of_classes(PUBLISHED, 10)] == [100, 1000, 0.001, 0.001]
    assert of_classes(PUBLISHED, 4) == of_classes(PUBLISHED, 99) == PUBLISHED[10]
    assert [each.enough for each in of_classes(PUBLISHED, 100)] == [50, 500, 500, 5]
    assert [each.thresholds for each in of_classes(PUBLISHED, 1001)] == [50, 50, 500, 1000]
    # A bank of a hundred classes takes those of CIFAR-100: with the others it scores otherwise.
    images, queries = random(60, 4, 4, 4, seed=1), random(8, 4, 4, 4, seed=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(16, 100)
    network = Network(nn.Sequential(nn.Identity(), nn.AvgPool2d(2), nn.Flatten(), head), images[:1])
    bank = Bank(network, lambda: [(images, torch.arange(60))])
    seen = bank.network.see(queries)
    usual = NAC().fit(bank).score(seen)
    assert torch.equal(usual, NAC(coverages=PUBLISHED[100]).fit(bank).score(seen))
    assert not torch.allclose(usual, NAC(coverages=PUBLISHED[10]).fit(bank).score(seen), atol=1e-3)


@pytest.mark.parametrize(
    ("model", "shape", "wide"),
    [
        (lambda: small_cnn(3, 4, width=4), (3, 16, 16), [16, 16, 8, 4]),
        (lambda: lenet(1, 10, 28), (1, 28, 28), [84, 16, 16, 6]),
        (lambda: resnet18_cifar(3, 10), (3, 8, 8), [512, 256, 128, 64]),
        (lambda: tiny_vit(3, 10, image=8, width=16, heads=2), (3, 8, 8), [16, 16, 16, 16]),
    ],
)
def test_the_features_and_the_stages_before_are_looked_at(
    model: Callable[[], nn.Module], shape: tuple[int, ...], wide: list[int]
) -> None:
    images, labels = random(12, *shape, seed=6), torch.arange(12) % 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(model(), images[:1])
    bank = Bank(network, lambda: [(images, labels)])
    detector = NAC(examples=12).fit(bank)
    assert [table.shape[1] for table in vars(detector)["_covered"]] == wide
    seen = network.see(random(4, *shape, seed=7))
    scores = detector.score(seen)
    assert scores.shape == (4,)
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert all(parameter.grad is None for parameter in network.model.parameters())
    with torch.inference_mode():
        assert torch.allclose(detector.score(network.see(seen.images)), scores, atol=1e-6)


def test_images_of_another_kind_reach_states_that_training_did_not() -> None:
    trained = Trained()
    detector = NAC().fit(trained.bank)
    see = trained.bank.network.see
    inside, outside = (detector.score(see(images)) for images in (trained.fresh, trained.strange))
    assert auroc(np.arange(200) >= 100, torch.cat([inside, outside]).numpy()) > 0.9
    assert torch.equal(detector.score(see(trained.fresh[:3])), inside[:3])


def test_bad_numbers_are_named() -> None:
    for values, message in (((0, 1, 50), "steepness = 0"), ((1, -1, 50), "enough = -1"), ((1, 1, 7), "thresholds = 7")):
        with pytest.raises(SettingError, match=message):
            Coverage(*values)
    with pytest.raises(SettingError, match="coverages of NAC are empty"):
        NAC(coverages=())
    with pytest.raises(SettingError, match="examples = 0"):
        NAC(examples=0)
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        NAC().score(Seen(random(1, 2), random(1, 2), random(1, 2), ()))
