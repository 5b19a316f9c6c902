"""GROOD against gradients that autograd finds and neighbours that are looked for one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detector_cases import Trained
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.models import lenet, resnet18_cifar, tiny_vit
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.detectors.grood import GROOD, as_they_came, class_means
from sgoif_bench.ood.detectors.neighbours import random_part


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_model() -> nn.Sequential:
    """Its last stage are images [2, 4, 4] halved, its features are computed from that."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Identity(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def bank_of(images: Tensor, labels: Tensor, model: nn.Module | None = None, batch: int = 7) -> Bank:
    network = Network(small_model() if model is None else model, images[:1])
    return Bank(network, lambda: zip(images.split(batch), labels.split(batch), strict=True))


def slow_gradient(features: Tensor, prototypes: Tensor, outlier: Tensor, predicted: int) -> Tensor:
    """The gradient of the cross entropy of distances by the outliers' prototype."""
    leaf = outlier.clone().requires_grad_()
    distances = torch.stack([(features - point).norm() for point in (*prototypes, leaf)])
    F.cross_entropy(-distances.unsqueeze(0), torch.tensor([predicted])).backward()
    assert leaf.grad is not None
    return leaf.grad


def slow_outlier(bank: Bank, images: Tensor, labels: Tensor, part: Tensor, share: float) -> Tensor:
    """The mean of the features of mixtures, each made and passed on its own."""
    model = bank.network.model
    assert isinstance(model, nn.Sequential)
    maps = [F.avg_pool2d(image, 2) for image in images]
    means = [torch.stack([m for m, y in zip(maps, labels, strict=True) if y == c]).mean(dim=0) for c in range(3)]
    found = []
    with torch.no_grad():
        for row in part.nonzero().flatten().tolist():
            order = sorted(range(3), key=lambda c: -float(bank.logits[row, c]))
            mixed = share * maps[row] + (1 - share) * means[order[1]]
            found.append(model[2:5](mixed.unsqueeze(0))[0])
    return torch.stack(found).mean(dim=0)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_score_is_the_distance_to_the_nearest_gradient(share: float) -> None:
    images, queries = random(40, 2, 4, 4, seed=1), 1.5 * random(8, 2, 4, 4, seed=2)
    # Some labels are those that the network gives, so that some examples count and others do not.
    with torch.no_grad():
        labels = small_model()(images).argmax(dim=1)
    labels[:15] = (labels[:15] + torch.arange(15)) % 3
    bank = bank_of(images, labels)
    detector = GROOD(mixtures=12, share=share, seed=5).fit(bank)
    part = random_part(40, 12, 5)
    prototypes = torch.stack([bank.features[labels == c].double().mean(dim=0) for c in range(3)])
    outlier = slow_outlier(bank, images, labels, part, share).double()
    seen = bank.network.see(queries)
    right = (bank.logits.argmax(dim=1) == labels).nonzero().flatten().tolist()
    assert 20 < len(right) < 40
    training = [slow_gradient(bank.features[i].double(), prototypes, outlier, int(labels[i])) for i in right]
    expected = []
    for features, logits in zip(seen.features.double(), seen.logits, strict=True):
        mine = slow_gradient(features, prototypes, outlier, int(logits.argmax()))
        expected.append(min(float((mine - other).norm()) for other in training))
    assert detector.score(seen).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert detector.prototypes is not None
    assert torch.allclose(detector.prototypes, torch.cat((prototypes, outlier.unsqueeze(0))), atol=1e-6)
    # What is mixed and how much both count.
    for other in (GROOD(mixtures=12, share=share - 0.1, seed=5), GROOD(mixtures=12, share=share, seed=6)):
        assert not np.allclose(other.fit(bank).score(seen), expected, rtol=1e-2)


def test_training_examples_have_no_distance_from_themselves() -> None:
    images = random(30, 2, 4, 4, seed=1)
    with torch.no_grad():
        labels = small_model()(images).argmax(dim=1)
    bank = bank_of(images, labels)
    assert GROOD().fit(bank).score(bank.network.see(images)).abs().max() < 1e-7


def test_all_examples_count_where_none_is_right() -> None:
    images = random(30, 2, 4, 4, seed=1)
    with torch.no_grad():
        labels = (small_model()(images).argmax(dim=1) + 1) % 3
    bank = bank_of(images, labels)
    scores = GROOD().fit(bank).score(bank.network.see(images))
    assert scores.abs().max() < 1e-7


def test_means_of_classes_over_parts() -> None:
    values, group = random(10, 2, 3), torch.tensor([0, 1, 1, 0, 2, 2, 1, 0, 0, 2])
    means = class_means(values.split(4), group, 3)
    for number in range(3):
        assert torch.allclose(means[number], values[group == number].double().mean(dim=0))


def test_stages_take_back_the_axes_of_the_network() -> None:
    maps, tokens = random(2, 5, 4, 4), random(2, 5, 3)
    assert as_they_came(maps, maps) is maps
    assert torch.equal(as_they_came(maps, maps.movedim(1, 3)), maps.movedim(1, 3))
    assert torch.equal(as_they_came(tokens, tokens.transpose(1, 2)), tokens.transpose(1, 2))


@pytest.mark.parametrize(
    ("model", "shape", "stage"),
    [
        (lambda: lenet(1, 10, 28), (1, 28, 28), "5"),
        (lambda: resnet18_cifar(3, 10), (3, 8, 8), "layer3"),
        (lambda: tiny_vit(3, 10, image=8, width=16, heads=2), (3, 8, 8), "blocks.3"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4)), (3, 2, 2), None),
    ],
)
def test_networks_are_mixed_before_their_last_stage(
    model: Callable[[], nn.Module], shape: tuple[int, ...], stage: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = random(12, *shape, seed=6), torch.arange(12) % 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bank = bank_of(images, labels, model(), batch=5)
    before = bank.network.see(images).features
    mixed = []
    plain = GROOD._through

    def noted(self: GROOD, network: Network, name: str, *rest: Tensor) -> Tensor:
        mixed.append(name)
        return plain(self, network, name, *rest)

    monkeypatch.setattr(GROOD, "_through", noted)
    scores = GROOD().fit(bank).score(bank.network.see(random(4, *shape, seed=7)))
    assert set(mixed) == ({stage} if stage else set())
    assert scores.shape == (4,)
    assert scores.isfinite().all()
    assert torch.equal(bank.network.see(images).features, before), "no hook is left"


def test_images_of_another_kind_score_higher() -> None:
    trained = Trained()
    detector = GROOD().fit(trained.bank)
    see = trained.bank.network.see
    inside, outside = (detector.score(see(images)) for images in (trained.fresh, trained.strange))
    assert auroc(np.arange(200) >= 100, torch.cat([inside, outside]).numpy()) > 0.9
    assert torch.equal(GROOD().fit(trained.bank).score(see(trained.fresh)), inside)


def test_one_class_is_scored() -> None:
    bank = bank_of(random(20, 2, 4, 4, seed=1), torch.ones(20, dtype=torch.long))
    assert GROOD().fit(bank).score(bank.network.see(random(5, 2, 4, 4, seed=2))).isfinite().all()


def test_bad_numbers_are_named() -> None:
    with pytest.raises(SettingError, match="mixtures = 0"):
        GROOD(mixtures=0)
    with pytest.raises(SettingError, match=r"share = 1\.5"):
        GROOD(share=1.5)
    detector = GROOD()
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        detector.score(Seen(random(1, 2), random(1, 2), random(1, 2), ()))
