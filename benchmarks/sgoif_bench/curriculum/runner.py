"""One job: train by one method, test after every epoch, write down what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sgoif.core.provenance import plain
from sgoif_bench.command import Say, say
from sgoif_bench.curriculum.grid import Job
from sgoif_bench.curriculum.measures import measure
from sgoif_bench.curriculum.recipes import CurriculumTraining
from sgoif_bench.curriculum.registry import METHODS, train_function
from sgoif_bench.curriculum.settings import CurriculumBenchSettings
from sgoif_bench.curriculum.study import Study
from sgoif_bench.curriculum.tail import tailed
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData, load
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.recipes import ANCHOR_SHARE
from sgoif_bench.memory import Peak
from sgoif_bench.noise import NoisyLabels

Loaded = tuple[str, float | None, bool]


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: CurriculumBenchSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._loaded: dict[Loaded, LabelledData] = {}

    def data(self, name: str, training: CurriculumTraining, *, train: bool = True) -> LabelledData:
        """A data set as the recipe wants it, the test set whole. One is kept in memory: jobs come set by set."""
        key = (name, training.tail if train else None, train)
        if key not in self._loaded:
            self._loaded = {other: data for other, data in self._loaded.items() if other[0] == name}
            limit = training.limit if train else None
            found = load(name, self.settings.data, train=train, size=training.image, limit=limit, tell=self.tell)
            self._loaded[key] = tailed(found, training.tail) if train and training.tail is not None else found
        return self._loaded[key]

    def noisy(self, job: Job) -> tuple[LabelledData, NoisyLabels]:
        """The data set of a job with its wrong labels."""
        data = self.data(job.set, job.training)
        return data, make_noise(job.noise, data, job.seed, self.settings.human)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set, a noise or a network does not fit."""
        for job in {(job.set, job.training.tail, job.noise): job for job in reversed(jobs)}.values():
            data, _ = self.noisy(job)
            self.data(job.set, job.training, train=False)
            job.training.recipe(int(data.images.shape[-1])).model(int(data.images.shape[1]), len(data.classes))

    def forget(self) -> None:
        """Give the data sets' memory back."""
        self._loaded.clear()

    def study(self, job: Job) -> tuple[Study, NoisyLabels]:
        """What the method gets, and which labels are wrong."""
        data, noise = self.noisy(job)
        recipe = job.training.recipe(int(data.images.shape[-1]))
        recipe = replace(recipe, anchors=min(recipe.anchors, max(2, len(data) // ANCHOR_SHARE)))
        problem = Problem(data.images, noise.labels, len(data.classes), recipe, self.device, job.seed)
        test = self.data(job.set, job.training, train=False)
        judged = Problem(test.images, test.labels, problem.classes, recipe, self.device, job.seed)
        judged.mean, judged.spread = problem.mean, problem.spread
        right = np.flatnonzero(~noise.is_wrong) if METHODS[job.method].knows_truth else None

        def tell(message: str) -> None:
            self.tell(f"  {job}: {message}")

        return Study(problem, judged, tell, right, dict(job.options)), noise

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        torch.manual_seed(job.seed)
        peak = Peak(self.device)
        study, noise = self.study(job)
        trained = train_function(job.method)(study)
        data = self.data(job.set, job.training)
        true = data.labels if data.clean_labels is None else np.where(data.verified, data.clean_labels, data.labels)
        sizes = np.bincount(true, minlength=study.problem.classes).tolist()
        judged = measure(study.epochs, noise.is_wrong, sizes)
        judged["metrics"]["overhead"] = trained.overhead
        line = {
            **self.origin(job, job.method, shared=False),
            "examples": len(study.problem),
            "wrong": int(noise.is_wrong.sum()),
            "tested": len(study.test),
            "seconds": study.seconds,
            "memory": peak.read(),
            "trainings": trained.trainings,
            **judged,
            "details": trained.details,
        }
        return [plain(line)], {}
