"""Features and out-of-fold probabilities stay on disk: for the same data only, and to be scored elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretrained_cases import CLASSES, EXAMPLES, colours, pictures, planted

from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.pretrained import kept
from sgoif_bench.pretrained.kept import cleanlab_outcomes, out_of_fold
from sgoif_bench.pretrained.task import Rows, Task


class Fits:
    """Keeps its calls and answers with random probabilities of the fold."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Rows, Rows]] = []

    def __call__(self, fold: int, rest: Rows, held_out: Rows) -> Any:
        self.calls.append((fold, rest, held_out))
        return np.random.default_rng(fold).dirichlet(np.ones(CLASSES), len(held_out))


def test_every_example_is_predicted_once_by_what_never_saw_it(tmp_path: Path) -> None:
    task, fits = planted(tmp_path)[0], Fits()
    found = out_of_fold(task, "some", fits)
    assert sorted(np.concatenate([held for _, _, held in fits.calls])) == list(range(EXAMPLES))
    for fold, rest, held in fits.calls:
        assert not set(rest) & set(held)
        assert len(rest) + len(held) == EXAMPLES
        assert set(task.folds()[held]) == {fold}
    assert found.values.dtype == np.float32
    assert np.allclose(found.values.sum(1), 1, atol=1e-6)


def test_what_is_kept_is_used_for_the_same_labels_alone(tmp_path: Path) -> None:
    task, fits = planted(tmp_path)[0], Fits()
    first = out_of_fold(task, "some", fits)
    again = out_of_fold(task, "some", fits)
    assert len(fits.calls) == 5
    assert np.array_equal(first.values, again.values)
    assert again.seconds == first.seconds
    assert again.origin == {"command": "made here"}
    changed = Task(task.pictures, (task.labels + 1) % CLASSES, task.seed, task.noise, task.tell)
    out_of_fold(changed, "some", fits)
    assert len(fits.calls) == 10
    other = Task(task.pictures, task.labels, task.seed, "another", task.tell)
    assert other.file("some") != task.file("some") != task.file("other")


def test_scores_are_those_of_cleanlab(tmp_path: Path) -> None:
    rank = pytest.importorskip("cleanlab.rank")
    task = planted(tmp_path)[0]
    found = out_of_fold(task, "some", Fits())
    outcomes = cleanlab_outcomes(task, "some", found, uses_features=True)
    given = found.values[np.arange(EXAMPLES), task.labels]
    others = found.values.copy()
    others[np.arange(EXAMPLES), task.labels] = -1
    by_hand = {"some-confidence": given, "some-margin": (given - others.max(1) + 1) / 2}
    methods = {"some-confidence": "self_confidence", "some-margin": "normalized_margin"}
    assert outcomes.keys() == by_hand.keys()
    for name, quality in by_hand.items():
        assert np.allclose(outcomes[name].suspicion, 1 - quality, atol=1e-6)
        own = rank.get_label_quality_scores(task.labels, found.values, method=methods[name])
        assert np.array_equal(outcomes[name].suspicion, 1 - np.asarray(own, dtype=np.float64))
        assert outcomes[name].seconds > found.seconds


def test_without_cleanlab_the_probabilities_are_there_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    task = planted(tmp_path)[0]
    task = Task(task.pictures, task.labels, task.seed, task.noise, told.append)
    monkeypatch.setattr(kept, "find_spec", lambda name: None)
    assert cleanlab_outcomes(task, "some", out_of_fold(task, "some", Fits()), uses_features=False) == {}
    assert task.file("some").is_file()
    assert "sgoif-bench[cleanlab]" in told[-1]


def test_features_are_computed_once_and_for_the_same_data(tmp_path: Path) -> None:
    first = pictures(tmp_path)
    made = first.features
    assert first.file.is_file()
    second = pictures(tmp_path)
    assert second.features.seconds == made.seconds
    assert np.array_equal(second.features.value, made.value)
    assert np.array_equal(made.value, first.features_of(first.data.images).half().float())
    data = colours()
    turned = LabelledData(data.name, data.images, (data.labels + 1) % CLASSES, data.classes, data.rows)
    third = pictures(tmp_path, turned)
    assert third.file == first.file
    assert third.features.seconds != made.seconds
