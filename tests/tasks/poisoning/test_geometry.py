"""Class means, pooled scatter and whitening, against loops over examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from poison_cases import CLASSES, SIZE, cloud

from sgoif.tasks.poisoning import geometry as module
from sgoif.tasks.poisoning.geometry import fit_geometry, inverse_root, project


def test_means_and_scale_are_those_of_a_loop_over_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 37)  # several parts, the last one short
    case = cloud(per_class=40, planted=5)
    x, y = case.x.double().numpy(), case.y.numpy()
    found = fit_geometry(case.x, case.y, CLASSES)
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    scatter = np.zeros((SIZE, SIZE))
    for row, label in zip(x, y, strict=True):
        scatter += np.outer(row - means[label], row - means[label]) / len(x)
    wanted = np.linalg.inv(scatter + np.trace(scatter) / SIZE * np.eye(SIZE))
    root = found.root.double().numpy()
    np.testing.assert_allclose(found.means.numpy(), means, atol=1e-5)
    np.testing.assert_allclose(root @ root.T, wanted, rtol=1e-4, atol=1e-6)
    assert found.counts.tolist() == np.bincount(y).tolist()


def test_examples_are_placed_about_the_mean_of_their_class() -> None:
    case = cloud(per_class=30, planted=0)
    found = fit_geometry(case.x, case.y, CLASSES)
    whitened = found.whiten(case.x, case.y)
    for label in range(CLASSES):
        own = case.y == label
        torch.testing.assert_close(whitened[own].mean(0), torch.zeros(SIZE), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.whiten(case.x[own], label), whitened[own])
    # Whitened scatter S (S + λ̄ I)⁻¹ has its eigenvalues between 0 and 1, the larger the more a direction scatters.
    values = torch.linalg.eigvalsh(whitened.T @ whitened / len(whitened))
    assert float(values.min()) > 0
    assert 0.5 < float(values.max()) < 1


def test_a_class_without_examples_and_features_without_scatter_do_no_harm() -> None:
    x, y = torch.ones(12, 3), torch.zeros(12, dtype=torch.long)
    found = fit_geometry(x, y, 2)
    assert found.counts.tolist() == [12, 0]
    assert bool(torch.isfinite(found.whiten(x, y)).all())
    assert bool(torch.isfinite(inverse_root(torch.zeros(3, 3, dtype=torch.float64))).all())


def test_very_wide_features_are_projected_and_distances_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WIDEST", 256)
    x = torch.randn(40, 3, 500)
    narrow = project(x)
    assert narrow.shape == (40, 256)
    ratio = (
        torch.cdist(narrow, narrow)[~torch.eye(40, dtype=torch.bool)]
        / torch.cdist(x.flatten(1), x.flatten(1))[~torch.eye(40, dtype=torch.bool)]
    )
    assert 0.8 < float(ratio.min()) <= float(ratio.max()) < 1.2
    assert torch.equal(project(x), narrow)
    assert torch.equal(project(x[:, :, :80]), x[:, :, :80].flatten(1))
