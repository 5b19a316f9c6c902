"""A run that stops and resumes has the weights and the model of one that did not stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from curriculum_cases import Blobs, Run, blobs

from sgoif.tasks import Curriculum


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs()


def test_resumed_run_goes_on_equally(noisy: Blobs, tmp_path: Path) -> None:
    def trained_from(first: int, last: int, run: Run, curriculum: Curriculum) -> None:
        run.epochs(first, last, curriculum.weights)

    whole = Run(noisy)
    trained_from(0, 8, whole, Curriculum(whole.monitor, warm_up=2))
    before = Run(noisy)
    trained_from(0, 5, before, Curriculum(before.monitor, warm_up=2))
    before.monitor.save(tmp_path / "monitor.npz")
    before.monitor.pipeline.weighting.save(tmp_path / "curriculum.npz")
    after = Run(noisy)
    after.model.load_state_dict(before.model.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.monitor.load(tmp_path / "monitor.npz")
    resumed = Curriculum(after.monitor, warm_up=2)
    resumed.load(tmp_path / "curriculum.npz")
    trained_from(5, 8, after, resumed)
    assert np.array_equal(resumed.values(), whole.monitor.pipeline.weighting.values())
    for mine, theirs in zip(after.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    without = {"seconds"}
    assert [{k: v for k, v in entry.items() if k not in without} for entry in resumed.history] == [
        {k: v for k, v in entry.items() if k not in without} for entry in whole.monitor.pipeline.weighting.history
    ]
