"""One job: train once, judge every method that learns from that training, write down what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice, reason_of
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.grid import Job, check_packages, measure
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Known, Outcome, Problem
from sgoif_bench.labels.recipes import Training
from sgoif_bench.labels.registry import is_known, method_of, solver
from sgoif_bench.labels.settings import LabelsSettings
from sgoif_bench.memory import Peak
from sgoif_bench.noise import NoisyLabels


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: LabelsSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.settings.data, self.tell)

    def data(self, name: str, training: Training, *, train: bool = True) -> LabelledData:
        """A data set as the recipe wants it."""
        return self._sets.get(name, training, train=train)

    def noisy(self, job: Job) -> tuple[LabelledData, NoisyLabels]:
        """The data set of a job with its wrong labels."""
        data = self.data(job.set, job.training)
        return data, make_noise(job.noise, data, job.seed, self.settings.human)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a package is missing, or that data, noise or a number do not fit."""
        check_packages(jobs)
        if self.settings.remove is not None:
            for name, training in {job.set: job.training for job in jobs}.items():
                self.data(name, training, train=False)
        for job in {(job.set, job.noise): job for job in reversed(jobs)}.values():
            data, _ = self.noisy(job)
            if job.training.anchors >= len(data.labels):
                raise SettingError(
                    f"anchors = {job.training.anchors} leave nothing to train on: {job.set} has {len(data.labels)}"
                    " examples here"
                )
            side = int(data.images.shape[-1])
            job.training.recipe(side).model(int(data.images.shape[1]), len(data.classes))

    def forget(self) -> None:
        """Give the data set's memory back."""
        self._sets.clear()

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        data, noise = self.noisy(job)
        true = data.labels if data.clean_labels is None else data.clean_labels
        recipe = job.training.recipe(int(data.images.shape[-1]))
        problem = Problem(data.images, noise.labels, len(data.classes), recipe, self.device, job.seed)
        if any(method_of(name).is_told for name in job.methods):
            problem.known = Known(float(noise.is_wrong.mean()), flips=not job.noise.startswith("symmetric"))
        torch.manual_seed(job.seed)
        solve = solver(job.methods, solo=job.solo)
        peak, start = Peak(self.device), time.perf_counter()
        outcomes = solve(problem, lambda message: self.tell(f"  {job}: {message}"))
        if problem.on_gpu:
            torch.cuda.synchronize(self.device)
        cost = {"seconds": time.perf_counter() - start, "memory": peak.read()}
        failures = {name: f"{job.family} returned no outcome for it" for name in job.methods if name not in outcomes}
        lines = []
        for name, outcome in outcomes.items():
            if is_known(name) and name not in job.methods:
                continue
            try:
                judged = measure(noise.is_wrong, outcome, data.verified, true)
                removal = self._removal(job, problem, outcome, noise.is_wrong) if name in job.methods else None
            except Exception as error:
                failures[name] = reason_of(error)
                continue
            about = {"classes": problem.classes, "examples": len(problem), "wrong": int(noise.is_wrong.sum())}
            about["judged"] = int(data.verified.sum())
            further = {"trainings": outcome.trainings, "removal": removal, **judged}
            robustly = is_known(name) and method_of(name).trains_robustly
            origin = self.origin(job, name, family=job.family, trains_robustly=robustly)
            lines.append(plain({**origin, **about, **cost, **further}))
        return lines, failures

    def _removal(self, job: Job, problem: Problem, outcome: Outcome, wrong: NDArray[np.bool_]) -> Line | None:
        """Train plainly without what the method flags, or without its most suspicious share, and test."""
        share = self.settings.remove
        if share is None:
            return None
        removed = outcome.flagged if outcome.flagged is not None else _top(outcome.suspicion, share)
        kept = np.flatnonzero(~removed)
        facts: Line = {"share": share, "by": "top share" if outcome.flagged is None else "flags"}
        facts |= {"removed": int(removed.sum()), "wrong_left": int(wrong[kept].sum()), "test_accuracy": None}
        if len(kept) < 2:
            return facts
        start = time.perf_counter()
        model = problem.fit(problem.new_model(), problem.batches(kept))
        test = self.data(job.set, job.training, train=False)
        judged = Problem(test.images, test.labels, problem.classes, problem.recipe, problem.device, problem.seed)
        judged.mean, judged.spread = problem.mean, problem.spread
        right = judged.predict(model).argmax(dim=1).cpu().numpy() == test.labels
        return {**facts, "test_accuracy": float(right.mean()), "seconds": time.perf_counter() - start}


def _top(suspicion: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    chosen = np.zeros(len(suspicion), dtype=bool)
    chosen[np.argsort(-suspicion, kind="stable")[: round(share * len(suspicion))]] = True
    return chosen
