"""Scores by label: the influence of an example, split over the rows of the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import func_gradients, make_monitor
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.core.data import Indexed, split_holdout
from sgoif.distributed.communicator import Communicator
from sgoif.errors import SettingError
from sgoif.scoring.label_scores import LabelScores

BATCH, ANCHORS, LABELS = 6, 9, 4


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return x, (torch.randn(count, LABELS, generator=generator) > 0.3).float()


def net(labels: int = LABELS) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, labels))


def bce(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="sum")


def by_label(monitor: InfluenceMonitor, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """−Σ_g (ψ_gᵀ g_i) over the weights of each row of the head, [B, L], from per-example gradients."""
    found = func_gradients(model, x, y, bce)
    head = torch.cat([found["2.weight"], found["2.bias"].unsqueeze(2)], 2)  # [B, L, 7]
    psi = monitor.directions.psi[:, monitor.layout.offsets[-2] :].sum(0).double().view(LABELS, -1)
    return -(head * psi).sum(2)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_the_score_of_every_label(layers: str) -> None:
    torch.manual_seed(0)
    model = net()
    monitor = make_monitor(
        model, data(ANCHORS, 0), layers=layers, loss=nn.BCEWithLogitsLoss(), temperature=None, weigh_steps=False,
        help_weight=1.0,
    )  # fmt: skip
    x, y = data(BATCH, 1)
    with monitor.step(torch.arange(BATCH), target=y):
        (64 * F.binary_cross_entropy_with_logits(model(x), y)).backward()
    expected = by_label(monitor, model, x, y).numpy()
    z = model(x).detach()
    for label in range(LABELS):
        table = monitor.scores(label=label)
        np.testing.assert_allclose(table["influence"], expected[:, label], rtol=1e-3, atol=1e-6)
        loss = F.binary_cross_entropy_with_logits(z[:, label], y[:, label], reduction="none")
        np.testing.assert_allclose(table["loss"], loss, rtol=1e-4)
        sign = 2 * y[:, label] - 1
        np.testing.assert_allclose(table["logit_margin"], sign * z[:, label], rtol=1e-4, atol=1e-6)
        record = monitor.record(label)
        assert torch.equal(record.label[:BATCH].long(), y[:, label].long())
        torch.testing.assert_close(record.classes.mean[:BATCH, 1].float(), z[:, label].sigmoid(), rtol=1e-3, atol=1e-3)
    assert (monitor.scores()["n_observations"] == 1).all()
    head = monitor.last.groups.sum(1).double().numpy()
    np.testing.assert_allclose(expected.sum(1), head, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_steps_together_are_steps_apart_each_with_a_row_per_label(temperature: float | None) -> None:
    cpu, communicator = torch.device("cpu"), Communicator()
    together, apart = (LabelScores(LABELS, 2, cpu, None, temperature, communicator) for _ in range(2))
    assert together.scaling.temperature == temperature
    assert together.scaling._communicator is communicator
    assert together.ledger.duplicates is False
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, LABELS, 2, generator=generator)
    scores[3:] *= 10.0  # of the second step
    z, y, support = torch.randn(5, LABELS, generator=generator), data(5, 3)[1], torch.tensor([0.5, 1.0])
    for kept in (together, apart):
        kept.reserve(4)
        assert kept.ledger.used == 5 * LABELS
    together.remember(torch.arange(5), scores, z, y, support, 0.5, 1.0, [3, 2])
    for rows, size in ((slice(0, 3), 3), (slice(3, 5), 2)):
        apart.remember(torch.arange(5)[rows], scores[rows], z[rows], y[rows], support, 0.5, 1.0, [size])
    torch.testing.assert_close(together.ledger.sums, apart.ledger.sums)
    torch.testing.assert_close(together.scaling.mean, apart.scaling.mean)
    assert together.scaling.updates == apart.scaling.updates == 2
    assert together.ledger.column("weight").tolist() == [0.5] * 5 * LABELS
    for label in range(LABELS):
        mean = together.of(label).mean("score")[:5]
        torch.testing.assert_close(mean, together.ledger.mean("score").view(5, LABELS)[:, label])
        if temperature is None:
            torch.testing.assert_close(mean, scores[:, label].sum(1))


def test_a_known_number_of_examples_has_as_many_rows_per_label() -> None:
    kept = LabelScores(LABELS, 2, torch.device("meta"), 6, 1.0, duplicates=True)
    assert kept.ledger.fixed_size == kept.ledger.used == 6 * LABELS
    assert kept.ledger.duplicates is True
    assert kept.ledger.sums.device.type == kept.scaling.mean.device.type == "meta"
    kept.reserve(5)


def test_held_out_examples_leave_their_own_part_out() -> None:
    """Of anchors the mean of the others; of those that were never one, all anchors."""
    torch.manual_seed(0)
    model, (x, y) = net(), data(30, 0)
    monitor = make_monitor(
        model, (x, y), loss=nn.BCEWithLogitsLoss(), temperature=None, weigh_steps=False, help_weight=1.0, max_anchors=12
    )
    with monitor.step(torch.arange(BATCH), target=data(BATCH, 1)[1]):
        F.binary_cross_entropy_with_logits(model(data(BATCH, 1)[0]), data(BATCH, 1)[1]).backward()
    bank = monitor.anchors
    members = bank.positions()
    g = func_gradients(model, x, y, bce)
    head = torch.cat([g["2.weight"], g["2.bias"].unsqueeze(2)], 2)
    phi = bank.phi.double().view(len(bank), LABELS, -1)
    for label in range(LABELS):
        found = monitor.anchor_scores(label=label)["influence"]
        for position in range(30):
            others = [row for row, member in enumerate(members.tolist()) if member != position]
            expected = -float((head[position, label] * phi[others, label].mean(0)).sum())
            assert found[position] == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_tables_by_label_know_the_hold_out() -> None:
    x, y = data(40, 0)
    train, held = split_holdout(torch.utils.data.TensorDataset(x, y), share=0.25)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, held, loss=nn.BCEWithLogitsLoss(), size=40)
    for rows, targets, index in torch.utils.data.DataLoader(Indexed(train), batch_size=10):
        with monitor.step(index, target=targets):
            F.binary_cross_entropy_with_logits(model(rows), targets).backward()
    table = monitor.scores(label=2)
    assert table["index"].tolist() == list(range(40))
    assert np.isfinite(table["influence"]).all()
    assert monitor.scores(anchors=False, label=2)["index"].tolist() == sorted(train.indices)


def test_labels_that_have_no_scores_of_their_own() -> None:
    x, y = data(40, 0)
    model = net()
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss=nn.BCEWithLogitsLoss())
    with pytest.raises(SettingError, match=r"label=4 is not valid: expected a number from 0 to 3"):
        monitor.scores(label=4)
    plain = nn.Linear(5, 3)
    monitor = InfluenceMonitor(plain, torch.optim.SGD(plain.parameters(), lr=0.1), (x, torch.arange(40) % 3))
    with pytest.raises(SettingError, match=r"scores of one label, and there are none.*BCEWithLogitsLoss"):
        monitor.scores(label=0)
    wide = net(70)
    many = (torch.rand(40, 70) > 0.5).float()
    monitor = InfluenceMonitor(wide, torch.optim.SGD(wide.parameters(), lr=0.1), (x, many), loss=nn.BCEWithLogitsLoss())
    with pytest.raises(SettingError, match="several labels, up to 64"):
        monitor.anchor_scores(label=0)
