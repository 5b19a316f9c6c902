"""One run: train a network, study its head, and, where asked for, train the whole network again without groups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif.tasks.unlearning.features import ModelHead, read_head
from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.newton import fit_head
from sgoif.tasks.unlearning.removal import remove_rows
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.problem import Problem, Rows
from sgoif_bench.memory import Peak
from sgoif_bench.ood.recipes import OodTraining
from sgoif_bench.result_texts import rounded
from sgoif_bench.unlearning.deletions import Deletion, choose_groups, choose_singles
from sgoif_bench.unlearning.full import compared, train_without
from sgoif_bench.unlearning.grid import METHOD, Job
from sgoif_bench.unlearning.heads import HeadStudy
from sgoif_bench.unlearning.measures import columns, summarised
from sgoif_bench.unlearning.settings import UnlearningSettings

COLD = 3
"""Heads of each kind of deletion that are also trained from zeros, for their time."""
DIGITS = 6
"""Significant digits of figures in the result file; more would only fill it."""


@dataclass
class Runner(OneDevice[Job]):
    """Does runs, one after the other, on one device."""

    settings: UnlearningSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.settings.data, self.tell)

    def data(self, name: str, training: OodTraining, *, train: bool = True) -> LabelledData:
        """A data set as the recipe wants it."""
        return self._sets.get(name, training, train=train)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set, a network or a number does not fit."""
        for job in {job.set: job for job in jobs}.values():
            data = self.data(job.set, job.training)
            self.data(job.set, job.training, train=False)
            left = len(data) - job.training.anchors
            if left < 2 * max(job.deletions.largest, job.deletions.singles):
                raise SettingError(
                    f"{job.set} has {len(data)} examples here, too few for anchors = {job.training.anchors}, singles ="
                    f" {job.deletions.singles} and largest = {job.deletions.largest}"
                )
            job.training.recipe(int(data.images.shape[-1])).model(int(data.images.shape[1]), len(data.classes))

    def forget(self) -> None:
        """Give the data sets' memory back."""
        self._sets.clear()

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        torch.manual_seed(job.seed)
        peak, start = Peak(self.device), time.perf_counter()
        found = Studied(self, job).line()
        cost = {"seconds": time.perf_counter() - start, "memory": peak.read()}
        return [plain(rounded({**self.origin(job, METHOD), **cost, **found}, DIGITS))], {}


