"""One job: one training with the monitors of a base attached, and what each of them found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch

from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.evidence import anchor_evidence, training_evidence
from sgoif.tasks.labels.judgement import judge
from sgoif_bench.command import Say, say
from sgoif_bench.controller.grid import Job
from sgoif_bench.controller.variants import FULL, VARIANTS, settings_of
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.watching import together
from sgoif_bench.metrics import average_precision, detection_metrics

READ = ("confidence_mean", "pass_share", "coverage", "residual_relative")


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    root: str | None
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.root, self.tell)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set is missing or too small, or that a noise does not fit."""
        for job in {(job.set, job.noise): job for job in reversed(jobs)}.values():
            data = self._sets.get(job.set, job.training)
            make_noise(job.noise, data, job.seed)
            if job.training.anchors >= len(data):
                raise SettingError(
                    f"anchors = {job.training.anchors} leave nothing to train on: {job.set} has {len(data)} examples"
                )

    def forget(self) -> None:
        """Give the data set's memory back."""
        self._sets.clear()

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        data = self._sets.get(job.set, job.training)
        noise = make_noise(job.noise, data, job.seed)
        recipe = job.training.recipe(int(data.images.shape[-1]))
        problem = Problem(data.images, noise.labels, len(data.classes), recipe, self.device, job.seed)
        torch.manual_seed(job.seed)
        training, held_out = problem.split()
        rows = np.asarray(training.indices)
        model, batches = problem.new_model(), problem.batches(rows, problem.labels)
        optimizer, schedule = problem.optimizer(model, recipe.epochs * len(batches))
        wanted = dict.fromkeys((FULL, *job.methods))  # a gain needs what it is one over
        start = time.perf_counter()
        with ExitStack() as opened:
            monitors: dict[str, InfluenceMonitor] = {}
            for name in wanted:
                variant = VARIANTS[job.family][name]
                settings = settings_of(job.family, variant, len(held_out), job.seed)
                monitor = InfluenceMonitor(model, optimizer, anchors=held_out, size=len(problem), settings=settings)
                variant.adjust(opened.enter_context(monitor))
                monitors[name] = monitor
            watching = together(monitors.values())
            problem.fit(model, batches, optimizer=(optimizer, schedule), watching=watching)
            found = {name: judged(monitor, noise.is_wrong, rows) for name, monitor in monitors.items()}
        about: Line = {"examples": len(rows), "wrong": int(noise.is_wrong[rows].sum()), "anchors": len(held_out)}
        about["seconds_together"] = time.perf_counter() - start
        return [plain({**self.origin(job, name), **about, **found[name]}) for name in found if name in job.methods], {}


def judged(monitor: InfluenceMonitor, is_wrong: np.ndarray[Any, np.dtype[np.bool_]], rows: Any) -> Mapping[str, Any]:
    """How well influence and label score find wrong labels among what was trained on, and what the controller did."""
    evidence, anchors = training_evidence(monitor), anchor_evidence(monitor)
    suspicion = np.full(len(is_wrong), -np.inf)
    suspicion[evidence.index] = np.nan_to_num(evidence.influence, nan=-np.inf)
    score = np.full(len(is_wrong), -np.inf)
    score[evidence.index] = judge(evidence, anchors, monitor.classes).suspicion
    history = monitor.history
    products = sum(entry["products"] for entry in history) / max(monitor.steps, 1)
    return {
        "metrics": detection_metrics(is_wrong[rows], suspicion[rows]),
        "label_score": average_precision(is_wrong[rows], score[rows]),
        "refreshes": len(history),
        "refresh_seconds": sum(entry["seconds"] for entry in history),
        "products_per_step": products,
        "replaced": history[-1]["replaced"],
        **{name: fmean(entry[name] for entry in history) for name in READ},
    }
