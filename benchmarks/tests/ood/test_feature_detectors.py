"""Detectors that read the features: GradNorm, ReAct, DICE, ASH, SCALE; and fifteen on a small trained network."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.models import small_cnn
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.ash import ASH, keep_largest, shaping_factor
from sgoif_bench.ood.detectors.combood import CombOOD
from sgoif_bench.ood.detectors.dice import DICE
from sgoif_bench.ood.detectors.ebo import EBO
from sgoif_bench.ood.detectors.energy import energy, head_answer, logit_scale
from sgoif_bench.ood.detectors.gen import GEN
from sgoif_bench.ood.detectors.gradnorm import GradNorm
from sgoif_bench.ood.detectors.grood import GROOD
from sgoif_bench.ood.detectors.klm import KLM
from sgoif_bench.ood.detectors.mls import MLS
from sgoif_bench.ood.detectors.msp import MSP
from sgoif_bench.ood.detectors.nac import NAC
from sgoif_bench.ood.detectors.odin import ODIN
from sgoif_bench.ood.detectors.react import ReAct
from sgoif_bench.ood.detectors.scale import SCALE
from sgoif_bench.ood.detectors.weiper import WeiPer

Make = Callable[..., Detector]
CHANGING: tuple[Make, ...] = (ReAct, DICE, ASH, SCALE)
NEWER: tuple[Make, ...] = (NAC, WeiPer, GROOD, CombOOD)
EVERY: tuple[Make, ...] = (MSP, MLS, EBO, ODIN, GEN, KLM, GradNorm, *CHANGING, *NEWER)


class Headed(nn.Module):
    """A head on the inputs themselves, so that features are what one gives; its answers may be scaled."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        self.scale = scale
        with torch.no_grad():
            self.head.weight.copy_(weight)
            if bias is not None:
                self.head.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(x)
        return answer * self.scale


