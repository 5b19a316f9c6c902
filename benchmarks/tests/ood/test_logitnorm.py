"""LogitNorm: its loss by hand, and its training."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from trained_cases import QUIET, as_input, clean

from sgoif.errors import SettingError
from sgoif_bench.ood.trained import logitnorm

# LogitNorm


def test_logitnorm_loss_by_hand() -> None:
    logits = torch.tensor([[3.0, 4.0], [-0.6, 0.8]])
    # Both rows have the directions (±0.6, 0.8); with τ = 0.5 they become (±1.2, 1.6).
    losses = [math.log(1 + math.exp(0.4)), math.log(1 + math.exp(-2.8))]
    labels = torch.tensor([0, 1])
    assert float(logitnorm.logitnorm_loss(logits, labels, 0.5)) == pytest.approx(sum(losses) / 2, rel=1e-5)
    longer = logitnorm.logitnorm_loss(100 * logits, labels, 0.5)
    assert float(longer) == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_logitnorm_trains_with_its_loss_and_scores_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = clean(size=120, epochs=2)
    images = as_input(problem, problem.images[:9])
    usual = logitnorm.logitnorm(problem, None, QUIET)
    assert usual.classifier is not None
    logits = usual.classifier(images).detach()
    certainty = 1 - usual.score(images).exp()
    assert torch.allclose(certainty, logits.softmax(dim=1).amax(dim=1), atol=1e-5)
    plain = problem.fit(problem.new_model(), problem.batches()).eval()
    monkeypatch.setattr(
        logitnorm, "logitnorm_loss", lambda logits, labels, temperature: F.cross_entropy(logits, labels)
    )
    replaced = logitnorm.logitnorm(problem, None, QUIET).classifier
    assert replaced is not None
    assert torch.equal(replaced(images), plain(images))
    assert not torch.allclose(logits, plain(images), rtol=1e-2)
    with pytest.raises(SettingError, match="temperature = 0"):
        logitnorm.logitnorm(problem, None, QUIET, temperature=0)
