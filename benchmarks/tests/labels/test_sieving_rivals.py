"""CORES² and DivideMix: their formulas against numbers worked out by hand, and in training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import striped

from sgoif_bench.labels.rivals import cores, dividemix
from sgoif_bench.metrics import auroc

# CORES²


def test_the_regulariser_grows_and_the_sieve_begins_as_in_a_hundred_epochs_of_the_paper() -> None:
    weights = [cores.beta(epoch, 100) for epoch in (1, 10, 11, 26, 41, 100)]
    assert weights == pytest.approx([0, 0, 0, 1, 2, 2])
    assert next(epoch for epoch in range(1, 101) if cores.sieves(epoch, 100)) == 32  # after epoch 30, counted from 0


def test_sieve_and_loss_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    labels, prior = torch.tensor([0, 2]), torch.tensor([0.5, 0.3, 0.2])
    losses = [-math.log(value) for value in (0.7, 0.2, 0.1)]
    average = sum(losses) / 3
    expected = torch.tensor([losses[0] - average, losses[2] - average])
    assert torch.allclose(cores.sieve_values(p.log(), labels), expected, atol=1e-5)
    assert expected[0] < 0 < expected[1], "the first label is kept, the second sieved out"
    drawn = 0.5 * losses[0] + 0.3 * losses[1] + 0.2 * losses[2]
    expected = torch.tensor([losses[0] - 2 * drawn, losses[2] - 2 * drawn])
    assert torch.allclose(cores.regularised(p.log(), labels, prior, 2.0), expected, atol=1e-5)


@pytest.mark.long
def test_cores_finds_wrong_labels_and_its_threshold_is_the_sieve() -> None:
    problem, is_wrong = striped(size=240, epochs=10, anchors=24)
    found = cores.cores(problem, lambda line: None)
    assert auroc(is_wrong, found.suspicion) > 0.95
    assert found.flagged is not None
    assert np.array_equal(found.flagged, found.suspicion > 0)
    assert is_wrong[found.flagged].mean() > 0.8


# DivideMix


@pytest.mark.long
def test_the_mixture_is_that_of_scikit_learn() -> None:
    mixture = pytest.importorskip("sklearn.mixture")
    generator = np.random.default_rng(0)
    losses = np.concatenate([generator.gamma(2, 0.1, 800), generator.normal(3, 0.5, 200)])
    values = ((losses - losses.min()) / np.ptp(losses))[:, None]
    fitted = mixture.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(values)
    expected = fitted.predict_proba(values)[:, fitted.means_.argmin()]
    found = dividemix.log_odds_of_clean(torch.from_numpy(losses)).sigmoid().numpy()
    assert np.abs(found - expected).max() < 0.02
    assert found[:800].mean() > 0.95
    assert found[800:].mean() < 0.05


def test_equal_losses_are_neither_clean_nor_wrong() -> None:
    assert torch.equal(dividemix.log_odds_of_clean(torch.ones(5)), torch.zeros(5, dtype=torch.float64))


def test_sharpening_and_the_loss_of_a_mixed_batch_by_hand() -> None:
    p = torch.tensor([[0.8, 0.2], [0.5, 0.5]])
    assert torch.allclose(dividemix.sharpened(p), torch.tensor([[0.64 / 0.68, 0.04 / 0.68], [0.5, 0.5]]))
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mean = (0.65, 0.35)
    penalty = sum(0.5 * math.log(0.5 / share) for share in mean)
    by_label, unlabelled = -math.log(0.8), 0.25  # (0.5² + 0.5²) / 2
    found = float(dividemix.mixed_loss(p.log(), targets, labelled=1, weight=4.0))
    assert found == pytest.approx(by_label + 4 * unlabelled + penalty, rel=1e-5)
    without = float(dividemix.mixed_loss(p.log(), targets, labelled=2, weight=4.0))
    assert without == pytest.approx(float(F.cross_entropy(p.log(), torch.tensor([0, 1]))) + penalty, rel=1e-5)


def test_unlabelled_examples_count_in_full_sixteen_epochs_after_warm_up() -> None:
    assert [dividemix.warm_up_epochs(epochs) for epochs in (1, 8, 20, 300)] == [1, 4, 10, 10]
    assert [dividemix.ramp(completed, 10) for completed in (10, 14, 26, 100)] == [0, 0.25, 1, 1]


@pytest.mark.long
def test_dividemix_finds_wrong_labels() -> None:
    problem, is_wrong = striped(size=240, epochs=6, anchors=24)
    found = dividemix.dividemix(problem, lambda line: None)
    assert auroc(is_wrong, found.suspicion) > 0.95
    assert found.flagged is not None
    assert is_wrong[found.flagged].mean() > 0.8
    # Three epochs of two networks on everything; then, of 240, two views of some 192 labelled ones and of as many
    # unlabelled ones in their place.
    assert 1 + 0.5 * 2 * 2 * 0.7 < found.trainings <= 1 + 0.5 * 2 * 4
