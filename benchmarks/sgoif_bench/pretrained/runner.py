"""One job: give a family the labels, judge what it says, write down what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sgoif.backbones import Backbone
from sgoif.core.provenance import plain
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.pretrained.grid import Job, measure
from sgoif_bench.pretrained.pictures import Pictures
from sgoif_bench.pretrained.registry import solver
from sgoif_bench.pretrained.sets import noisy, read
from sgoif_bench.pretrained.settings import PretrainedSettings
from sgoif_bench.pretrained.task import Outcome, Task


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: PretrainedSettings
    backbone: Backbone
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._pictures: Pictures | None = None

    def pictures(self, job: Job) -> Pictures:
        """The images of a job; one data set is kept in memory, as jobs come set by set."""
        found = self._pictures
        if found is None or (found.data.name, found.recipe) != (job.set, job.described):
            self.forget()
            start = time.perf_counter()
            data = read(job.set, self.settings.data, job.described.size, job.described.limit, self.tell)
            seconds = time.perf_counter() - start
            scratch = Path(self.settings.scratch)
            found = Pictures(data, self.backbone, job.described, self.device, scratch, seconds, self.tell)
            self._pictures = found
        return found

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is computed that a data set or a noise does not fit."""
        for job in {(job.set, job.noise): job for job in reversed(jobs)}.values():
            noisy(job.set, job.noise, self.pictures(job).data, job.seed, self.settings.data)

    def forget(self) -> None:
        """Give the images' memory back."""
        self._pictures = None

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        pictures = self.pictures(job)
        noise = noisy(job.set, job.noise, pictures.data, job.seed, self.settings.data)

        def tell(message: str) -> None:
            self.tell(f"  {job}: {message}")

        whole = self.origin(job, job.methods[0])
        origin = {name: whole[name] for name in ("command", "versions", "machine")}
        outcomes = solver(job.family)(Task(pictures, noise.labels, job.seed, job.noise, tell, origin))
        about = {"classes": len(pictures.data.classes), "examples": len(noise.labels)}
        lines = [
            plain(
                {
                    **self.origin(job, name, shared=False),
                    **outcome.made,
                    **about,
                    "wrong": int(noise.is_wrong.sum()),
                    **_seconds(pictures, outcome),
                    "metrics": measure(noise.is_wrong, outcome.suspicion),
                }
            )
            for name, outcome in outcomes.items()
            if name in job.methods
        ]
        return lines, {}


def _seconds(pictures: Pictures, outcome: Outcome) -> Line:
    """Of reading, features and the method itself, and of all together."""
    features = pictures.features.seconds if outcome.uses_features else 0.0
    parts = {"reading": pictures.reading, "features": features, "method": outcome.seconds}
    return {"parts": parts, "seconds": sum(parts.values())}
