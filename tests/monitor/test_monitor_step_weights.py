"""Losses that are weighed example by example: scores, margins and curvature are those of the plain losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import assert_scores, func_gradients, make_inputs, make_labels, make_monitor, make_probe, train_step
from torch import Tensor

from sgoif import InfluenceMonitor
from sgoif.errors import StepError
from sgoif.scoring.influence import StepScores
from sgoif.scoring.step_batch import Observation

BATCH, ANCHORS, KIND = 6, 9, "conv_groups"
WEIGHTS = torch.tensor([0.05, 1.0, 2.5, 0.3, 0.7, 1.45])


def prepared(layers: list[str], **options: Any) -> InfluenceMonitor:
    torch.manual_seed(0)
    model = make_probe(KIND)
    monitor = make_monitor(
        model, (make_inputs(KIND, ANCHORS, 1), make_labels(ANCHORS, 1)), layers=layers, body_share=1.0, **options
    )
    train_step(monitor, model, make_inputs(KIND, BATCH, 2), make_labels(BATCH, 2), update=True)
    return monitor


def weighed_step(monitor: InfluenceMonitor, x: Tensor, y: Tensor, weights: Tensor, told: Any = "the same") -> None:
    with monitor.step(range(len(x)), weights=weights if isinstance(told, str) else told):
        (F.cross_entropy(monitor.model(x), y, reduction="none") * weights).mean().backward()
    monitor.optimizer.zero_grad()


@pytest.mark.parametrize("layers", [["head"], ["layer", "head"]], ids=["head", "below_head"])
def test_scores_are_those_of_the_plain_losses(layers: list[str]) -> None:
    monitor = prepared(layers)
    x, y = make_inputs(KIND, BATCH, 3), make_labels(BATCH, 3)
    weighed_step(monitor, x, y, WEIGHTS)
    assert_scores(monitor, func_gradients(monitor.model, x, y))
    assert monitor.last is not None
    assert monitor.last.label.tolist() == y.tolist()


def test_untold_weights_would_show() -> None:
    monitor = prepared(["head"])
    x, y = make_inputs(KIND, BATCH, 3), make_labels(BATCH, 3)
    weighed_step(monitor, x, y, WEIGHTS, told=None)
    with pytest.raises(AssertionError):
        assert_scores(monitor, func_gradients(monitor.model, x, y))


@pytest.mark.parametrize("layers", [["head"], ["layer", "head"]], ids=["head", "below_head"])
def test_curvature_learns_from_plain_losses(layers: list[str]) -> None:
    x, y = make_inputs(KIND, BATCH, 3), make_labels(BATCH, 3)
    plain, weighed = (prepared(layers, curvature_every=1) for _ in range(2))
    weighed_step(plain, x, y, torch.ones(BATCH), told=None)
    weighed_step(weighed, x, y, WEIGHTS)
    vector = torch.randn(1, plain.layout.size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(weighed.curvature.matvec(vector), plain.curvature.matvec(vector), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(BATCH - 1), "one number per example"),
        (torch.ones(BATCH, dtype=torch.long), "one number per example"),
        (torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0]), "Leave it out of the batch"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0]), "positive"),
        (torch.tensor([1.0, float("nan"), 1.0, 1.0, 1.0, 1.0]), "finite"),
    ],
)
def test_mistakes_are_named_and_the_loop_goes_on(weights: Tensor, message: str) -> None:
    monitor = prepared(["head"])
    x, y = make_inputs(KIND, BATCH, 3), make_labels(BATCH, 3)
    with pytest.raises(StepError, match=message):
        weighed_step(monitor, x, y, torch.ones(BATCH), told=weights)
    weighed_step(monitor, x, y, WEIGHTS)
    assert_scores(monitor, func_gradients(monitor.model, x, y))


def test_observers_see_every_scored_step_once() -> None:
    monitor = prepared(["head"])
    monitor.flush()
    seen: list[tuple[list[int], Tensor, Tensor]] = []

    def observe(steps: Observation, scores: StepScores) -> None:
        seen.append((steps.indices.tolist(), steps.inputs.clone(), scores.influence.clone()))

    monitor.observers.append(observe)
    batches = [(make_inputs(KIND, BATCH, n), make_labels(BATCH, n)) for n in (3, 4)]
    for x, y in batches:
        weighed_step(monitor, x, y, WEIGHTS)
    monitor.flush()
    monitor.flush()
    assert [index for indices, _, _ in seen for index in indices] == [*range(BATCH), *range(BATCH)]
    assert monitor.last is not None
    assert torch.equal(seen[-1][2][-BATCH:], monitor.last.influence)
