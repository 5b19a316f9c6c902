"""Steps that do not all leave the same behind: targets given now and then, layers left out of a forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.core.score_table import ScoreTable
from sgoif.execution import deferred

TRAINING, CLASSES = 120, 4


class Shortened(nn.Module):
    """Layers that are left out of half of the steps, the first ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.head = nn.Linear(12, CLASSES)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.steps % 4 > 0:
            x = x + F.relu(self.first(x))
        if not self.training or self.steps % 4 > 1:
            x = x + F.relu(self.second(x))
        logits: Tensor = self.head(x)
        self.steps += self.training
        return logits


def train(model: nn.Module, given: int = 0, late: bool = False, **options: object) -> ScoreTable:
    """Scores of a training in which every `given`-th step is told its target."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(TRAINING + 40) % CLASSES
    inputs = torch.randn(CLASSES, 12, generator=generator)[labels]
    inputs = inputs + 0.7 * torch.randn(len(labels), 12, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held_out = (inputs[TRAINING:], labels[TRAINING:])
    execution = "deferred" if late else "eager"
    monitor = InfluenceMonitor(
        model, optimizer, held_out, size=TRAINING, refresh_every=1000, execution=execution, **options
    )
    rows = torch.Generator().manual_seed(7)
    for epoch in range(3):
        for number, index in enumerate(torch.randperm(TRAINING, generator=rows).split(8)):
            target = labels[index] if given and (number + epoch) % given == 1 else None
            with monitor.step(index, target=target):
                F.cross_entropy(model(inputs[index]), labels[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor.scores()


@pytest.fixture(params=[False, True], ids=["prompt", "late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(deferred, "PROMPT_STEPS", 3)
    return bool(request.param)


def test_targets_may_be_given_now_and_then(late: bool) -> None:
    tables = []
    for given in (0, 3):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, CLASSES))
        tables.append(train(model, given, late))
    for name in tables[0].columns:
        np.testing.assert_array_equal(tables[0][name], tables[1][name], err_msg=name)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_layer_may_be_left_out_of_steps(late: bool, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []
    for steps in (64, 1):  # scored together, or one by one
        monkeypatch.setattr("sgoif.scoring.score_queue.BLOCK_STEPS", steps)
        torch.manual_seed(0)
        tables.append(train(Shortened(), late=late, layers=["first", "second", "head"], body_share=share))
    together, alone = tables
    assert together["n_observations"].tolist() == [3] * TRAINING
    np.testing.assert_allclose(together["influence"], alone["influence"], rtol=1e-4, atol=1e-5)
