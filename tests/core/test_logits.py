"""Two classes told apart by one logit and a sigmoid score like two logits and a softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor

CLASSES = 2


class Single(nn.Module):
    def __init__(self, squeeze: bool) -> None:
        super().__init__()
        self.body, self.head, self.squeeze = nn.Linear(6, 5), nn.Linear(5, 1), squeeze

    def forward(self, x: Tensor) -> Tensor:
        logit = self.head(torch.tanh(self.body(x)))
        return logit.squeeze(1) if self.squeeze else logit


def data(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, (x[:, 0] + 0.3 * torch.randn(count, generator=generator) > 0).long()


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["labels read off", "target given"])
def test_scores_are_dot_products_with_single_example_gradients(squeeze: bool, given: bool) -> None:
    torch.manual_seed(0)
    model = Single(squeeze)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=data(1, 30), loss=nn.BCEWithLogitsLoss(), refresh_every=10**6)
    x, y = data(2, 12)
    with monitor.step(range(12), target=y if given else None):
        logit = model(x)
        nn.functional.binary_cross_entropy_with_logits(logit, y.float().reshape(logit.shape)).backward()

    def loss(weight: Tensor, bias: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
        z = nn.functional.linear(torch.tanh(model.body(xi)), weight, bias)[0]
        return nn.functional.binary_cross_entropy_with_logits(z, yi.float())

    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, None, 0, 0))
    weight, bias = each(model.head.weight.detach(), model.head.bias.detach(), x, y)
    gradient = torch.cat([weight, bias.unsqueeze(-1)], dim=-1).flatten(1)
    assert monitor.last is not None
    assert monitor.directions.psi is not None
    torch.testing.assert_close(
        monitor.last.groups, -(gradient @ monitor.directions.psi.T).detach(), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(monitor.last.label, y)


def test_wrong_labels_come_out_on_top() -> None:
    torch.manual_seed(0)
    model = Single(squeeze=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = data(3, 400)
    wrong = np.random.default_rng(0).random(400) < 0.15
    noisy = torch.where(torch.from_numpy(wrong), 1 - y, y)
    monitor = InfluenceMonitor(model, optimizer, anchors=data(4, 100))
    for _ in range(15):
        for part in torch.randperm(400).split(50):
            with monitor.step(part):
                logit = model(x[part]).squeeze(1)
                nn.functional.binary_cross_entropy_with_logits(logit, noisy[part].float()).backward()
            optimizer.step()
            optimizer.zero_grad()
    table = monitor.scores()
    worst = table.worst(40)["index"]
    assert wrong[worst].mean() > 0.8
    assert monitor.error_budget().total > 0