def headed(features: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> tuple[Network, Bank]:
    network = Network(Headed(weight, bias, scale), features[:1])
    batch = -(-len(features) // 5)
    return network, Bank(network, lambda: [(part, torch.zeros(len(part))) for part in features.split(batch)])


def drawn(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def slow_energy(logits: NDArray[np.float64]) -> float:
    return -math.log(sum(math.exp(value) for value in logits))


WEIGHT, BIAS = drawn(3, 20, 1) / 4, torch.tensor([0.3, -0.2, 0.1])
TRAINING, INPUTS = drawn(40, 20, 2).relu(), drawn(6, 20, 3).relu()


# What is shared


@pytest.mark.parametrize("scale", [1.0, 0.125, 3.0])
def test_scale_after_the_head_is_found(scale: float) -> None:
    _, bank = headed(TRAINING, WEIGHT, BIAS, scale)
    assert logit_scale(bank) == pytest.approx(scale, rel=1e-6)


def test_a_head_that_answers_nothing_has_scale_one() -> None:
    _, bank = headed(TRAINING, torch.zeros(3, 20))
    assert logit_scale(bank) == 1.0


@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("bias", [BIAS, None])
def test_features_left_as_they_are_give_the_energy_of_the_logits(bias: Tensor | None, scale: float) -> None:
    network, bank = headed(TRAINING, WEIGHT, bias, scale)
    seen = network.see(INPUTS.clamp_max(float(TRAINING.max())))
    expected = energy(seen.logits).tolist()
    assert ReAct(percentile=100).fit(bank).score(seen).tolist() == pytest.approx(expected, rel=1e-5)
    # With nothing pruned the factor is e for every input.
    raised = energy(scale * head_answer(network, math.e * seen.features)).tolist()
    assert ASH(percentile=0).fit(bank).score(seen).tolist() == pytest.approx(raised, rel=1e-5)
    assert SCALE(percentile=0).fit(bank).score(seen).tolist() == pytest.approx(raised, rel=1e-5)


# GradNorm


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("bias", [BIAS, None])
def test_gradnorm_is_the_norm_that_autograd_finds(bias: Tensor | None, temperature: float) -> None:
    inputs = drawn(6, 20, 4)
    network, bank = headed(TRAINING, WEIGHT, bias)
    expected = []
    for row in inputs:
        network.model.zero_grad()
        log_p = F.log_softmax(network.model(row.unsqueeze(0)) / temperature, dim=1)
        F.kl_div(log_p, torch.full((1, 3), 1 / 3), reduction="sum").backward()
        gradient = network.head.weight.grad
        assert gradient is not None
        expected.append(-float(gradient.abs().sum()))
    scores = GradNorm(temperature=temperature).fit(bank).score(network.see(inputs))
    assert scores.tolist() == pytest.approx(expected, rel=1e-4)


def test_gradnorm_falls_with_certainty_and_with_the_size_of_the_features() -> None:
    logits = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    features = torch.tensor([[1.0, -1.0], [1.0, -1.0], [2.0, -2.0]])
    scores = GradNorm().score(Seen(features, logits, features, ())).tolist()
    certain = 2 * (1 / (1 + math.exp(-2)) - 0.5)
    assert scores == pytest.approx([0.0, -2 * certain, -4 * certain], abs=1e-6)


# ReAct


def test_react_by_hand() -> None:
    network, bank = headed(TRAINING, WEIGHT, BIAS)
    entries = sorted(TRAINING.flatten().tolist())
    position = 0.9 * (len(entries) - 1)
    below = math.floor(position)
    threshold = entries[below] + (position - below) * (entries[below + 1] - entries[below])
    detector = ReAct().fit(bank)
    assert detector.threshold == pytest.approx(threshold, rel=1e-5)
    expected = []
    for row in INPUTS.double().numpy():
        clipped = np.array([min(value, threshold) for value in row])
        expected.append(slow_energy(WEIGHT.double().numpy() @ clipped + BIAS.double().numpy()))
    assert detector.score(network.see(INPUTS)).tolist() == pytest.approx(expected, rel=1e-4)


def test_react_takes_the_certainty_of_a_few_huge_features_away() -> None:
    _, bank = headed(TRAINING, WEIGHT, BIAS)
    detector = ReAct().fit(bank)
    inputs = INPUTS.clone()
    huge = INPUTS.clone()
    inputs[:, 5], huge[:, 5] = 10.0, 1000.0
    seen, far = bank.network.see(inputs), bank.network.see(huge)
    assert (energy(far.logits) < energy(seen.logits) - 10).all()
    assert detector.score(far).tolist() == detector.score(seen).tolist()


def test_react_lets_negative_features_pass() -> None:
    weight = torch.tensor([[1.0, 0.0]])
    network, bank = headed(torch.tensor([[-4.0, 1.0], [2.0, 3.0]]), weight)
    scores = ReAct(percentile=50).fit(bank).score(network.see(torch.tensor([[-7.0, 0.0], [1.0, 0.0], [9.0, 0.0]])))
    # The median of −4, 1, 2, 3 is 1.5, and the only logit is the first feature.
    assert scores.tolist() == pytest.approx([7.0, -1.0, -1.5])


def test_react_reads_more_entries_than_torch_sorts_for_a_quantile() -> None:
    many = torch.arange(2**24 + 16, dtype=torch.float64).float().reshape(-1, 16) / 2**24
    _, bank = headed(many, torch.ones(1, 16))
    assert ReAct().fit(bank).threshold == pytest.approx(0.9, abs=1e-5)


# DICE


def test_dice_by_hand() -> None:
    # Mean features (1, 2, 4), so contributions [[1, −4, 2], [3, 2.2, −0.4]]: sorted −4, −0.4, 1, 2, 2.2, 3.
    weight = torch.tensor([[1.0, -2.0, 0.5], [3.0, 1.1, -0.1]])
    bias = torch.tensor([0.5, -0.5])
    network, bank = headed(torch.tensor([[0.0, 4.0, 5.0], [2.0, 0.0, 3.0]]), weight, bias)
    detector = DICE(percentile=50).fit(bank)
    assert detector.weight is not None
    # The median is 1.5: three weights stay.
    assert detector.weight.tolist() == [[0.0, 0.0, 0.5], [3.0, pytest.approx(1.1), 0.0]]
    scores = detector.score(network.see(torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 2.0]])))
    expected = [slow_energy(np.array([0.5 + 0.5, 3 + 1.1 - 0.5])), slow_energy(np.array([1.0 + 0.5, -3.0 - 0.5]))]
    assert scores.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("bias", "scale"), [(BIAS, 1.0), (None, 1.0), (BIAS, 0.125)])
def test_dice_keeps_the_tenth_of_the_weights_that_contributes_most(bias: Tensor | None, scale: float) -> None:
    network, bank = headed(TRAINING, WEIGHT, bias, scale)
    detector = DICE().fit(bank)
    contribution = (WEIGHT * TRAINING.mean(dim=0)).flatten()
    largest = sorted(range(60), key=lambda place: float(contribution[place]))[-6:]
    sparse = torch.zeros(60)
    sparse[largest] = WEIGHT.flatten()[largest]
    logits = scale * (INPUTS @ sparse.reshape(3, 20).T + (0 if bias is None else bias))
    expected = [slow_energy(row) for row in logits.double().numpy()]
    assert detector.score(network.see(INPUTS)).tolist() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(network.head.weight.detach(), WEIGHT)


