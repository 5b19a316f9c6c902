"""G-ODIN: dividend and divisor, the step on the input, and its training."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trained_cases import QUIET, as_input, clean

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood.trained import godin

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


def test_rows_with_a_fixed_step_take_it() -> None:
    problem = clean(size=160, epochs=1)
    for train, magnitude in ((godin.godin_still, 0.0), (godin.godin_small, 0.0025)):
        assert train(problem, None, QUIET).details["magnitudes"] == [magnitude]
