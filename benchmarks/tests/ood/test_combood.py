"""CombOOD against scikit-learn's transforms, a dense inverse and neighbours that are looked for one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detector_cases import Trained
from sklearn.preprocessing import PowerTransformer, StandardScaler
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.models import resnet18_cifar
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.detectors import combood
from sgoif_bench.ood.detectors.combood import CombOOD, extremes, yeo_johnson


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """An activation of maps that is a module, and one of rows that is a function."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.act = nn.Conv2d(1, 2, kernel_size=2), nn.LeakyReLU(0.1, inplace=True)
            self.second, self.head = nn.Linear(8, 5), nn.Linear(5, 3)

    def inner(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.first(x)
        return maps, self.second(F.leaky_relu(maps, 0.1).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(F.relu(self.second(self.act(self.first(x)).flatten(1))))
        return answer


def bank_of(images: Tensor, batch: int = 11) -> Bank:
    network = Network(Small(), images[:1])
    return Bank(network, lambda: [(part, torch.zeros(len(part))) for part in images.split(batch)])


def slow_extremes(bank: Bank, images: Tensor) -> np.ndarray:
    rows = []
    model = bank.network.model
    assert isinstance(model, Small)
    with torch.no_grad():
        for image in images:
            x = image.unsqueeze(0)
            rows.append(
                [f(part) for part in (model(x), *model.inner(x)) for f in (lambda t: t.max(), lambda t: -t.min())]
            )
    return np.array([[float(value) for value in row] for row in rows])


def slow_scores(bank: Bank, images: Tensor, queries: Tensor, k: int) -> list[float]:
    scaler, power = StandardScaler(), PowerTransformer()
    training = power.fit_transform(scaler.fit_transform(slow_extremes(bank, images)))
    v = power.transform(scaler.transform(slow_extremes(bank, queries)))
    precision = np.linalg.inv(np.cov(training, rowvar=False) + np.eye(training.shape[1]))
    units = [row / np.linalg.norm(row) for row in bank.features.double().numpy()]
    scores = []
    for features, row in zip(bank.network.see(queries).features.double().numpy(), v, strict=True):
        unit = features / np.linalg.norm(features)
        squares = sorted(float(((unit - other) ** 2).sum()) for other in units)
        scores.append(math.sqrt(5) * math.log(squares[k - 1]) + float(row @ precision @ row))
    return scores


def test_score_is_the_one_of_scikit_learn_and_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    images, queries = random(80, 1, 3, 3, seed=1), 1.2 * random(9, 1, 3, 3, seed=2)
    bank = bank_of(images)
    seen = bank.network.see(queries)
    expected = slow_scores(bank, images, queries, 6)
    detector = CombOOD(k=6).fit(bank)
    assert detector.score(seen).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert not np.allclose(CombOOD(k=7).fit(bank).score(seen), expected, rtol=1e-3)
    monkeypatch.setattr(combood, "RIDGE", 0.5)
    assert not np.allclose(CombOOD(k=6).fit(bank).score(seen), expected, rtol=1e-2)


def test_fifty_neighbours_are_looked_at_or_all_there_are() -> None:
    images, queries = random(60, 1, 3, 3, seed=1), random(5, 1, 3, 3, seed=2)
    bank = bank_of(images)
    seen = bank.network.see(queries)
    assert CombOOD().fit(bank).score(seen).tolist() == pytest.approx(slow_scores(bank, images, queries, 50), rel=1e-3)
    few = bank_of(images[:20])
    assert torch.equal(CombOOD().fit(few).score(seen), CombOOD(k=20).fit(few).score(seen))


def test_what_goes_into_activations_is_looked_at() -> None:
    images = random(7, 1, 3, 3)
    bank = bank_of(images)
    found = extremes(bank.network, images)
    assert found.dtype == torch.float64
    assert np.allclose(found, slow_extremes(bank, images), atol=1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(resnet18_cifar(3, 10), random(1, 3, 8, 8))
    # The stem's activation and two in each of eight blocks.
    assert extremes(network, random(2, 3, 8, 8)).shape == (2, 2 + 2 * 17)


@pytest.mark.parametrize("power", [-1.5, 0.0, 0.7, 1.0, 2.0, 3.2])
def test_transform_by_hand(power: float) -> None:
    for x in (-2.5, -0.3, 0.0, 0.4, 6.0):
        if x >= 0:
            expected = math.log(x + 1) if power == 0 else ((x + 1) ** power - 1) / power
        else:
            expected = -math.log(1 - x) if power == 2 else -((1 - x) ** (2 - power) - 1) / (2 - power)
        found = yeo_johnson(torch.tensor([[x]], dtype=torch.float64), torch.tensor([power], dtype=torch.float64))
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_columns_that_never_vary_and_far_inputs_leave_scores_finite() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # What goes into the second activation is never below 0, and here always reaches it.
        model = nn.Sequential(nn.Flatten(), nn.Linear(9, 30), nn.ReLU(), nn.ReLU(), nn.Linear(30, 3))
    images = random(40, 1, 3, 3)
    bank = Bank(Network(model, images[:1]), lambda: [(images, torch.zeros(40))])
    scores = CombOOD(k=3).fit(bank).score(bank.network.see(1e6 * random(5, 1, 3, 3, seed=1)))
    assert scores.isfinite().all()
    assert (scores > CombOOD(k=3).fit(bank).score(bank.network.see(images)).max()).all()


def test_images_of_another_kind_score_higher() -> None:
    trained = Trained()
    detector = CombOOD().fit(trained.bank)
    see = trained.bank.network.see
    inside, outside = (detector.score(see(images)) for images in (trained.fresh, trained.strange))
    assert auroc(np.arange(200) >= 100, torch.cat([inside, outside]).numpy()) > 0.9


def test_bad_numbers_are_named() -> None:
    with pytest.raises(SettingError, match="k = 0"):
        CombOOD(k=0)
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        CombOOD().score(Seen(random(1, 2), random(1, 2), random(1, 2), ()))
