"""UDG: filtering of the unlabelled images, cluster weights and its training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from trained_cases import QUIET, as_input, clean, rings

from sgoif.errors import SettingError
from sgoif_bench.ood.trained import udg

# UDG


def test_filtering_by_hand() -> None:
    #          cluster 0: four of five are class 2     1: all unlabelled   2: exactly 80% class 0 of 5    3: mixed
    clusters = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3])
    labels = torch.tensor([2, 2, 2, 2, 2, -1, -1, -1, 0, 0, 0, 0, -1, 1, 0])
    found = udg.filtered(clusters, labels, count=5, classes=3, purity=0.8)
    assert found.tolist() == [2] * 6 + [-1] * 9
    assert udg.filtered(clusters, labels, 5, 3, 0.79).tolist() == [2] * 6 + [-1] * 2 + [0] * 5 + [-1] * 2


def test_cluster_weights_by_hand() -> None:
    weights = udg.cluster_weights(torch.tensor([0, 0, 0, 0, 2]), count=3)
    # Sizes 4, 0 and 1: 1/2 and 1, whose mean is 3/4; the empty cluster does not count.
    assert weights.tolist() == pytest.approx([2 / 3] * 4 + [4 / 3])


def test_udg_loss_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, -1.0], [0.5, 0.5]])
    second = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    labels, clusters = torch.tensor([0, 0, -1, -1]), torch.tensor([0, 2, 0, 1])
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5])
    logs, grouped = logits.log_softmax(dim=1), second.log_softmax(dim=1)
    supervised = -(logs[0, 0] + logs[1, 0]) / 2
    uniform = -(logs[2].mean() + logs[3].mean()) / 2
    clustered = -sum(weights[row] * grouped[row, clusters[row]] for row in range(4)) / 4
    found = udg.udg_loss(logits, second, labels, clusters, weights)
    assert float(found) == pytest.approx(float(supervised + 0.5 * uniform + 0.1 * clustered), rel=1e-5)
    known = udg.udg_loss(logits, second, torch.tensor([0, 0, 1, 1]), clusters, weights)
    assert known.isfinite()


def test_whitening_makes_directions_equal_and_rows_one_long() -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(300, 4, generator=generator) * torch.tensor([10.0, 1.0, 0.1, 0.0]) + 3
    white = udg.whitened(features, directions=2)
    # Rows of the left singular vectors are whitened rows; products between them do not depend on the sign of an axis.
    left, spread, _ = torch.linalg.svd(features - features.mean(dim=0), full_matrices=False)
    expected = F.normalize(left[:, :2], dim=1)
    assert spread[1] > 5 * spread[2]
    assert white.shape == (300, 2)
    assert torch.allclose(white @ white.T, expected @ expected.T, atol=1e-3)
    assert udg.whitened(features).shape == (300, 3)
    assert udg.whitened(torch.ones(5, 2)).isfinite().all()


def test_unlabelled_images_of_known_classes_get_their_label_and_others_none() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = 8 * torch.eye(3)
    given = torch.arange(300) % 3
    features = corners[given] + 0.3 * torch.randn(300, 3, generator=generator)
    labels = given.clone()
    hidden, strange = slice(150, 156), slice(156, 186)
    labels[hidden] = labels[strange] = -1
    labels[0] = 1  # a wrong label among the given ones is not corrected
    features[strange] = -8 + 0.3 * torch.randn(30, 3, generator=generator)
    order = torch.cat([torch.arange(150), torch.arange(186, 300), torch.arange(150, 186)])
    groups = udg.regroup(features[order], labels[order], 264, 8, 3, 0.8, generator)
    assert torch.equal(groups.labels[:264], labels[order][:264])
    assert torch.equal(groups.labels[264:270], given[hidden])
    assert (groups.labels[270:] == udg.UNKNOWN).all()
    assert len(groups.clusters.unique()) == 8


def test_udg_filters_stripes_out_of_the_unlabelled_set_and_unlearns_the_rest() -> None:
    problem, further = clean(size=400, epochs=6), clean(size=40, seed=8)
    mixed = torch.cat([further.images, rings(160, seed=5)])
    lines: list[str] = []
    scorer = udg.udg(problem, mixed, lines.append)
    assert len(lines) == 6
    assert "filtered" in lines[-1]
    assert scorer.details["clusters"] == 600 // 40
    assert 15 < scorer.details["filtered"][-1] < 60
    doubt = scorer.score(as_input(problem, mixed)).exp()
    assert doubt[:40].median() < 0.2
    assert doubt[40:].median() > 0.4


def test_unlabelled_images_are_normalised_like_the_others_and_settings_are_checked() -> None:
    problem = clean(size=64)
    unlabelled = udg.unlabelled_problem(problem, 255 - rings(40, seed=1))
    assert unlabelled.mean == problem.mean
    assert unlabelled.spread == problem.spread
    assert unlabelled.recipe.batch_size == 2 * problem.recipe.batch_size
    assert len(unlabelled) == 40
    assert udg.cluster_count(100_000, 1000) == 1000
    assert udg.cluster_count(30, 1000) == 1
    for wrong in ({"clusters": 0}, {"purity": 1.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            udg.udg(problem, rings(10, 0), QUIET, **wrong)
