"""Stand-ins for the detectors of `sgoif-bench ood`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.tasks.ood.network import Seen
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.grid import KIND
from sgoif_bench.ood.registry import Method
from sgoif_bench.ood.run import main
from sgoif_bench.ood.trained.method import Scorer

SMALL = ("--sets", "mnist", "--protocol", "house", "--model", "small-cnn", "--epochs", "2", "--batch-size", "40")
CALLS: list[str] = []
OUTLIERS: list[Tensor | None] = []
STAND_IN = "ood_stand_ins"


class Brightness(Detector):
    """Bright images are out of distribution. Draws once, so that its seed can be seen."""

    name, title, paper = "brightness", "Brightness", "a paper"

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, bank: Bank) -> Brightness:
        CALLS.append(f"brightness {self.seed} {len(bank)}")
        self.drawn = float(torch.rand(()))
        return self

    def score(self, seen: Seen) -> Tensor:
        return seen.images.flatten(1).mean(dim=1) + 1e-6 * self.drawn


class Lazy(Detector):
    """Draws while it is fitted, and needs no data."""

    name, title, paper = "lazy", "Lazy", "a paper"

    def fit(self, bank: Bank) -> Lazy:
        CALLS.append("lazy")
        torch.rand(17)
        return self

    def score(self, seen: Seen) -> Tensor:
        return torch.zeros(len(seen))


class Broken(Detector):
    """Cannot score noise."""

    name, title, paper = "broken", "Broken", "a paper"

    def score(self, seen: Seen) -> Tensor:
        scores = -seen.logits.max(dim=1).values
        return scores * float("nan") if seen.images.mean() > 1 else scores


def darkness(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
    """Trains nothing and classifies nothing."""
    CALLS.append(f"darkness {problem.seed}")
    OUTLIERS.append(outliers)
    return Scorer(lambda x: -x.flatten(1).mean(dim=1), trainings=2.5, details={"note": 1})


def guessing(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
    """Always answers the first class."""
    CALLS.append(f"guessing {problem.seed}")
    model = nn.Sequential(nn.Flatten(), nn.Linear(problem.images[0].numel(), problem.classes))
    nn.init.zeros_(model[1].weight)
    return Scorer(lambda x: x.flatten(1).std(dim=1), classifier=model)


STAND_INS = [
    Method("brightness", f"{STAND_IN}:Brightness", "Brightness", "a paper"),
    Method("lazy", f"{STAND_IN}:Lazy", "Lazy", "a paper"),
    Method("broken", f"{STAND_IN}:Broken", "Broken", "a paper"),
    Method("darkness", f"{STAND_IN}:darkness", "Darkness", "a paper", trains=True, needs_outliers=True),
    Method("guessing", f"{STAND_IN}:guessing", "Guessing", "a paper", trains=True),
]


def bench(*arguments: str, methods: str = "brightness,guessing", data: str = "data") -> int:
    """The command with few epochs; what is given again counts."""
    given = ["--data", data, "--methods", methods, "--out", "r.jsonl", *SMALL, *arguments]
    return main(given, program="sgoif-bench ood")


def calls() -> list[str]:
    """What was run since this was last asked."""
    found = list(CALLS)
    CALLS.clear()
    return found


def results() -> dict[str, Any]:
    return {f"{line['method']}-{line['seed']}": line for line in KIND.read([Path("r.jsonl")])}
