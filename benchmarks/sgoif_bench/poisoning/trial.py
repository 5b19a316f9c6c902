"""One attack, one training, and what every method makes of it.

The data are poisoned, then a few of them, poison and all, are held out for the monitor; the rest is trained on and
examined. One network is trained, watched by ours, its checkpoints kept. Each method then says what is poison. Finally
networks are trained anew, from the same initial weights, without what each method would remove, and once without the
poison and nothing else: what perfect finding would give.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif_bench.batches import LabelledImages
from sgoif_bench.command import Say
from sgoif_bench.jobs import reason_of
from sgoif_bench.labels.problem import Problem, Recipe, Rows
from sgoif_bench.poisoning.attacks.attack import Attack, Labels, Poisoned, Scene
from sgoif_bench.poisoning.attacks.surrogate import Surrogate, trained_surrogate
from sgoif_bench.poisoning.case import Case, Checkpoints, Finding
from sgoif_bench.poisoning.exam import Exam
from sgoif_bench.poisoning.judge import judged, removed
from sgoif_bench.poisoning.registry import METHODS, rival, setting_of

ATTACKER = 10_000
"""Added to the seed of the attacker's own network: it is never the one that is attacked."""
STREAM = 29
Outcome = dict[str, Any]


@dataclass
class Data:
    """Images with labels, to train on and to test with."""

    images: torch.Tensor
    labels: Labels
    classes: int
    test_images: torch.Tensor
    test_labels: Labels


def attacked(data: Data, attack: Attack | None, recipe: Recipe, device: torch.device, seed: int, tell: Say) -> Poisoned:
    """The training set after the attack; without one, as it is."""
    if attack is None:
        return Poisoned(data.images, data.labels, np.zeros(len(data.labels), dtype=bool))

    def train() -> Surrogate:
        clean = Problem(data.images, data.labels, data.classes, recipe, device, seed + ATTACKER)
        return trained_surrogate(clean, tell)

    generator = np.random.default_rng([seed, STREAM])
    scene = Scene(data.images, data.labels, data.classes, generator, train, data.test_images, data.test_labels)
    return attack.poison(scene)


