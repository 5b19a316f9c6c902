"""What a method is given, and what it must return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif_bench.fidelity.study import Floats, Study, Tell
from sgoif_bench.labels.problem import Labels, Rows
from sgoif_bench.memory import Peak

State = dict[str, Tensor]


@dataclass
class Checkpoint:
    """The network after an epoch."""

    epoch: int
    learning_rate: float
    state: State


@dataclass(frozen=True)
class Relabelled:
    """Training examples about which methods are asked: what if they had these labels instead?"""

    rows: Rows
    labels: Labels

    def __len__(self) -> int:
        return len(self.rows)

    def tensors(self, study: Study) -> tuple[Tensor, Tensor]:
        """Normalised images and new labels, on the device."""
        x, y = study.train_tensors(self.rows)
        return x, torch.from_numpy(self.labels).to(y.device)


@dataclass
class Trained:
    """The one training run that methods look at after it has ended."""

    study: Study
    model: nn.Module
    checkpoints: list[Checkpoint]
    seconds: float
    """What the run itself took."""
    tell: Tell = lambda message: None
    relabelled: Relabelled | None = None
    """Other labels that are asked about; None: no such question."""


@dataclass(frozen=True)
class Answer:
    """What a method says, and what it cost beside the one training run."""

    scores: Floats
    """s(q, i), [Q, N]: how much example i raises the margin of query q, up to a factor."""
    seconds: float
    """Time on top of the one training run, trainings of further networks included."""
    memory: dict[str, Any]
    trainings: float = 0.0
    """Further trainings, in units of one."""
    confidence: NDArray[np.float64] | None = None
    """The method's own estimate, per query, of how far its scores can be trusted; None where it states none."""
    error: NDArray[np.float64] | None = None
    """Its estimate, per query, of how far predicted changes of the margin are off, up to a factor; None where it has
    none."""
    relabelled: Floats | None = None
    """How much the margin of query q changes where example j of `Trained.relabelled` gets its new label, [Q, J], at the
    scale of the scores: with s(q; x, y) the score of an image with a label, s(q; x, new) − s(q; x, given). None for a
    method that has no way to be asked about a label which is not there."""
    details: dict[str, Any] = field(default_factory=dict)


Method = Callable[[Trained], Answer]


def clock(device: torch.device) -> float:
    """Seconds: of the processor on a CPU, so that neighbours on the machine do not count; by the wall elsewhere."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


class Cost:
    """Time and memory of what runs inside `counted`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self.memory: dict[str, Any] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens inside."""
        peak, start = Peak(self.device), clock(self.device)
        yield
        self.seconds += clock(self.device) - start
        self.memory = peak.read()
