"""How structured the noise looks to a curriculum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from curriculum_cases import Run, blobs

from sgoif.tasks import Curriculum
from sgoif.tasks.curriculum import assessment
from sgoif.tasks.curriculum.assessment import structure_of
from sgoif.tasks.labels.evidence import Evidence, Rows

CLASSES, COUNT = 10, 1200


def seen(paired: bool, share: float = 0.4) -> Evidence:
    """Answers that know the true class; labels are wrong at random, or those of the next class."""
    random = np.random.default_rng(0)
    true = random.integers(CLASSES, size=COUNT)
    step = np.ones(COUNT, dtype=np.int64) if paired else random.integers(1, CLASSES, COUNT)
    given = np.where(random.random(COUNT) < share, (true + step) % CLASSES, true)
    answers = random.dirichlet(np.ones(CLASSES), COUNT) * 0.3
    answers[np.arange(COUNT), true] += 0.7
    rest = answers.copy()
    rest[np.arange(COUNT), given] = 0
    margin = answers[np.arange(COUNT), given] - rest.max(1)
    nothing = np.zeros(COUNT)
    return Evidence(np.arange(COUNT), given, nothing, margin, margin, nothing, Rows(answers), Rows(answers))


@pytest.mark.parametrize(("paired", "low", "high"), [(False, 0.0, 0.15), (True, 0.9, 1.0)])
def test_structure_is_that_of_the_most_suspicious(paired: bool, low: float, high: float) -> None:
    assert low <= structure_of(seen(paired), CLASSES) <= high


def test_right_labels_say_nothing_about_it() -> None:
    """Few labels are wrong, all by the name of the next class; the right ones, confused at random, do not hide it."""
    assert structure_of(seen(paired=True, share=0.1), CLASSES) > 0.7


def test_noise_is_as_structured_as_batches_and_memory_say(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(blobs())
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 3, curriculum.weights)
    found: list[float] = []
    real = assessment.judge

    def noted(training: Any, anchors: Any, classes: int, structure: float, **options: Any) -> Any:
        found.append(structure)
        return real(training, anchors, classes, structure, **options)

    monkeypatch.setattr(assessment, "judge", noted)
    for batches, remembered in ((0.9, 0.2), (0.1, 0.7)):
        monkeypatch.setattr(assessment, "structure_of", lambda *_, remembered=remembered: remembered)
        monkeypatch.setattr(curriculum, "_refresh", lambda: None)
        run.monitor.step_weight.structure = batches
        assert curriculum.update()
    assert found == [0.2, 0.1]
