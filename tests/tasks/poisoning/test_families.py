"""Families: groups of the found by the way in which they differ from their class."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.tasks.poisoning.families import Family, find_families, silhouette, split


def directions(*axes: int, size: int = 12, each: int = 10, spread: float = 0.2) -> torch.Tensor:
    parts = [torch.eye(size)[axis] + spread * torch.randn(each, size) for axis in axes]
    return torch.nn.functional.normalize(torch.cat(parts), dim=1)


def test_the_silhouette_is_that_of_all_pairs() -> None:
    x = directions(0, 5, 9, each=6)
    groups = np.repeat([0, 1, 2], 6)
    distance = (1 - x.double() @ x.double().T).numpy()
    slow = []
    for i in range(len(x)):
        own = np.mean([distance[i, j] for j in range(len(x)) if groups[j] == groups[i] and j != i])
        other = min(np.mean([distance[i, j] for j in range(len(x)) if groups[j] == g]) for g in {0, 1, 2} - {groups[i]})
        slow.append((other - own) / max(own, other))
    assert silhouette(x, groups) == pytest.approx(np.mean(slow), abs=1e-6)


@pytest.mark.parametrize("axes", [(3,), (0, 6), (1, 4, 8)])
def test_as_many_groups_as_there_are(axes: tuple[int, ...]) -> None:
    groups = split(directions(*axes))
    truth = np.repeat(np.arange(len(axes)), 10)
    assert len(groups) == len(axes)
    assert sorted(len(set(truth[group])) for group in groups) == [1] * len(axes)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(truth)))


def test_one_broad_cloud_stays_one_family_and_two_examples_are_not_split() -> None:
    torch.manual_seed(4)
    assert len(split(torch.nn.functional.normalize(torch.randn(60, 40) + 0.5, dim=1))) == 1
    assert len(split(directions(0, 7, each=1))) == 1


def test_families_keep_the_order_and_say_what_they_are() -> None:
    whitened = torch.cat([3 * directions(2, each=5), 7 * directions(6, 9, each=8)])
    labels = np.array([1] * 5 + [0] * 16)
    index = np.arange(100, 121)
    second = np.array([0] * 5 + [2, 2, 3] * 5 + [2])
    found = find_families(index, labels, whitened, second)
    assert [family.size for family in found] == [8, 8, 5]
    assert [family.label for family in found] == [0, 0, 1]
    for family in found:
        assert (np.diff(family.index) > 0).all()
        assert set(family.representatives) <= set(family.index)
        assert 0.7 < family.cohesion <= 1
    assert found[2].resembles == {0: 5}
    assert list(found[0].resembles.values()) == sorted(found[0].resembles.values(), reverse=True)
    assert (
        found[2].description
        == f"5 examples labelled 1, cohesion {found[2].cohesion:.2f}; the model's next guesses: 0 (5)"
    )
    assert "labelled cat" in found[2].described(["dog", "cat", "owl", "elk"])
    assert "1 example labelled 3" in Family(index[:1], 3, 1.0, index[:1]).description


def test_the_cohesion_is_the_mean_cosine_to_the_common_way() -> None:
    whitened = torch.tensor([[2.0, 0.0], [0.0, 5.0], [1.0, 1.0]])
    (family,) = find_families(np.arange(3), np.zeros(3, dtype=np.int64), whitened, np.zeros(3, dtype=np.int64))
    common = np.array([1, 1]) / np.sqrt(2)
    wanted = np.mean([np.array(way) @ common for way in ([1, 0], [0, 1], common)])
    assert family.cohesion == pytest.approx(wanted)
