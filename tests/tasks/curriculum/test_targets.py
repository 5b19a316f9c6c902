"""Targets of the last epochs: doubted labels give way to the network's own answers, and only those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curriculum_cases import CLASSES, Blobs, Run, blobs, finished_curriculum

from sgoif.errors import IndexingError, SgoifError, StateError, StepError
from sgoif.tasks import Curriculum
from sgoif.tasks.curriculum.targets import blend_targets, doubt_by_index, one_hot_answers


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs()


@pytest.fixture(scope="module")
def finished(noisy: Blobs) -> Curriculum:
    return finished_curriculum(noisy)


def test_what_is_given_up_goes_to_the_answer() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 5.0]], requires_grad=True)
    found = blend_targets(torch.tensor([0, 0, 1]), torch.tensor([0.25, 0.9, 1.0]), one_hot_answers(logits))
    assert not found.requires_grad
    expected = torch.tensor([[0.75, 0.25, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(found, expected)


def test_doubts_are_zero_where_nobody_was_judged() -> None:
    assert doubt_by_index(np.array([3, 1]), np.array([0.5, 0.25])).tolist() == [0, 0.25, 0, 0.5]
    assert doubt_by_index(np.zeros(0, dtype=np.int64), np.zeros(0)).tolist() == []


def test_wrong_labels_are_replaced_and_right_ones_are_not(noisy: Blobs, finished: Curriculum) -> None:
    everything, given = torch.arange(len(noisy.x)), torch.from_numpy(noisy.given)
    right = 10.0 * F.one_hot(torch.from_numpy(noisy.true), CLASSES)
    targets = finished.targets(everything, given, right)
    assert targets.dtype == torch.float32
    torch.testing.assert_close(targets.sum(1), torch.ones(len(everything)))
    kept = targets[everything, given].numpy()
    assert kept[noisy.wrong].mean() < 0.35
    assert (kept[~noisy.wrong] == 1).all()  # whatever was doubted, the network answers with the label

    # A network that answers with another class changes next to nothing where the label is not in doubt.
    other = F.one_hot((torch.from_numpy(noisy.true) + 1) % CLASSES, CLASSES).float()
    assert finished.targets(everything, given, other)[everything, given].numpy()[~noisy.wrong].mean() > 0.85


def test_held_out_examples_have_targets_too(noisy: Blobs, finished: Curriculum) -> None:
    held = np.asarray(noisy.held_out.indices)
    assert finished.doubt is not None
    doubt, wrong = finished.doubt.numpy()[held], noisy.wrong[held]
    assert doubt[wrong].mean() > 0.4 + doubt[~wrong].mean()


def test_targets_come_after_the_end_only(noisy: Blobs) -> None:
    curriculum = Curriculum(Run(noisy).monitor)
    with pytest.raises(SgoifError, match="finish"):
        curriculum.targets([0], torch.tensor([0]), torch.zeros(1, CLASSES))
    curriculum.finish()  # before anything was seen: labels stay as they are
    given = torch.tensor([2, 1])
    assert torch.equal(curriculum.targets([0, 5], given, torch.zeros(2, CLASSES)), F.one_hot(given, CLASSES).float())


@pytest.mark.parametrize(
    ("index", "labels", "error"),
    [([10**6], torch.tensor([0]), IndexingError), ([0], torch.tensor([0, 1]), StepError)],
)
def test_mistakes_are_named(finished: Curriculum, index: Any, labels: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        finished.targets(index, labels, torch.zeros(1, CLASSES))


def test_a_resumed_run_has_the_same_targets(noisy: Blobs, finished: Curriculum, tmp_path: Path) -> None:
    finished.save(tmp_path / "curriculum.npz")
    resumed = Curriculum(Run(noisy).monitor, warm_up=2)
    resumed.load(tmp_path / "curriculum.npz")
    assert resumed.doubt is not None
    assert finished.doubt is not None
    assert torch.equal(resumed.doubt, finished.doubt)
    for damaged in (torch.tensor([0.5, 1.5]), torch.tensor([float("nan")]), torch.zeros(2, 2)):
        with pytest.raises(StateError, match="damaged"):
            resumed.load_state_dict({**finished.state_dict(), "doubt": damaged})
