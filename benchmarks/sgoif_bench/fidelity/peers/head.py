"""Any of these methods on the last layer alone, as a monitor watches it.

The network is then one linear layer, and what goes into it takes the place of the images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.fidelity.answer import Answer, Cost, Method, Trained
from sgoif_bench.fidelity.peers.common import ended
from sgoif_bench.fidelity.study import Study
from sgoif_bench.labels.problem import Rows, last_linear

CLOSE = 0.02
"""How far logits may be from a multiple of the layer's outputs, as a share of their length; bfloat16 takes its part."""


class Head(nn.Module):
    """The last layer, and the factor by which the network multiplies its outputs."""

    def __init__(self, layer: nn.Linear, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.factor * self.layer(x)
        return logits


@dataclass
class HeadStudy(Study):
    """A study whose examples and queries are what goes into the last layer of a network."""

    model: nn.Module

    def query_tensors(self) -> tuple[Tensor, Tensor]:
        return self.queries.features(self.model), super().query_tensors()[1]

    def train_tensors(self, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        return self.problem.features(self.model, rows), super().train_tensors(rows)[1]


def on_head(trained: Trained, method: Method) -> Answer:
    """What a method says that sees the last layer alone; the pass that computes its inputs counts."""
    study, model, cost = trained.study, ended(trained), Cost(trained.study.problem.device)
    behind = HeadStudy(study.problem, study.queries, study.wrong, model)
    with cost.counted():
        behind.train_tensors()
    answer = method(replace(trained, study=behind, model=head_of(behind)))
    return replace(answer, seconds=answer.seconds + cost.seconds)


@torch.no_grad()
def head_of(study: HeadStudy) -> Head:
    """The last layer with its factor; an error where the network does anything else with its outputs."""
    layer = last_linear(study.model)
    outputs, logits = layer(study.query_tensors()[0]), study.queries.predict(study.model)
    factor = float((logits * outputs).sum() / outputs.square().sum())
    if (logits - factor * outputs).norm() > CLOSE * logits.norm():
        raise SettingError(f"{type(study.model).__name__} does more with its last layer's outputs than to scale them")
    return Head(layer, factor)
