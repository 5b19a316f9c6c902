"""Detectors that read the logits: MSP, MLS, energy, ODIN, GEN and KL matching."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.ebo import EBO
from sgoif_bench.ood.detectors.gen import GEN
from sgoif_bench.ood.detectors.klm import KLM
from sgoif_bench.ood.detectors.mls import MLS
from sgoif_bench.ood.detectors.msp import MSP
from sgoif_bench.ood.detectors.odin import ODIN


def answered(logits: list[list[float]] | Tensor) -> Seen:
    """A batch of which only the logits matter."""
    given = torch.as_tensor(logits, dtype=torch.float32)
    return Seen(torch.zeros(len(given), 1), given, torch.zeros(len(given), 1), ())


class Passed(nn.Module):
    """Gives its inputs as logits, through a head that is the identity."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(classes, classes, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(x)
        return answer


def bank_of(logits: list[list[float]] | Tensor) -> Bank:
    """Training data for which the network answers exactly this; all labels are zero, whatever it predicts."""
    given = torch.as_tensor(logits, dtype=torch.float32)
    network = Network(Passed(given.shape[1]), given[:1])
    return Bank(network, lambda: [(part, torch.zeros(len(part), dtype=torch.long)) for part in given.split(2)])


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


LOGITS = [[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [-3.0, 1.0, 4.0], [0.0, -0.1, 0.1]]


# MSP, MLS and energy


def test_msp_by_hand() -> None:
    expected = [1 - max(softmax(row)) for row in LOGITS]
    assert MSP().score(answered(LOGITS)).tolist() == pytest.approx(expected, abs=1e-6)
    assert expected[1] == pytest.approx(2 / 3)


def test_msp_still_ranks_inputs_that_are_all_certain() -> None:
    # 1 − max p is 2 e^−20, 2 e^−30 and 2 e^−40 up to terms a billion times smaller: below the resolution near 1.
    scores = MSP().score(answered([[20.0, 0, 0], [0, 30.0, 0], [40.0, 0, 0]]))
    assert scores.tolist() == pytest.approx([2 * math.exp(-20), 2 * math.exp(-30), 2 * math.exp(-40)], rel=1e-4)


def test_mls_by_hand() -> None:
    assert MLS().score(answered(LOGITS)).tolist() == pytest.approx([-2.0, -0.5, -4.0, -0.1])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 10.0])
def test_energy_by_hand(temperature: float) -> None:
    expected = [-temperature * math.log(sum(math.exp(value / temperature) for value in row)) for row in LOGITS]
    assert EBO(temperature=temperature).score(answered(LOGITS)).tolist() == pytest.approx(expected, rel=1e-5)


def test_energy_of_the_paper_has_temperature_one_and_survives_large_logits() -> None:
    assert EBO().score(answered(LOGITS)).tolist() == EBO(temperature=1.0).score(answered(LOGITS)).tolist()
    assert EBO().score(answered([[1000.0, 1000.0], [-1000.0, -1000.0]])).tolist() == pytest.approx(
        [-1000 - math.log(2), 1000 - math.log(2)]
    )


def test_a_common_shift_of_the_logits_moves_energy_and_logit_but_no_softmax() -> None:
    near, far = answered([[5.0, 3.0, 0.0]]), answered([[1.0, -1.0, -4.0]])
    assert MSP().score(near).tolist() == pytest.approx(MSP().score(far).tolist())
    for detector in (MLS(), EBO()):
        assert float(detector.score(far) - detector.score(near)) == pytest.approx(4.0, rel=1e-5)


# GEN


@pytest.mark.parametrize(("gamma", "top"), [(0.1, 100), (0.5, 2), (1.0, 1)])
def test_gen_by_hand(gamma: float, top: int) -> None:
    expected = [sum((p * (1 - p)) ** gamma for p in sorted(softmax(row))[-top:]) for row in LOGITS]
    assert GEN(gamma=gamma, top=top).score(answered(LOGITS)).tolist() == pytest.approx(expected, rel=1e-4)


def test_gen_looks_at_the_hundred_most_likely_of_many_classes() -> None:
    few = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    many = torch.cat([few, torch.full((3, 50), -60.0)], dim=1)
    assert GEN().score(answered(many)).tolist() == pytest.approx(GEN().score(answered(few)).tolist(), rel=1e-5)
    assert (GEN(top=150).score(answered(many)) > GEN().score(answered(many)) + 0.05).all()


