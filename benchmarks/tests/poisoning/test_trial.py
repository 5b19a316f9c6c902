"""What is measured, on whom, and that networks are trained anew without what a method removes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attack_cases import CLASSES, CPU, bars, recipe
from torch import nn

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem
from sgoif_bench.poisoning import trial as module
from sgoif_bench.poisoning.attacks.attack import Poisoned, Targets
from sgoif_bench.poisoning.attacks.badnets import BadNets
from sgoif_bench.poisoning.case import Case, Finding, Victims
from sgoif_bench.poisoning.exam import Exam, answers
from sgoif_bench.poisoning.judge import OWN_RULE, SHARED_RULE, judged, removed
from sgoif_bench.poisoning.trial import Data, Trial, attacked


def data(count: int = 240) -> Data:
    return Data(*bars(count, 0), CLASSES, *bars(60, 9))


def badnets(rate: float = 0.1, epochs: int = 4, known: int = 5) -> tuple[Trial, Poisoned]:
    world = data()
    poisoned = attacked(world, BadNets(rate=rate, target=2), recipe(epochs), CPU, 1, print)
    exam = Exam.of(world.test_images, world.test_labels, poisoned, known, seed=1)
    return Trial(world, poisoned, exam, recipe(epochs), CPU, 1, lambda message: None), poisoned


class Says(nn.Module):
    """Answers with the class that a pixel names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot((x[:, 0, 0, 0] * 255).round().long() % CLASSES, CLASSES).float()


def plain_problem(images: torch.Tensor) -> Problem:
    made = Problem(images, np.zeros(len(images), dtype=np.int64), CLASSES, recipe(), CPU)
    made.mean, made.spread = (0.0,), (1.0,)
    return made


