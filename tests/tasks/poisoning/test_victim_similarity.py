"""Similarity to victims: direction, refinement, and what it makes of victims that are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from poison_cases import CLASSES, Cloud, cloud

from sgoif.tasks.poisoning import victim_similarity as module
from sgoif.tasks.poisoning.geometry import fit_geometry
from sgoif.tasks.poisoning.mixture import robust_units
from sgoif.tasks.poisoning.victim_similarity import direction_of, victim_similarity
from sgoif_bench.metrics import average_precision


def whitened(case: Cloud) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    geometry = fit_geometry(case.x, case.y, CLASSES)
    own = case.y == case.target
    return (
        geometry.whiten(case.x[own], case.target),
        geometry.whiten(case.victims, case.target),
        case.planted[own.numpy()],
    )


def test_few_victims_count_alike_and_more_by_their_agreement() -> None:
    victims = torch.randn(5, 7) + 2
    for count in (1, 2):
        mean = victims[:count].mean(0)
        torch.testing.assert_close(direction_of(victims[:count]), mean / mean.norm())
    mean = victims.mean(0)
    by_hand = sum(((victim @ mean) * victim for victim in victims), torch.zeros(7))
    torch.testing.assert_close(direction_of(victims), by_hand / by_hand.norm())


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_examples_are_found_from_few_victims(count: int, seed: int) -> None:
    examples, victims, planted = whitened(cloud(seed=seed))
    found = victim_similarity(examples, victims[:count])
    assert average_precision(planted, found.values) > 0.99
    assert np.array_equal(found.mixture.posterior(found.values) > 0.5, planted)
    assert np.median(found.victims) > 3


def test_victims_of_which_most_are_ordinary_still_point_the_way() -> None:
    case = cloud(per_class=200)
    examples, victims, planted = whitened(case)
    ordinary = examples[~planted][:9]  # like members of the class that nobody did anything to
    found = victim_similarity(examples, torch.cat([victims[:3], ordinary]))
    assert average_precision(planted, found.values) > 0.95


def test_ordinary_victims_find_nobody() -> None:
    case = cloud(per_class=200, planted=0)
    examples, _, _ = whitened(case)
    fresh, _, _ = whitened(cloud(per_class=200, planted=0, seed=5))
    for number in range(8):
        mixture = victim_similarity(examples, fresh[number : number + 1]).mixture
        assert mixture.separation < 4 or mixture.contrast < 3


def test_the_refinement_is_that_of_a_slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, victims, _ = whitened(cloud(per_class=60, planted=8))
    monkeypatch.setattr(module, "REFINEMENTS", 0)
    first = victim_similarity(examples, victims[:1])
    monkeypatch.setattr(module, "REFINEMENTS", 1)
    second = victim_similarity(examples, victims[:1])
    r = first.mixture.posterior(first.values)
    w = examples.double().numpy()
    u = direction_of(victims[:1]).double().numpy()
    length = np.linalg.norm((r[:, None] * w).sum(0) / r.sum())
    slow = []
    for i in range(len(w)):
        others = [j for j in range(len(w)) if j != i]
        mean = sum(r[j] * w[j] for j in others) / sum(r[j] for j in others)
        slow.append(w[i] @ u + w[i] @ mean / length)
    np.testing.assert_allclose(second.values, robust_units(np.array(slow)), rtol=1e-3, atol=1e-3)