def test_gen_of_a_certain_input_has_the_exact_distance_from_certainty() -> None:
    # p = (1 − e^−25, e^−25): both terms are e^−2.5, where a float32 rounding of 1 − p would make the first one zero.
    assert float(GEN().score(answered([[25.0, 0.0]]))) == pytest.approx(2 * math.exp(-2.5), rel=1e-4)


# KL matching


def test_klm_by_hand() -> None:
    training = [[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 3.0, 1.0], [0.0, 1.0, 0.5], [4.0, 0.0, 1.0]]
    # The network predicts 0 for the first two and the last, 1 for the others, and 2 for none.
    first = np.mean([softmax(training[row]) for row in (0, 1, 4)], axis=0)
    second = np.mean([softmax(training[row]) for row in (2, 3)], axis=0)
    expected = []
    for row in LOGITS:
        p = np.array(softmax(row))
        expected.append(min(float((p * np.log(p / template)).sum()) for template in (first, second)))
    detector = KLM().fit(bank_of(training))
    assert detector.score(answered(LOGITS)).tolist() == pytest.approx(expected, rel=1e-5)
    assert detector.log_templates is not None
    assert detector.log_templates.exp().numpy() == pytest.approx(np.stack([first, second]))


def test_klm_takes_the_nearest_template_not_that_of_the_predicted_class() -> None:
    # The two examples taken for class 0 are nearly undecided and nearly certain: their mean is far from both, while
    # an undecided input that leans to class 0 is very near the template of class 1, itself undecided.
    detector = KLM().fit(bank_of([[0.1, 0.0], [8.0, 0.0], [0.0, 0.01]]))
    p, template = np.array(softmax([0.02, 0.0])), np.array(softmax([0.0, 0.01]))
    score = float(detector.score(answered([[0.02, 0.0]])))
    assert score == pytest.approx(float((p * np.log(p / template)).sum()), rel=1e-3)
    assert score < 1e-3


def test_klm_is_zero_at_a_template_and_finite_where_probabilities_vanish() -> None:
    detector = KLM().fit(bank_of([[500.0, 0.0, -500.0], [0.0, 500.0, -500.0]]))
    scores = detector.score(answered([[500.0, 0.0, -500.0], [-500.0, 0.0, 500.0], [0.0, 0.0, 0.0]]))
    assert scores.tolist() == pytest.approx([0.0, 1000.0, (0 + 500 + 1000) / 3 - math.log(3)], abs=1e-3)


# ODIN


class Squares(nn.Module):
    """Logits that bend: a head on the squares of the pixels of a two-channel image."""

    def __init__(self, weight: list[list[float]], bias: list[float]) -> None:
        super().__init__()
        self.head = nn.Linear(len(weight[0]), len(weight))
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor(weight))
            self.head.bias.copy_(torch.tensor(bias))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(x.flatten(1) ** 2)
        return answer


WEIGHT, BIAS = [[1.0, -2.0], [0.5, 1.5], [-1.0, 0.25]], [0.1, 0.0, -0.2]
# For the last of these the gradient by the first pixel has one sign at temperature 1 and the other at 3.
PIXELS = [[0.4, -0.3], [1.0, 0.8], [-2.0, 0.1], [0.2, 1.5], [-1.2, -0.5]]


def pixels(rows: list[list[float]]) -> Tensor:
    """Images of two channels with one pixel each."""
    return torch.tensor(rows).reshape(-1, 2, 1, 1)


def squares() -> tuple[Network, Bank]:
    images = pixels(PIXELS)
    network = Network(Squares(WEIGHT, BIAS), images[:1])
    return network, Bank(network, lambda: [(images, torch.zeros(len(images), dtype=torch.long))])


def confidence(pixel: list[float], temperature: float) -> float:
    """Largest softmax probability of `Squares`, in plain Python."""
    logits = [
        sum(weight * value**2 for weight, value in zip(row, pixel, strict=True)) + bias
        for row, bias in zip(WEIGHT, BIAS, strict=True)
    ]
    return max(softmax([value / temperature for value in logits]))


@pytest.mark.parametrize("spread", [None, (0.25, 0.5)])
def test_odin_by_finite_differences(spread: tuple[float, float] | None) -> None:
    temperature, noise, small = 3.0, 0.05, 1e-6
    expected = []
    for pixel in PIXELS:
        moved = list(pixel)
        for channel, value in enumerate(pixel):
            up, down = list(pixel), list(pixel)
            up[channel], down[channel] = value + small, value - small
            slope = math.log(confidence(up, temperature)) - math.log(confidence(down, temperature))
            step = noise / (spread[channel] if spread else 1.0)
            moved[channel] = value + math.copysign(step, slope)
        expected.append(-confidence(moved, temperature))
    network, bank = squares()
    detector = ODIN(temperature=temperature, noise=noise, spread=spread).fit(bank)
    assert detector.score(network.see(pixels(PIXELS))).tolist() == pytest.approx(expected, rel=1e-5)
    still = [-confidence(pixel, temperature) for pixel in PIXELS]
    assert all(after < before for after, before in zip(expected, still, strict=True))


