"""WeiPer+KLD against loops over draws, classes and bins."""

from __future__ import annotations

import math
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
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.detectors.published import of_classes
from sgoif_bench.ood.detectors.weiper import PUBLISHED, Perturbation, WeiPer, smooth

SMALL = Perturbation(
    distance=0.7, logits_weight=0.5, confidence_weight=2.0, feature_smoothing=3, logit_smoothing=4, bins=6, repeats=5
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Scaled(nn.Module):
    """A head on the inputs themselves whose answers are multiplied by a constant."""

    def __init__(self, bias: bool, scale: float) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.head = nn.Linear(8, 3, bias=bias)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.scale * self.head(x)
        return answer


def bank_of(features: Tensor, bias: bool = True, scale: float = 1.0) -> Bank:
    network = Network(Scaled(bias, scale), features[:1])
    return Bank(network, lambda: [(part, torch.zeros(len(part))) for part in features.split(9)])


def slow_shares(values: list[float], low: float, high: float, bins: int) -> list[float]:
    counts = [0] * bins
    for value in values:
        if low <= value <= high:
            counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    return [count / len(values) for count in counts]


def slow_divergence(training: NDArray[np.float64], query: list[float], bins: int, size: int, floor: float) -> float:
    low, high = float(training.min()), float(training.max())
    each = [slow_shares(list(row), low, high, bins) for row in training]
    p = [sum(row[b] for row in each) / len(each) + floor for b in range(bins)]
    shares = slow_shares(query, low, high, bins)
    below = (size - 1) // 2
    window = range(-below, size - below)
    q = [sum(shares[min(bins - 1, max(0, b + step))] for step in window) / size + floor for b in range(bins)]
    p, q = [value / sum(p) for value in p], [value / sum(q) for value in q]
    forth = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return forth + sum(y * math.log(y / x) for x, y in zip(p, q, strict=True))


def slow_scores(detector: WeiPer, scale: float, bank: Bank, queries: Tensor) -> list[float]:
    used = SMALL
    head = bank.network.head
    weight = head.weight.detach().double().numpy()
    bias = np.zeros(3) if head.bias is None else head.bias.detach().double().numpy()
    noise = random(used.repeats, 3, 8, seed=detector.seed).double().numpy()
    heads = []
    for draw in noise:
        rows = [w + 0.7 * np.linalg.norm(w) * e / np.linalg.norm(e) for w, e in zip(weight, draw, strict=True)]
        heads.append(np.array(rows))
    training, x = bank.features.double().numpy(), queries.double().numpy()
    answers = {
        name: np.array([[scale * (rows @ row + bias) for rows in heads] for row in rows_of])
        for name, rows_of in (("training", training), ("query", x))
    }
    scores = []
    for row, answer in zip(x, answers["query"], strict=True):
        confidence = np.mean([max(np.exp(z) / np.exp(z).sum()) for z in answer])
        of_features = slow_divergence(training, list(row), 6, 3, 0.01)
        of_logits = slow_divergence(answers["training"].reshape(len(training), -1), list(answer.ravel()), 6, 4, 0.025)
        scores.append(of_features + 0.5 * of_logits - 2.0 * confidence)
    return scores


@pytest.mark.parametrize(("bias", "scale"), [(True, 1.0), (False, 1.0), (True, 0.25)])
def test_score_is_the_one_of_loops(bias: bool, scale: float) -> None:
    bank = bank_of(random(25, 8, seed=1).relu(), bias, scale)
    queries = 1.3 * random(9, 8, seed=2).relu()
    seen = bank.network.see(queries)
    detector = WeiPer(perturbation=SMALL, seed=4).fit(bank)
    expected = slow_scores(detector, scale, bank, queries)
    assert detector.score(seen).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert (queries > bank.features.max()).any(), "a value out of the range of training"


@pytest.mark.parametrize(
    "change",
    [
        {"distance": 1.4},
        {"logits_weight": 0.6},
        {"confidence_weight": 1.9},
        {"feature_smoothing": 4},
        {"logit_smoothing": 3},
        {"bins": 7},
        {"repeats": 6},
    ],
)
def test_every_number_counts(change: dict[str, float]) -> None:
    bank = bank_of(random(25, 8, seed=1).relu())
    seen = bank.network.see(random(9, 8, seed=2).relu())
    usual = WeiPer(perturbation=SMALL).fit(bank).score(seen)
    assert not torch.allclose(WeiPer(perturbation=replace(SMALL, **change)).fit(bank).score(seen), usual, rtol=1e-3)  # type: ignore[arg-type]


def test_smoothing_is_the_authors_convolution() -> None:
    histograms = random(5, 12).abs()
    for size in (1, 2, 4, 5, 15, 40):
        kernel = nn.Conv1d(1, 1, size, padding="same", padding_mode="replicate", bias=False)
        nn.init.constant_(kernel.weight, 1 / size)
        with torch.no_grad():
            expected = kernel(histograms.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(smooth(histograms, size), expected)


def test_a_seed_repeats_the_draws_and_another_does_not() -> None:
    bank = bank_of(random(25, 8, seed=1).relu())
    seen = bank.network.see(random(9, 8, seed=2).relu())
    state = torch.get_rng_state()
    first, again, other = (WeiPer(perturbation=SMALL, seed=seed).fit(bank).score(seen) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-3)
    assert torch.equal(state, torch.get_rng_state())


def test_features_that_never_vary_are_scored() -> None:
    bank = bank_of(torch.ones(12, 8))
    assert WeiPer(perturbation=SMALL).fit(bank).score(bank.network.see(random(4, 8, seed=2))).isfinite().all()


def test_published_numbers_go_by_the_classes() -> None:
    few, many, most = (of_classes(PUBLISHED, classes) for classes in (10, 100, 1000))
    assert (few.distance, few.logits_weight, few.confidence_weight) == (1.8, 2.5, 0.1)
    assert (many.distance, many.logits_weight, many.confidence_weight) == (2.4, 0.1, 1)
    assert (most.distance, most.logits_weight, most.confidence_weight) == (2.4, 2.5, 0.25)
    smoothing = [(numbers.feature_smoothing, numbers.logit_smoothing) for numbers in (few, many, most)]
    assert smoothing == [(4, 15), (4, 40), (40, 15)]
    assert {(numbers.bins, numbers.repeats) for numbers in (few, many, most)} == {(100, 100)}
    bank = bank_of(random(25, 8, seed=1).relu())
    seen = bank.network.see(random(9, 8, seed=2).relu())
    assert torch.equal(WeiPer().fit(bank).score(seen), WeiPer(perturbation=few).fit(bank).score(seen))


def test_images_of_another_kind_score_higher() -> None:
    trained = Trained()
    detector = WeiPer().fit(trained.bank)
    see = trained.bank.network.see
    inside, outside = (detector.score(see(images)) for images in (trained.fresh, trained.strange))
    assert auroc(np.arange(200) >= 100, torch.cat([inside, outside]).numpy()) > 0.9
    assert torch.allclose(detector.score(see(trained.fresh[:3])), inside[:3], atol=1e-5)


def test_bad_numbers_are_named() -> None:
    for name, value in (("distance", -1.0), ("confidence_weight", math.nan), ("bins", 0), ("logit_smoothing", 0)):
        with pytest.raises(SettingError, match=f"{name} = {value} of WeiPer"):
            replace(SMALL, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        WeiPer().score(Seen(random(1, 2), random(1, 2), random(1, 2), ()))