# ASH and SCALE


def slow_shaped(row: NDArray[np.float64], percentile: float, prune: bool) -> NDArray[np.float64]:
    """Shaped features of one input without negative ones, in plain loops."""
    kept = len(row) - round(len(row) * percentile / 100)
    places = sorted(range(len(row)), key=lambda place: row[place])[len(row) - kept :]
    factor = math.exp(sum(row) / sum(row[place] for place in places))
    return np.array([value * factor if not prune or place in places else 0.0 for place, value in enumerate(row)])


@pytest.mark.parametrize(("make", "prune", "default"), [(ASH, True, 90.0), (SCALE, False, 85.0)])
@pytest.mark.parametrize("percentile", [None, 65.0, 30.0])
def test_shaping_by_hand(make: Make, prune: bool, default: float, percentile: float | None) -> None:
    network, bank = headed(TRAINING, WEIGHT, BIAS)
    detector = make() if percentile is None else make(percentile=percentile)
    expected = []
    for row in INPUTS.double().numpy():
        shaped = slow_shaped(row, default if percentile is None else percentile, prune)
        expected.append(slow_energy(WEIGHT.double().numpy() @ shaped + BIAS.double().numpy()))
    assert detector.fit(bank).score(network.see(INPUTS)).tolist() == pytest.approx(expected, rel=1e-4)


def test_what_is_kept_by_hand() -> None:
    features = torch.tensor([[0.0, 5.0, 1.0, 2.0, 4.0], [9.0, 1.0, 1.0, 0.0, 2.0]])
    assert keep_largest(features, 60).tolist() == [[0.0, 5.0, 0.0, 0.0, 4.0], [9.0, 0.0, 0.0, 0.0, 2.0]]
    assert keep_largest(features, 0).tolist() == features.tolist()
    # 99% of five features would be all of them.
    assert keep_largest(features, 99).tolist() == [[0.0, 5.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0, 0.0]]
    factor = shaping_factor(features, keep_largest(features, 60))
    assert factor.flatten().tolist() == pytest.approx([math.exp(12 / 9), math.exp(13 / 11)])


def test_ash_forgets_the_small_features_and_scale_does_not() -> None:
    network, bank = headed(TRAINING, WEIGHT, BIAS)
    inputs = torch.zeros(2, 20)
    inputs[:, 0], inputs[:, 1] = 3.0, 2.0
    # The same small amount of activation in a place that matters to the head and in one that matters less.
    inputs[0, 2], inputs[1, 3] = 1.0, 1.0
    seen = network.see(inputs)
    ash, scale = ASH().fit(bank).score(seen), SCALE().fit(bank).score(seen)
    assert float(ash[0]) == float(ash[1])
    assert abs(float(scale[0] - scale[1])) > 0.1


@pytest.mark.parametrize("make", [ASH, SCALE])
def test_energy_is_moved_more_where_activation_is_spread(make: Make) -> None:
    # Same sum and same answer of the head, on one feature or on all twenty.
    network, bank = headed(TRAINING, torch.ones(1, 20))
    one = torch.zeros(1, 20)
    one[0, 7] = 20.0
    peaked, spread = make(percentile=50).fit(bank).score(network.see(torch.cat([one, torch.ones(1, 20)]))).tolist()
    assert peaked == pytest.approx(-20 * math.e, rel=1e-5)
    kept = 10 if make is ASH else 20
    assert spread == pytest.approx(-kept * math.exp(2), rel=1e-5)


def test_negative_features_are_left_out_of_both_sums() -> None:
    features = torch.tensor([[4.0, -3.0, 1.0, -2.0], [-1.0, -2.0, -3.0, -4.0], [2.0, -1.0, -1.5, -1.8]])
    pruned = keep_largest(features, 50)
    assert pruned.tolist() == [[4.0, 0.0, 1.0, 0.0], [-1.0, -2.0, 0.0, 0.0], [2.0, -1.0, 0.0, 0.0]]
    assert shaping_factor(features, pruned).flatten().tolist() == pytest.approx([math.e] * 3)
    wider = shaping_factor(features, keep_largest(features, 75)).flatten().tolist()
    assert wider == pytest.approx([math.exp(5 / 4), math.e, math.e])