def test_a_pixel_without_a_gradient_is_moved_like_one_with_a_positive() -> None:
    network, bank = squares()
    detector = ODIN(temperature=1.0, noise=0.1).fit(bank)
    moved = detector._moved(network, pixels([[0.0, 0.5]]))  # the slope of a square at 0 is 0
    assert float(moved.flatten()[0]) == pytest.approx(-0.1)


def test_odin_without_a_step_is_softmax_at_the_temperature() -> None:
    network, bank = squares()
    for temperature in (1.0, 1000.0):
        scores = ODIN(temperature=temperature, noise=0.0).fit(bank).score(network.see(pixels(PIXELS)))
        assert scores.tolist() == pytest.approx([-confidence(pixel, temperature) for pixel in PIXELS], rel=1e-6)


def test_odin_of_the_paper_tells_inputs_apart_at_a_thousand() -> None:
    network, bank = squares()
    seen = network.see(pixels([[0.5, 0.5], [0.501, 0.5]]))
    first, second = ODIN().fit(bank).score(seen).tolist()
    assert ODIN().temperature == 1000.0
    assert ODIN().noise == 0.0014
    # Class 1 leads; its probability changes by (z' − z − mean of the changes) / (3 · 1000).
    change = 0.501**2 - 0.5**2
    assert first - second == pytest.approx(change * (0.5 - (1 + 0.5 - 1) / 3) / 3000, rel=0.2)


def test_odin_moves_an_image_alike_whatever_its_batch() -> None:
    network, bank = squares()
    detector = ODIN(temperature=2.0, noise=0.3).fit(bank)
    together = detector.score(network.see(pixels(PIXELS)))
    alone = torch.cat([detector.score(network.see(pixels([pixel]))) for pixel in PIXELS])
    assert together.tolist() == pytest.approx(alone.tolist(), rel=1e-6)


def test_odin_leaves_network_and_images_as_they_were() -> None:
    network, bank = squares()
    seen = network.see(pixels(PIXELS))
    with torch.no_grad():
        scores = ODIN(noise=0.1).fit(bank).score(seen)
    assert not scores.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.model.parameters())
    assert torch.equal(seen.images, pixels(PIXELS))
    assert not seen.images.requires_grad


# All of them


@pytest.mark.parametrize("make", [MSP, MLS, EBO, GEN, KLM])
def test_one_class_is_scored(make: Callable[[], Detector]) -> None:
    scores = make().fit(bank_of([[1.0], [2.0], [0.5]])).score(answered([[3.0], [-1.0]]))
    assert torch.isfinite(scores).all()
    expected = [-3.0, 1.0] if make in (MLS, EBO) else [0.0, 0.0]
    assert scores.tolist() == pytest.approx(expected, abs=1e-6)


def test_odin_of_one_class_is_certain_of_everything() -> None:
    bank = bank_of([[1.0], [2.0]])
    assert ODIN().fit(bank).score(bank.network.see(torch.tensor([[1.0], [5.0]]))).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EBO(temperature=0.0), "temperature = 0.0 must be a positive"),
        (lambda: EBO(temperature=math.nan), "temperature = nan must be a positive"),
        (lambda: ODIN(temperature=-1.0), "temperature = -1.0 must be a positive"),
        (lambda: ODIN(noise=-0.1), "noise = -0.1 must be 0 or more"),
        (lambda: ODIN(spread=(0.2, 0.0)), r"spread = \(0.2, 0.0\) must hold a positive number"),
        (lambda: ODIN(spread=()), "every channel"),
        (lambda: GEN(gamma=0.0), "gamma = 0.0 must be a positive"),
        (lambda: GEN(top=0), "top = 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(make: Callable[[], Detector], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


@pytest.mark.parametrize("make", [KLM, ODIN])
def test_scores_before_the_fit_are_refused(make: Callable[[], Detector]) -> None:
    with pytest.raises(SettingError, match=r"call fit\(bank\) before"):
        make().score(answered(LOGITS))


def test_spread_of_other_channels_is_refused() -> None:
    network, bank = squares()
    with pytest.raises(SettingError, match="3 values for images of 2 channels"):
        ODIN(spread=(0.2, 0.2, 0.2)).fit(bank).score(network.see(pixels(PIXELS)))
