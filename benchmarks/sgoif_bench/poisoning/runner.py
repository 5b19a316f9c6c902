"""One job: poison the data, carry out the trial, write down what came of it and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.problem import last_linear
from sgoif_bench.labels.recipes import Training
from sgoif_bench.memory import Peak
from sgoif_bench.poisoning.attacks.naming import make_attack
from sgoif_bench.poisoning.exam import Exam
from sgoif_bench.poisoning.grid import Job
from sgoif_bench.poisoning.settings import PoisoningSettings
from sgoif_bench.poisoning.trial import Data, Trial, attacked


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: PoisoningSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.settings.data, self.tell, self.settings.test_limit)

    def data(self, name: str, training: Training) -> Data:
        """A data set as the recipe wants it."""
        given, test = (self._sets.get(name, training, train=train) for train in (True, False))
        return Data(given.images, given.labels, len(given.classes), test.images, test.labels)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set, a network or a number does not fit."""
        for job in {job.set: job for job in reversed(jobs)}.values():
            data = self.data(job.set, job.training)
            if job.training.anchors >= len(data.labels):
                raise SettingError(
                    f"anchors = {job.training.anchors} leave nothing to train on: {job.set} has {len(data.labels)}"
                    " examples here"
                )
            shape = data.images.shape
            last_linear(job.training.recipe(int(shape[-1])).model(int(shape[1]), data.classes))

    def forget(self) -> None:
        """Give the data sets' memory back."""
        self._sets.clear()

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        def tell(message: str) -> None:
            self.tell(f"  {job}: {message}")

        torch.manual_seed(job.seed)
        data = self.data(job.set, job.training)
        recipe = job.training.recipe(int(data.images.shape[-1]))
        peak = Peak(self.device)
        attack = make_attack(job.attack, job.set)
        poisoned = attacked(data, attack, recipe, self.device, job.seed, tell)
        shown = None if attack is None else poisoned
        exam = Exam.of(data.test_images, data.test_labels, shown, self.settings.known, job.seed)
        trial = Trial(data, poisoned, exam, recipe, self.device, job.seed, tell)
        outcomes = trial.run(job.methods, self.settings.retrained())
        about = {
            "classes": data.classes,
            "examples": len(trial.problem),
            "held_out": len(trial.held_out),
            "poison": trial.poison,
            "wanted": poisoned.wanted,
            "tested": len(exam.labels),
            "attacked": 0 if exam.attacked is None else len(exam.attacked),
            "attack_details": poisoned.details,
            "memory": peak.read(),
        }
        lines = [
            plain({**self.origin(job, name, shared=True), **about, **outcome}) for name, outcome in outcomes.items()
        ]
        return lines, trial.failures