class Studied:
    """A run at work."""

    def __init__(self, runner: Runner, job: Job) -> None:
        self.runner, self.job = runner, job
        data = runner.data(job.set, job.training)
        recipe = job.training.recipe(int(data.images.shape[-1]))
        self.problem = Problem(data.images, data.labels, len(data.classes), recipe, runner.device, job.seed)
        train, held = self.problem.split()
        self.rows, self.held = (np.array(part.indices, dtype=np.int64) for part in (train, held))

    def tell(self, message: str) -> None:
        """A line about this run."""
        self.runner.tell(f"  {self.job}: {message}")

    def line(self) -> Line:
        """Everything that is found out."""
        problem, wanted = self.problem, self.job.deletions
        start = time.perf_counter()
        model = problem.fit(problem.new_model(), problem.batches(self.rows))
        training = time.perf_counter() - start
        x, _, _ = next(iter(problem.plain_batches(self.held)))
        head = read_head(model, x)
        self.tell(f"the network is trained ({training:.0f} s)")
        study, fitting = self._study(model, head)
        singles = choose_singles(wanted, study.influence, self.job.seed)
        groups = choose_groups(wanted, study.fitted.data.features, study.fitted.data.labels, self.job.seed)
        single_records = self._records(study, singles, "single deletions")
        group_records = self._records(study, groups, "groups")
        cold = study.cold_seconds([*singles[:COLD], *groups[:COLD]])
        own = head.start().to(study.fitted.w.device)
        metrics = {
            "single": summarised(single_records),
            "group": summarised(group_records),
            "by_kind": _by_kind([*single_records, *group_records]),
            "accuracy": {
                "network": accuracy(study.test, own),
                "head": accuracy(study.test, study.fitted.w),
            },
            "seconds": {"training": training, "fitting": fitting, "cold_retraining": float(np.median(cold))},
        }
        return {
            "classes": problem.classes,
            "examples": len(self.rows),
            "held_out": len(self.held),
            "tested": len(study.test),
            "features": int(study.fitted.data.features.shape[1]),
            "metrics": metrics,
            "full": self._full(study, groups, group_records) if wanted.full_groups else None,
            "singles": columns(single_records),
            "groups": columns(group_records),
        }

    def _study(self, model: torch.nn.Module, head: ModelHead) -> tuple[HeadStudy, float]:
        problem = self.problem
        test = self.runner.data(self.job.set, self.job.training, train=False)
        judged = Problem(test.images, test.labels, problem.classes, problem.recipe, problem.device, problem.seed)
        judged.mean, judged.spread = problem.mean, problem.spread

        def read(source: Problem, rows: Rows | None) -> HeadData:
            labels = torch.from_numpy(source.labels if rows is None else source.labels[rows])
            features = source.features(model, rows)
            return HeadData(features, labels, problem.classes, constant=head.constant, bias=head.bias)

        data, held, tested = read(problem, self.rows), read(problem, self.held), read(judged, None)
        start = time.perf_counter()
        fitted = fit_head(data, self.job.deletions.l2, head.start().to(data.device))
        return HeadStudy(fitted, held, tested), time.perf_counter() - start

    def _records(self, study: HeadStudy, deletions: Sequence[Deletion], what: str) -> list[Line]:
        found = []
        for number, deletion in enumerate(deletions, start=1):
            found.append(study.record(deletion))
            if number % 50 == 0 or number == len(deletions):
                self.tell(f"{number} of {len(deletions)} {what}")
        return found

    def _full(self, study: HeadStudy, groups: Sequence[Deletion], records: Sequence[Line]) -> Line:
        """The first few groups again, with the whole network."""
        wanted = self.job.deletions
        chosen = [group.rows.numpy() for group in groups[: wanted.full_groups]]
        some = [
            {**record, **self._own(study, group)}
            for record, group in zip(records, groups[: wanted.full_groups], strict=False)
        ]
        full = train_without(self.problem, self.rows, self.held, chosen, wanted.full_seeds, self.tell)
        return {**compared(full, some), "trained": full, "predicted": [_told(record) for record in some]}

    def _own(self, study: HeadStudy, group: Deletion) -> Line:
        """What the removal does to the deleted examples themselves, and to held-out predictions."""
        fitted, rows = study.fitted, group.rows.to(study.fitted.data.device)
        removed = remove_rows(fitted, rows, bound=study.goal).w
        deleted = fitted.data.take(rows)
        before, after = (float(cross_entropy(deleted.logits(w), deleted.labels)) for w in (fitted.w, removed))
        was, now = (study.held.logits(w).argmax(1) for w in (fitted.w, removed))
        return {"own_change": after - before, "differing": float((was != now).double().mean())}


def _told(record: Line) -> Line:
    return {
        "kind": record["kind"],
        "size": record["size"],
        "change": record["predicted"]["removal"],
        "own_change": record["own_change"],
    }


def _by_kind(records: Sequence[Line]) -> Line:
    """Figures of every kind of deletion alone; singles and groups at random are apart."""
    kinds: dict[str, list[Line]] = {}
    for record in records:
        single = record["size"] == 1
        kinds.setdefault(f"{'single' if single else 'group'}, {record['kind']}", []).append(record)
    return {name: summarised(found) for name, found in kinds.items()}


def accuracy(data: HeadData, w: torch.Tensor) -> float:
    """Share of predictions that are right."""
    return float((data.logits(w).argmax(1) == data.labels).double().mean())