@pytest.mark.parametrize("make", [GradNorm, *CHANGING])
def test_dead_and_negative_features_have_finite_scores(make: Make) -> None:
    network, bank = headed(drawn(40, 20, 5), WEIGHT, BIAS)
    inputs = torch.cat([torch.zeros(1, 20), -torch.ones(1, 20), drawn(20, 20, 6)])
    scores = make().fit(bank).score(network.see(inputs))
    assert torch.isfinite(scores).all()
    if make in (ReAct, DICE, ASH, SCALE):
        assert float(scores[0]) == pytest.approx(float(energy(BIAS.unsqueeze(0))), rel=1e-5)


@pytest.mark.parametrize("make", [GradNorm, *CHANGING])
def test_one_class_is_scored(make: Make) -> None:
    network, bank = headed(TRAINING, WEIGHT[:1])
    scores = make().fit(bank).score(network.see(INPUTS))
    assert torch.isfinite(scores).all()
    assert scores.shape == (6,)
    if make is GradNorm:
        assert scores.abs().max() == 0
    if make is ReAct:
        clipped = INPUTS.clamp_max(float(np.percentile(TRAINING.numpy(), 90)))
        assert scores.tolist() == pytest.approx((-clipped @ WEIGHT[0]).tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "value", "message"),
    [
        (ReAct, 0.0, "percentile = 0.0 must lie above 0"),
        (ReAct, 100.5, "at most 100"),
        (DICE, 100.0, "some weights must be left"),
        (DICE, -1.0, "percentile = -1.0"),
        (ASH, 100.0, "some features must be left"),
        (ASH, math.nan, "percentile = nan"),
        (SCALE, 100.0, "some features must be left"),
        (SCALE, -5.0, "percentile = -5.0"),
    ],
)
def test_bad_percentiles_are_named(make: Make, value: float, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make(percentile=value)


def test_bad_temperature_is_named() -> None:
    with pytest.raises(SettingError, match=r"temperature = 0\.0 must be a positive number"):
        GradNorm(temperature=0.0)


@pytest.mark.parametrize("make", CHANGING)
def test_scores_before_the_fit_are_refused(make: Make) -> None:
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        make().score(Seen(INPUTS, INPUTS, INPUTS, ()))


# All fifteen on a small trained network


def bars(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One bright bar per image at the angle of its class, with some noise."""
    labels = torch.randint(0, 4, (count,), generator=generator)
    at = torch.arange(12.0) - 5.5
    angle = torch.pi * labels[:, None, None] / 4
    shift = 4 * torch.rand(count, 1, 1, generator=generator) - 2
    distance = angle.sin() * at + angle.cos() * at[:, None] + shift
    return (torch.exp(-(distance**2)) + 0.2 * torch.randn(count, 12, 12, generator=generator)).unsqueeze(1), labels


@pytest.fixture(scope="module")
def trained() -> tuple[Bank, Seen, Seen]:
    """A bank, fresh images of bars, and images of the noise without any bar."""
    generator = torch.Generator().manual_seed(0)
    images, labels = bars(600, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_cnn(1, 4, width=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for _ in range(8):
        for part in torch.randperm(600, generator=generator).split(60):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    optimizer.zero_grad()
    network = Network(model, images[:1])
    bank = Bank(network, lambda: zip(images.split(100), labels.split(100), strict=True))
    fresh, noise = bars(300, generator)[0], 0.2 * torch.randn(300, 1, 12, 12, generator=generator)
    return bank, network.see(fresh), network.see(noise)


@pytest.mark.parametrize("make", EVERY)
def test_noise_scores_higher_than_what_the_network_was_trained_on(make: Make, trained: tuple[Bank, Seen, Seen]) -> None:
    bank, fresh, noise = trained
    detector = make()
    assert detector.fit(bank) is detector
    inside, outside = detector.score(fresh), detector.score(noise)
    assert inside.shape == outside.shape == (300,)
    assert torch.isfinite(inside).all()
    assert torch.isfinite(outside).all()
    # ASH is left with three of the 32 features.
    assert float((outside[:, None] > inside[None]).float().mean()) > (0.7 if make is ASH else 0.95)
    assert torch.equal(make().fit(bank).score(fresh), inside)
    assert all(parameter.grad is None for parameter in bank.network.model.parameters())


def test_names_and_papers_are_there_and_differ() -> None:
    detectors = [make() for make in EVERY]
    assert len({detector.name for detector in detectors}) == len({detector.title for detector in detectors}) == 15
    assert all(detector.name == type(detector).__module__.rpartition(".")[2] for detector in detectors)
    assert all(detector.paper[-4:].isdigit() for detector in detectors)
