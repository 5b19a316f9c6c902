"""Several processes have the scores of a single one where targets are no class numbers, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_cases import ANCHORS, CLASSES, EXAMPLES, batches, columns, data, network, on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sgoif import InfluenceMonitor
from sgoif.errors import RankError, StepError

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
KINDS = ("values", "labels", "mixtures")


def targets(kind: str, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "values":
        return torch.randn(count, CLASSES, generator=generator)
    return (torch.rand(count, CLASSES, generator=generator) < 0.4).float()


def fit(rank: int, size: int, kind: str, mix: bool = False) -> dict[str, Any]:
    """A training by one rank of several, or alone; `mix`: without saying so."""
    x, y = data()
    held_x, held_y = data(ANCHORS, seed=1)
    loss: Any = {"values": nn.MSELoss(), "labels": nn.BCEWithLogitsLoss(), "mixtures": None}[kind]
    if loss is not None:
        y, held_y = targets(kind, EXAMPLES, 2), targets(kind, ANCHORS, 3)
    plain = network()
    model = DistributedDataParallel(plain) if size > 1 else plain
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, (held_x, held_y), loss=loss, curvature_every=3, refresh_every=7)
    for _, index in batches(rank, size, 3):
        other = y[(index + 5) % EXAMPLES]
        given: Any = y[index]
        if loss is None:
            given = None if mix else (y[index], other, 0.7)
        with monitor.step(index, target=given):
            z = model(x[index])
            if loss is not None:
                loss(z, y[index]).backward()
            else:
                (0.7 * F.cross_entropy(z, y[index]) + 0.3 * F.cross_entropy(z, other)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = {"table": columns(monitor), "anchors": np.asarray(monitor.anchor_scores()["influence"])}
    if kind == "labels":
        found["label"] = np.asarray(monitor.scores(label=1)["influence"])
    return found


def mixing(rank: int, size: int) -> str:
    try:
        fit(rank, size, "mixtures", True)
    except (StepError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def everything(rank: int, size: int) -> dict[str, Any]:
    """What the tests ask of two ranks, which are started once."""
    return {**{kind: fit(rank, size, kind) for kind in KINDS}, "mixing": mixing(rank, size)}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_score_like_one(kind: str, ranks: list[dict[str, Any]]) -> None:
    expected = fit(0, 1, kind)
    for rank in ranks:
        found = rank[kind]
        for name, column in expected["table"].items():
            np.testing.assert_allclose(found["table"][name], column, rtol=1e-3, atol=1e-3, err_msg=name)
        np.testing.assert_allclose(found["anchors"], expected["anchors"], rtol=1e-3, atol=1e-3)
        if kind == "labels":
            np.testing.assert_allclose(found["label"], expected["label"], rtol=1e-3, atol=1e-3)


def test_mixed_labels_are_named_by_all_ranks(ranks: list[dict[str, Any]]) -> None:
    assert all("mixup" in rank["mixing"] for rank in ranks)
