"""One job: train part of a truth, or train the network that methods look at and judge every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgoif.core.provenance import plain
from sgoif_bench.command import Say, say
from sgoif_bench.fidelity.answer import Answer, Trained
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.grid import Job, truth_jobs
from sgoif_bench.fidelity.judge import Judge
from sgoif_bench.fidelity.online import OnlineSettings
from sgoif_bench.fidelity.ours import along_the_run
from sgoif_bench.fidelity.paired import asked_about, changes, train_changes
from sgoif_bench.fidelity.plain import plain_readings
from sgoif_bench.fidelity.registry import METHODS, OURS, PEER, VARIANT
from sgoif_bench.fidelity.settings import FidelitySettings
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.fidelity.truth import missing, train_sets
from sgoif_bench.jobs import OneDevice, free_memory, reason_of
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.kept import KeptSets


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: FidelitySettings
    command: str
    device: torch.device
    cache: Path
    """Folder of the networks' answers."""
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.settings.data, self.tell)
        self._study: tuple[str, Study] | None = None

    def data(self, job: Job, *, train: bool = True) -> LabelledData:
        """A data set as the recipe wants it."""
        return self._sets.get(job.set, job.training, train=train)

    def study(self, job: Job) -> Study:
        """The study of a job, made once."""
        if self._study is None or self._study[0] != job.truth_id:
            made = make_study(
                self.data(job),
                self.data(job, train=False),
                job.training,
                job.wrong_share,
                job.judging.queries,
                self.device,
                job.seed,
            )
            self._study = job.truth_id, made
        return self._study[1]

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set, a network or a number does not fit."""
        for job in jobs:
            study = self.study(job)
            study.problem.new_model()
            for wanted in job.judging.wanted():
                if wanted.is_paired:
                    changes(study, wanted)

    def truth(self, jobs: Sequence[Job]) -> list[Job]:
        """What is still to be trained before these studies can be judged."""
        return [
            part
            for job in jobs
            for wanted in job.judging.wanted()
            for part in truth_jobs(job, wanted, missing(self.folder(job), wanted))
        ]

    def folder(self, job: Job) -> Path:
        """Where the truth of a job lies."""
        return self.cache / job.truth_id

    def forget(self) -> None:
        """Give the data sets' memory back."""
        self._sets.clear()
        self._study = None

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        """Train part of the truth, or judge."""
        if job.truth is None:
            return self._judged(job)
        wanted, numbers = job.truth
        train = train_changes if wanted.is_paired else train_sets
        train(self.study(job), self.folder(job), wanted, numbers)
        return [], {}

    def _judged(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        study = self.study(job)
        torch.manual_seed(job.seed)
        # The first training of a process is slower than the others, and so is the first use of a GPU's solvers.
        warm = train_once(study)
        if self.device.type == "cuda":
            along_the_run(warm, OnlineSettings(epochs=1))
        relabelled = asked_about(study, job.judging.wanted())
        trained = train_once(study, lambda message: self.tell(f"  {job}: {message}"), relabelled)
        plain = plain_readings(trained) if any(METHODS[name].kind in (OURS, VARIANT) for name in job.methods) else None
        judge = Judge(study, self.folder(job), job.judging, study.answers(trained.model), relabelled, plain)
        lines, failures = [], {}
        for name in job.methods:
            entry = METHODS[name]
            error, figures, answer = None, {}, None
            try:
                answer = entry.run(trained)
                figures = judge.metrics(answer)
                self.tell(f"  {job.called(name)}: LDS {figures['lds']:.3f}, {answer.seconds:.1f} s added")
            except Exception as problem:
                reason = reason_of(problem)
                if entry.kind != PEER:
                    failures[name] = reason
                    continue
                error = reason.splitlines()[-1][:400]
                self.tell(f"  {job.called(name)} could not run: {error}")
            free_memory(self.device)
            lines.append(self._line(job, name, trained, judge, answer, figures, error))
        return lines, failures

    def _line(
        self,
        job: Job,
        name: str,
        trained: Trained,
        judge: Judge,
        answer: Answer | None,
        figures: dict[str, Any],
        error: str | None,
    ) -> Line:
        cost: dict[str, Any] = {"seconds": None, "memory": None, "trainings": None, "seconds_per_query": None}
        if answer is not None:
            cost = {
                "seconds": answer.seconds,
                "seconds_per_query": answer.seconds / len(answer.scores),
                "memory": answer.memory,
                "trainings": answer.trainings,
                "weights": answer.details.get("weights"),
            }
        origin = self.origin(job, name, kind=METHODS[name].kind, shared=False)
        line = {**origin, **judge.about(), **cost, "training_seconds": trained.seconds, "error": error}
        return plain({**line, "metrics": figures})  # type: ignore[no-any-return]
