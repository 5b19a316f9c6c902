"""One run: the same training without and with the monitor, compared to the last bit, and what the monitor found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from sgoif.core.provenance import plain
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.loops.digits import noisy_digits
from sgoif_bench.loops.grid import Job
from sgoif_bench.loops.measures import efforts, found, identical
from sgoif_bench.loops.registry import train_function
from sgoif_bench.loops.study import Study


@dataclass
class Runner(OneDevice[Job]):
    """Does runs, one after the other."""

    command: str
    tell: Say = say
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a noise does not fit."""
        for noise in {job.noise: None for job in jobs}:
            noisy_digits(noise, seed=0)

    def forget(self) -> None:
        """Nothing is kept between runs."""

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        digits, train = noisy_digits(job.noise, job.seed, job.limit), train_function(job.loop)
        study = Study(digits.dataset(), job.seed, job.epochs)
        start = time.perf_counter()
        without = train(replace(study, monitored=False))
        between = time.perf_counter()
        trained = train(study)
        end = time.perf_counter()
        line = {
            **self.origin(job, job.loop),
            "examples": len(digits.given),
            "wrong": int(digits.is_wrong.sum()),
            "identical": identical(trained.model, without.model),
            "metrics": found(trained, digits),
            "efforts": efforts(trained.monitor),
            "seconds": end - between,
            "seconds_without": between - start,
        }
        return [plain(line)], {}
