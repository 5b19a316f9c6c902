"""What a hold-out may look like, and what cannot be one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bank_cases import Reads, monitored, problem, train
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sgoif import InfluenceMonitor, indexed
from sgoif.anchors.bank import as_dataset
from sgoif.errors import AnchorError


class Words(nn.Module):
    """A model called by keywords, as text models are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict:
        embedded = self.table(tokens) * mask.unsqueeze(-1)
        return {"logits": self.head(embedded.mean(1))}


def test_data_set_loader_and_tensors_are_the_same_hold_out() -> None:
    inputs, labels = problem(80)
    tables = []
    for kind in (
        (inputs[50:], labels[50:]),
        TensorDataset(inputs[50:], labels[50:]),
        DataLoader(TensorDataset(inputs[50:], labels[50:]), batch_size=7, shuffle=True),
        [(x, int(y)) for x, y in zip(inputs[50:], labels[50:], strict=True)],
        indexed(TensorDataset(inputs[50:], labels[50:])),
        [(x.numpy(), y.numpy()) for x, y in zip(inputs[50:], labels[50:], strict=True)],
    ):
        torch.manual_seed(5)
        monitor = monitored(kind)
        train(monitor, inputs, labels, torch.arange(50), steps=5)
        tables.append(monitor.scores()["influence"])
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])


def test_a_loader_or_a_numbered_data_set_stands_for_what_it_draws_from() -> None:
    data = TensorDataset(torch.randn(6, 2), torch.arange(6) % 2)
    assert as_dataset(data) is as_dataset(DataLoader(data, batch_size=4)) is as_dataset(indexed(data)) is data
    assert as_dataset(DataLoader(indexed(data), batch_size=4)) is data


def test_items_may_be_dicts() -> None:
    generator = torch.Generator().manual_seed(0)
    items = [
        {"tokens": torch.randint(0, 20, (4,), generator=generator), "mask": torch.ones(4), "label": i % 3, "index": i}
        for i in range(30)
    ]
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=items[20:], layers="all", max_anchors=6)
    for batch in DataLoader(indexed(items[:20]), batch_size=5):
        with monitor.step(batch["index"]):
            logits = model(tokens=batch["tokens"], mask=batch["mask"])["logits"]
            nn.functional.cross_entropy(logits, batch["label"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.isfinite(monitor.scores()["influence"]).all()
    assert np.isfinite(monitor.anchor_scores()["influence"]).all()
    assert len(monitor.anchor_scores()) == 10


@pytest.mark.parametrize("kind", ["tensor", "numpy"])
def test_a_hold_out_that_does_not_fit_the_cache_is_read_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = problem(90)
    influences = []
    for room in (2**20, 100):
        monkeypatch.setattr("sgoif.anchors.bank.CACHE_BYTES", room)
        data = Reads(inputs[50:] if kind == "tensor" else inputs[50:].numpy(), labels[50:])
        torch.manual_seed(5)
        monitor = monitored(data, refresh_every=2, replace_every=0)
        train(monitor, inputs, labels, torch.arange(50), steps=6)
        influences.append(monitor.scores()["influence"])
        assert (max(data.reads.values()) > 3) == (room == 100), "read once when it fits, at every refresh when not"
    np.testing.assert_array_equal(*influences)


def test_inputs_that_cannot_be_anchors_are_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

        def __len__(self) -> int:
            return 3

    class Endless:
        def __getitem__(self, position: int):
            return torch.zeros(2), 0

    for anchors in (None, 5, Stream(), {"x": 1}, {1, 2}, "file.pt", iter([1]), Endless()):
        with pytest.raises(AnchorError, match="split_holdout"):
            as_dataset(anchors)
    for anchors in ([], (torch.zeros(0, 2), torch.zeros(0)), TensorDataset(torch.zeros(0, 2))):
        with pytest.raises(AnchorError, match="empty"):
            as_dataset(anchors)
    with pytest.raises(AnchorError, match="3 anchor inputs but 2 labels"):
        as_dataset((torch.zeros(3, 2), torch.zeros(2)))