class Trial:
    """An attack on its way through training, finding and removal."""

    def __init__(
        self, data: Data, poisoned: Poisoned, exam: Exam, recipe: Recipe, device: torch.device, seed: int, tell: Say
    ) -> None:
        pool = Problem(poisoned.images, poisoned.labels, data.classes, recipe, device, seed)
        training, held_out = pool.split()
        rows, held = np.asarray(training.indices), np.asarray(held_out.indices)
        self.problem = Problem(
            pool.images[torch.from_numpy(rows)], pool.labels[rows], pool.classes, recipe, device, seed
        )
        self.held_out = LabelledImages(
            pool.images[torch.from_numpy(held)],
            torch.from_numpy(pool.labels[held]),
            self.problem.mean,
            self.problem.spread,
        )
        self.is_poison: NDArray[np.bool_] = poisoned.is_poison[rows]
        self.exam, self.tell = exam, tell
        self.failures: dict[str, str] = {}
        self._trained: dict[bytes, Outcome] = {}

    @property
    def poison(self) -> int:
        return int(self.is_poison.sum())

    def run(self, methods: Sequence[str], retrain: Collection[str]) -> dict[str, Outcome]:
        """Outcomes by method; those that failed are in `failures`. Those in `retrain` get a network trained anew."""
        start = time.perf_counter()
        case, ours = self._train([name for name in methods if METHODS[name].ours])
        self._wait()
        training = time.perf_counter() - start
        before = self._tested(case.model)
        case.victims = self.exam.noticed(self.problem, case.model)
        self.tell(f"trained; attack success {_percent(before['attack_success'])}, accuracy {before['accuracy']:.1%}")
        found: dict[str, tuple[Finding, float]] = {}
        for name in methods:
            try:
                found[name] = self._found(name, case, ours)
            except Exception as error:
                self.failures[name] = reason_of(error)
        if ours is not None:
            ours.close()
        some = any(name in retrain for name in found)
        about = {
            "before": before,
            "victims": 0 if case.victims is None else len(case.victims),
            "without_poison": self._without(np.flatnonzero(self.is_poison), before) if some else None,
        }
        outcomes: dict[str, Outcome] = {}
        for name, (finding, seconds) in found.items():
            try:
                outcomes[name] = {**about, **self._outcome(finding, before, name in retrain)}
            except Exception as error:
                self.failures[name] = reason_of(error)
                continue
            cost = {"seconds": training + seconds, "finding_seconds": seconds, "trainings": 1.0}
            outcomes[name] |= {"setting": setting_of(name), "retrained": name in retrain, **cost}
        return outcomes

    def _train(self, own: Sequence[str]) -> tuple[Case, Any]:
        """The shared training, watched by ours where they are asked for."""
        problem = self.problem
        model, batches = problem.new_model(), problem.batches()
        checkpoints = Checkpoints(problem)
        optimizer = problem.optimizer(model, problem.recipe.epochs * len(batches))
        ours = None
        if own:
            from sgoif_bench.poisoning.ours import Ours

            ours = Ours(problem, model, optimizer[0], self.held_out)
        watching = nullcontext_for_index if ours is None else ours.watching
        problem.fit(
            model,
            batches,
            optimizer=optimizer,
            watching=watching,
            on_epoch=lambda epoch: checkpoints.keep(model, epoch),
        )
        return Case(problem, model.eval(), checkpoints, self.poison, tell=self.tell), ours

    def _found(self, name: str, case: Case, ours: Any) -> tuple[Finding, float]:
        """A method's finding and the seconds it took, whatever others have computed before."""
        fresh = Case(case.problem, case.model, case.checkpoints, case.poison, case.victims, case.tell)
        torch.manual_seed(self.problem.seed)
        self._wait()
        start = time.perf_counter()
        finding = ours.finding(name, fresh) if METHODS[name].ours else rival(name)(fresh)
        self._wait()
        seconds = time.perf_counter() - start
        self.tell(f"{METHODS[name].title} took {seconds:.1f} s")
        return finding, seconds

    def _outcome(self, finding: Finding, before: Mapping[str, Any], retrain: bool) -> Outcome:
        outcome = judged(self.is_poison, finding)
        metrics = outcome["metrics"]
        metrics |= {"success_before": before["attack_success"], "accuracy_before": before["accuracy"]}
        metrics |= dict.fromkeys(("success_after", "accuracy_after", "accuracy_lost"))
        if retrain:
            after = self._without(removed(finding, self.poison)[0], before)
            metrics |= {"success_after": after["attack_success"], "accuracy_after": after["accuracy"]}
            if after["accuracy"] is not None:
                metrics["accuracy_lost"] = before["accuracy"] - after["accuracy"]
        return outcome

    def _without(self, rows: Rows, before: Mapping[str, Any]) -> Outcome:
        """What a network says that is trained in the same way without these examples; each set is tried once."""
        if not len(rows):
            return dict(before)
        if rows.tobytes() not in self._trained:
            kept = np.setdiff1d(self.problem.rows(), rows)
            if len(kept) < 2:
                self._trained[rows.tobytes()] = {"attack_success": None, "accuracy": None}
            else:
                model = self.problem.fit(self.problem.new_model(), self.problem.batches(kept))
                self._trained[rows.tobytes()] = self._tested(model)
        return self._trained[rows.tobytes()]

    def _tested(self, model: nn.Module) -> Outcome:
        return {
            "attack_success": self.exam.success(self.problem, model),
            "accuracy": self.exam.accuracy(self.problem, model),
        }

    def _wait(self) -> None:
        if self.problem.on_gpu:
            torch.cuda.synchronize(self.problem.device)


def nullcontext_for_index(index: torch.Tensor) -> nullcontext[None]:
    """Nobody watches."""
    del index
    return nullcontext()


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
