"""Two processes that train together have one curriculum: the weights of a single process, and no waiting for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_cases import EXAMPLES, data, network, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor, split_holdout
from sgoif.errors import IndexingError, RankError
from sgoif.tasks import Curriculum

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
BATCH, EPOCHS = 24, 6


def trained(model: nn.Module, rank: int, size: int) -> tuple[Curriculum, Any]:
    """A few epochs with weights; each rank takes its part of every batch."""
    x, y = data()
    training, held_out = split_holdout(TensorDataset(x, y), share=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, anchors=held_out, size=EXAMPLES, curvature_every=3)
    curriculum = Curriculum(monitor, warm_up=2, speed=0.5)
    rows = torch.tensor(training.indices)
    for epoch in range(EPOCHS):
        order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))]
        for whole in order.split(BATCH):
            index = whole.chunk(size)[rank]
            weights = monitor.weights(index)
            with monitor.step(index, weights=weights):
                (F.cross_entropy(model(x[index]), y[index], reduction="none") * weights).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return curriculum, training


def looked_at(curriculum: Curriculum) -> dict[str, Any]:
    report = curriculum.report()
    return {
        "values": curriculum.values(EXAMPLES),
        "judgements": report.judgements,
        "examples": report.examples,
        "shares": [row.after for row in report.classes],
        "doubt": None if curriculum.doubt is None else curriculum.doubt.numpy(),
    }


def together(rank: int, size: int) -> dict[str, Any]:
    curriculum, training = trained(DistributedDataParallel(network()), rank, size)
    found = {"watched": looked_at(curriculum)}
    try:
        curriculum.weights([10**6] if rank == 1 else [training.indices[0]])
    except (IndexingError, RankError) as error:
        found["mistake"] = type(error).__name__
    curriculum.finish()
    found["finished"] = looked_at(curriculum)
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, together)  # type: ignore[no-any-return]


@pytest.mark.parametrize("moment", ["watched", "finished"])
def test_weights_of_two_ranks_are_those_of_a_single_process(ranks: list[dict[str, Any]], moment: str) -> None:
    single, _ = trained(network(), 0, 1)
    if moment == "finished":
        single.finish()
    expected, mine, theirs = looked_at(single), ranks[0][moment], ranks[1][moment]
    assert np.array_equal(mine["values"], theirs["values"])
    assert mine["values"].std() > 0.1
    if moment == "finished":
        assert np.array_equal(mine["doubt"], theirs["doubt"])
        np.testing.assert_allclose(mine["doubt"], expected["doubt"], atol=0.05)
    np.testing.assert_allclose(mine["values"], expected["values"], atol=0.02)
    for found in (mine, theirs):  # both report about all examples, not about their own
        assert found["examples"] == expected["examples"] == (EXAMPLES if moment == "finished" else 0.75 * EXAMPLES)
        assert found["judgements"] == expected["judgements"]
        np.testing.assert_allclose(found["shares"], expected["shares"], atol=0.01)


def test_a_mistake_on_one_rank_is_told_to_both(ranks: list[dict[str, Any]]) -> None:
    assert [found["mistake"] for found in ranks] == ["RankError", "IndexingError"]