def naming(*classes: int) -> torch.Tensor:
    images = torch.zeros(len(classes), 1, 3, 3, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.tensor(classes, dtype=torch.uint8)
    return images


# the exam


def test_known_victims_are_none_on_whom_success_is_measured() -> None:
    tests, labels = bars(60, 9)
    poisoned = BadNets(rate=0.1, target=2).poison(scene_of(tests, labels))
    exam = Exam.of(tests, labels, poisoned, 7, seed=0)
    assert exam.known is not None
    assert exam.attacked is not None
    assert (len(exam.known), len(exam.attacked)) == (7, 45 - 7)
    assert poisoned.trigger is not None
    stamped = {row.numpy().tobytes() for row in poisoned.trigger(tests[labels != 2])}
    seen = [row.numpy().tobytes() for part in (exam.known, exam.attacked) for row in part.images]
    assert set(seen) == stamped
    assert len(seen) == len(stamped)
    assert set(exam.attacked.wanted) == set(exam.known.wanted) == {2}
    with pytest.raises(SettingError, match="none is left to measure"):
        Exam.of(tests, labels, poisoned, 45, seed=0)


def scene_of(images: torch.Tensor, labels: np.ndarray) -> Any:
    from sgoif_bench.poisoning.attacks.attack import Scene

    return Scene(images, labels, CLASSES, np.random.default_rng(0))


def test_targets_are_known_and_measured() -> None:
    tests, labels = bars(8, 9)
    targets = Targets(tests[:2], labels[:2], np.array([3, 3]))
    exam = Exam.of(tests, labels, Poisoned(tests, labels, np.zeros(8, dtype=bool), targets=targets), 10, seed=0)
    assert exam.known is exam.attacked
    assert exam.known is not None
    assert exam.known.wanted.tolist() == [3, 3]


def test_success_and_accuracy_by_hand() -> None:
    attacked_inputs, known = (
        Victims(naming(1, 1, 2, 0), np.array([1, 2, 2, 3])),
        Victims(naming(3, 0, 3), np.full(3, 3)),
    )
    exam = Exam(naming(0, 1, 2, 3, 3), np.array([0, 1, 2, 3, 0]), attacked_inputs, known)
    problem = plain_problem(naming(0))
    assert answers(problem, Says(), naming(2, 0)).tolist() == [2, 0]
    assert exam.accuracy(problem, Says()) == pytest.approx(0.8)
    assert exam.success(problem, Says()) == pytest.approx(0.5)
    noticed = exam.noticed(problem, Says())
    assert noticed is not None
    assert noticed.images[:, 0, 0, 0].tolist() == [3, 3], "only those that are answered as wanted"
    none_fooled = Exam(exam.images, exam.labels, attacked_inputs, Victims(naming(0, 1), np.full(2, 3)))
    kept = none_fooled.noticed(problem, Says())
    assert kept is not None
    assert len(kept) == 2
    clean = Exam.of(exam.images, exam.labels, None, 3, seed=0)
    assert (clean.success(problem, Says()), clean.noticed(problem, Says())) == (None, None)


# the judge


def test_a_finding_by_hand() -> None:
    poison = np.array([True, False, True, False, False, False])
    found = judged(poison, Finding(np.array([0.9, 0.8, 0.7, 0.1, 0.2, 0.3]), np.array([0, 1])))
    assert found["metrics"] == {
        "aupr": pytest.approx((1 + 2 / 3) / 2),
        "auroc": pytest.approx(7 / 8),
        "p_at_poison": pytest.approx(0.5),
        "selected": 2,
        "selected_share": pytest.approx(1 / 3),
        "precision": 0.5,
        "recall": 0.5,
        "poison_left": 1,
    }
    assert found["removed_by"] == OWN_RULE


def test_without_a_rule_of_its_own_a_method_removes_the_top() -> None:
    poison = np.array([True, False, True, False, False, False])
    finding = Finding(np.array([0.9, 0.8, 0.7, 0.1, 0.2, 0.3]))
    rows, rule = removed(finding, 2)
    assert (rows.tolist(), rule) == ([0, 1, 2], SHARED_RULE)
    assert judged(poison, finding)["metrics"]["poison_left"] == 0


def test_without_poison_there_is_only_what_is_removed() -> None:
    found = judged(np.zeros(4, dtype=bool), Finding(np.arange(4.0), np.array([3])))
    assert found["metrics"]["aupr"] is None
    assert found["metrics"]["precision"] == 0
    assert found["metrics"]["selected"] == 1
    assert found["curve"] is None


@pytest.mark.parametrize(
    ("finding", "message"),
    [
        (Finding(np.zeros(3)), r"scores of shape \(3,\) came back for 4"),
        (Finding(np.array([0, np.nan, 1, 2])), "1 of 4 scores are not numbers"),
        (Finding(np.zeros(4), np.array([4])), "example 4 was selected"),
    ],
)
def test_findings_that_cannot_be_judged(finding: Finding, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        judged(np.array([True, False, False, False]), finding)


# the trial


def test_what_is_held_out_is_not_trained_on() -> None:
    trial, poisoned = badnets()
    assert len(trial.problem) + len(trial.held_out) == len(poisoned.labels)
    whole = {row.numpy().tobytes(): poison for row, poison in zip(poisoned.images, poisoned.is_poison, strict=True)}
    trained = [row.numpy().tobytes() for row in trial.problem.images]
    held = [row.numpy().tobytes() for row in trial.held_out.images]
    assert set(trained) | set(held) == set(whole)
    assert not set(trained) & set(held)
    assert [whole[row] for row in trained] == trial.is_poison.tolist()
    assert trial.poison == sum(whole[row] for row in trained)


def oracle(trial: Trial) -> Any:
    def knows_all(case: Case) -> Finding:
        return Finding(trial.is_poison.astype(np.float64), np.flatnonzero(trial.is_poison))

    return knows_all


def test_perfect_finding_undoes_the_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = badnets(epochs=8)
    monkeypatch.setattr(module, "rival", lambda name: oracle(trial))
    outcome = trial.run(["spectral"], retrain=["spectral"])["spectral"]
    metrics = outcome["metrics"]
    assert metrics["aupr"] == 1
    assert metrics["success_before"] > 0.8
    assert metrics["success_after"] < 0.2
    assert metrics["accuracy_before"] - metrics["accuracy_after"] == pytest.approx(metrics["accuracy_lost"])
    assert outcome["without_poison"] == {
        "attack_success": metrics["success_after"],
        "accuracy": metrics["accuracy_after"],
    }
    assert outcome["setting"] == "unknown"
    assert outcome["seconds"] > outcome["finding_seconds"] >= 0
    kept = np.flatnonzero(~trial.is_poison)
    again = trial.problem.fit(trial.problem.new_model(), trial.problem.batches(kept))
    assert trial.exam.success(trial.problem, again) == metrics["success_after"], "from the same weights on"
    assert trial.exam.accuracy(trial.problem, again) == metrics["accuracy_after"]


def test_trainings_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = badnets(epochs=2)
    fits: list[int] = []
    real = Problem.fit

    def counted(self: Problem, model: nn.Module, batches: Any, **options: Any) -> nn.Module:
        fits.append(len(batches.index))
        return real(self, model, batches, **options)

    monkeypatch.setattr(Problem, "fit", counted)
    nothing = Finding(np.zeros(len(trial.problem)), np.zeros(0, dtype=np.int64))
    answers_of = {"spectral": oracle(trial), "spectral-along": oracle(trial), "random": lambda case: nothing}
    monkeypatch.setattr(module, "rival", lambda name: answers_of[name])
    outcomes = trial.run(list(answers_of), retrain=list(answers_of))
    assert fits == [len(trial.problem), len(trial.problem) - trial.poison]
    idle = outcomes["random"]["metrics"]
    assert (idle["success_after"], idle["accuracy_lost"]) == (idle["success_before"], 0.0)
    fits.clear()
    again = trial.run(["random"], retrain=[])["random"]
    assert fits == [len(trial.problem)]
    assert again["metrics"]["success_after"] is None
    assert again["without_poison"] is None


def test_a_method_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = badnets(epochs=1)

    def broken(case: Case) -> Finding:
        raise SettingError("no luck")

    short = Finding(np.zeros(3))
    answers_of = {"spectral": broken, "tracin-self": lambda case: short, "random": oracle(trial)}
    monkeypatch.setattr(module, "rival", lambda name: answers_of[name])
    assert set(trial.run(list(answers_of), retrain=[])) == {"random"}
    assert trial.failures["spectral"] == "no luck"
    assert "shape (3,)" in trial.failures["tracin-self"]


def test_methods_see_no_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = badnets(epochs=1)
    seen: list[Case] = []

    def looks(case: Case) -> Finding:
        seen.append(case)
        return Finding(np.zeros(len(case.problem)))

    monkeypatch.setattr(module, "rival", lambda name: looks)
    trial.run(["tracin"], retrain=[])
    (case,) = seen
    truth = trial.is_poison
    arrays = [value for value in vars(case).values() if isinstance(value, np.ndarray | torch.Tensor)]
    assert not [value for value in arrays if len(value) == len(truth)]
    assert case.poison == truth.sum()
    assert case.victims is not None
    assert not case.model.training


def test_without_an_attack_nothing_is_changed() -> None:
    world = data()
    untouched = attacked(world, None, recipe(), CPU, 0, print)
    assert torch.equal(untouched.images, world.images)
    assert not untouched.is_poison.any()
