"""SG-OIF in the comparison: one monitor on the shared training, read out in two ways.

    sgoif-known      traced from victims that were noticed once the network was trained
    sgoif-unknown    nothing known

The monitor's anchors are held out of the same data, poison among them included; nobody has looked at them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.tasks import PoisonTrace, PoisonWatch
from sgoif_bench.batches import LabelledImages
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.watching import watch
from sgoif_bench.poisoning.case import Case, Finding

KNOWN, UNKNOWN = "sgoif-known", "sgoif-unknown"


class Ours:
    """Watches a training and says afterwards what is poison."""

    def __init__(
        self,
        problem: Problem,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        held_out: LabelledImages,
    ) -> None:
        self.problem = problem
        self.monitor = watch(problem, model, optimizer, held_out)
        self.watch = PoisonWatch(self.monitor)

    def watching(self, index: Tensor) -> AbstractContextManager[None]:
        """Around the forward and backward pass of a batch."""
        return self.monitor.step(index)

    def finding(self, name: str, case: Case) -> Finding:
        """What one of ours says of the trained network."""
        trace = PoisonTrace.fit(case.model, self.problem.plain_batches(), watch=self.watch)
        if name == UNKNOWN:
            return found(trace.suspects())
        return found(trace.culprits(*case.known().prepared(self.problem)))

    def close(self) -> None:
        """Remove the hooks."""
        self.monitor.close()


def found(answer: Any) -> Finding:
    """An answer of the task adaptor as a finding."""
    selected = np.sort(np.asarray(answer.selected, dtype=np.int64))
    probability = np.asarray(answer.probability, dtype=np.float64)
    stated = float(probability[selected].mean()) if len(selected) else None
    groups = [
        {
            "label": item.label,
            "separation": item.mixture.separation,
            "contrast": item.mixture.contrast,
            "share": item.mixture.share,
            "members": item.members,
            "belief": item.belief,
        }
        for item in answer.evidence
    ]
    details = {
        "families": len(answer.families),
        "stated_precision": stated,
        "expected": float(probability.sum()),
        "groups": groups,
    }
    return Finding(np.asarray(answer.score, dtype=np.float64), selected, details)
