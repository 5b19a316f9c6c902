"""Signatures of planted groups, and of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from poison_cases import CLASSES, SIZE, cloud

from sgoif.tasks.poisoning.geometry import fit_geometry
from sgoif.tasks.poisoning.mixture import Mixture, fit_mixture, robust_units
from sgoif.tasks.poisoning.signature import (
    candidate_directions,
    group_separation,
    most_separated,
    refine_directions,
    signature,
    top_directions,
    turn_to_means,
)


@pytest.mark.parametrize("size", [12, 60])
def test_top_directions_are_the_eigenvectors(size: int) -> None:
    scale = torch.logspace(1, -1, size)
    x = torch.randn(400, size) * scale
    found = top_directions(x, 10)
    wanted = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :10]
    torch.testing.assert_close(found.T @ found, torch.eye(10), atol=1e-4, rtol=0)
    overlap = (found.T @ wanted).abs().diagonal()
    assert float(overlap[:6].min()) > 0.99


def placed_class(seed: int = 0, planted: int = 14, shift: float = 9.0) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    case = cloud(seed=seed, planted=planted, shift=shift)
    own = (case.y == case.target).numpy()
    geometry = fit_geometry(case.x, case.y, CLASSES)
    return geometry.whiten(case.x[own], case.target), case.planted[own], geometry.root.T @ case.trigger


def test_the_third_moment_of_a_group_is_what_the_formula_says() -> None:
    share, delta, count = 0.1, 6.0, 200_000
    generator = np.random.default_rng(0)
    p = generator.normal(size=count)
    p[: int(share * count)] += delta
    p -= p.mean()
    wanted = share * (1 - share) * (1 - 2 * share) * delta**3
    assert (p**3).mean() == pytest.approx(wanted, rel=0.03)


def test_directions_of_largest_third_moment_hold_the_shift_and_not_the_scatter() -> None:
    x = torch.randn(600, 8)
    x[:, 0] *= 2.5  # the largest variance, the same to both sides
    x[:50, 3] += 7
    found = candidate_directions(x - x.mean(0))
    assert float(found[0, 3]) > 0.9
    assert abs(float(found[0, 0])) < 0.3
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(found)))
    third = ((x - x.mean(0)) @ found.T).pow(3).mean(0)
    maxima, widest = third[:-4], found[-4:]  # behind the maxima come the directions of largest variance, both senses
    assert bool((maxima[:-1] >= maxima[1:] - 1e-4).all())
    torch.testing.assert_close(widest[:2], -widest[2:])
    assert abs(float(widest[0, 0])) > 0.95
    random = torch.nn.functional.normalize(torch.randn(500, 8), dim=1)
    assert float(third[0]) > float(((x - x.mean(0)) @ random.T).pow(3).mean(0).max())


def test_a_group_is_preferred_to_a_long_tail() -> None:
    x = torch.randn(800, 8)
    x[:, 1] += 2.5 * torch.distributions.Exponential(1.0).sample((800,)) ** 1.2  # a tail with the larger third moment
    x[:60, 5] += 6
    centred = x - x.mean(0)
    tail, group = (float(centred[:, axis].pow(3).mean()) for axis in (1, 5))
    assert tail > 2 * group
    found = signature(x)
    mixture = fit_mixture(robust_units(found.projection))
    called = mixture.posterior(robust_units(found.projection)) > 0.5
    assert called[:60].mean() > 0.9
    assert called[60:].mean() < 0.02


def test_turning_gives_the_difference_of_the_means() -> None:
    x = torch.randn(50, 6)
    weights = torch.rand(2, 50)
    weights[1] = 0
    start = torch.eye(6)[:2]
    found = turn_to_means(x, start, weights)
    by_hand = (weights[0, :, None] * x).sum(0) / weights[0].sum() - ((1 - weights[0, :, None]) * x).sum(0) / (
        1 - weights[0]
    ).sum()
    torch.testing.assert_close(found[0], by_hand / by_hand.norm())
    assert torch.equal(found[1], start[1])  # a group of nobody has no mean


def test_the_planted_group_stands_out_and_nothing_does_without_it() -> None:
    for seed in range(3):
        whitened, planted, _ = placed_class(seed)
        found = signature(whitened)
        mixture = fit_mixture(robust_units(found.projection))
        called = mixture.posterior(robust_units(found.projection)) > 0.5
        assert np.array_equal(called, planted)
        without = signature(placed_class(seed, planted=0)[0])
        assert without.strength < 0.1 * found.strength
        np.testing.assert_array_equal(found.values, found.strength * found.projection)


def test_an_example_far_away_does_not_make_a_direction_of_its_own() -> None:
    whitened, planted, _ = placed_class()
    odd = int(np.flatnonzero(~planted)[0])
    step = torch.zeros(SIZE)
    step[11] = 1.0

    def projected(times: float) -> float:
        changed = whitened.clone()
        changed[odd] += times * step
        return float(signature(changed).projection[odd])

    # Projected on a direction that it takes part in, it would come out as far away as it lies.
    assert abs(projected(60) - projected(0)) < 15


def test_turning_settles_between_the_means_of_the_groups() -> None:
    whitened, planted, _ = placed_class()
    centred = whitened - whitened.mean(0)
    mask = torch.from_numpy(planted)
    wanted = torch.nn.functional.normalize(centred[mask].mean(0) - centred[~mask].mean(0), dim=0)
    start = torch.nn.functional.normalize(wanted + 0.6 * torch.nn.functional.normalize(torch.randn(SIZE), dim=0), dim=0)
    found = refine_directions(centred, start[None])[0]
    assert float(found @ wanted) > 0.995 > float(start @ wanted)


def test_small_classes_and_large_modes_have_no_strength() -> None:
    few = signature(torch.randn(19, 5))
    assert few.strength == 0
    assert few.projection.shape == (19,)
    halves = torch.randn(400, 5)
    halves[:180, 2] += 4.5  # nearly half of the class, and not far away: a part of what the class is
    assert signature(halves).strength == 0
    assert group_separation(Mixture(0.4, 0, 1, 5, 1), 400) == 0
    assert group_separation(Mixture(0.01, 0, 1, 8, 1), 400) == 0  # four examples
    assert group_separation(Mixture(0.1, 0, 1, 8, 1), 400) == pytest.approx(64)
    assert group_separation(Mixture(0.4, 0, 1, 8, 1), 400) == pytest.approx(64)  # large, but far away
    assert group_separation(Mixture(0.5, 0, 1, 8, 1), 400) == 0  # where a fit ends that would be the larger half


def test_a_class_of_two_halves_far_apart_is_told_by_its_smaller_half() -> None:
    halves = torch.randn(400, 5)
    halves[:180, 2] += 12
    found = signature(halves)
    assert found.projection[:180].min() > found.projection[180:].max()
    units = robust_units(found.projection)
    mixture = fit_mixture(units)
    assert mixture.share == pytest.approx(0.45, abs=0.01)
    between = found.projection[:180].mean() - found.projection[180:].mean()
    assert between == pytest.approx(12, rel=0.05)
    assert found.strength == pytest.approx(mixture.share * (1 - mixture.share) * between**3 * mixture.distinctness)


def test_only_the_most_separated_directions_are_cross_fitted() -> None:
    x = torch.randn(500, 6)
    x[:40, 4] += 8
    axes = torch.eye(6)
    found = most_separated(x - x.mean(0), axes)
    assert len(found) == 4
    assert torch.equal(found[0], axes[4])


def test_the_same_seed_gives_the_same_signature() -> None:
    whitened, _, _ = placed_class()
    state = torch.random.get_rng_state()
    one, two = signature(whitened, seed=3), signature(whitened, seed=3)
    np.testing.assert_array_equal(one.projection, two.projection)
    assert torch.equal(torch.random.get_rng_state(), state)
