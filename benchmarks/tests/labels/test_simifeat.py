"""SimiFeat on the features of a training: rounds of votes on changed images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import striped
from torch import Tensor, nn

from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals import simifeat


def test_votes_of_the_rounds_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=6, classes=2, rate=0.0, anchors=2)
    problem.labels = np.array([0, 0, 0, 1, 1, 0])
    angles = torch.tensor([0.0, 5.0, 10.0, 80.0, 85.0, 90.0]).deg2rad()
    monkeypatch.setattr(simifeat, "changed_features", lambda *_: torch.stack([angles.cos(), angles.sin()], dim=1))
    monkeypatch.setattr(simifeat, "NEIGHBOURS", 2)
    found = simifeat.simifeat_of(problem, nn.Linear(1, 1), lambda line: None)
    vote = found["simifeat-vote"]
    assert vote.flagged is not None
    assert vote.flagged.tolist() == [False] * 5 + [True]
    # The last: its own vote 2 cos 5° − cos 10°, against cos 5° + cos 10° of its two neighbours.
    near, far = np.cos(np.deg2rad([5.0, 10.0]))
    own, others = 2 * near - far, near + far
    assert vote.suspicion[5] == pytest.approx(1 + others / (own + others) / 22)
    assert vote.suspicion[:3] == pytest.approx(0, abs=1e-6)
    assert found["simifeat-rank"].suspicion[5] == pytest.approx(-np.log(own / np.hypot(own, others)), rel=1e-5)


def test_features_are_of_images_changed_as_in_training() -> None:
    problem, _ = striped(size=30, anchors=4)
    model = problem.new_model()

    def features(of: Problem) -> Tensor:
        return simifeat.changed_features(of, model, torch.Generator().manual_seed(0))

    plain = problem.features(model)
    assert not torch.allclose(features(problem), plain)
    object.__setattr__(problem.recipe, "augment", False)
    assert torch.equal(features(problem), plain)
