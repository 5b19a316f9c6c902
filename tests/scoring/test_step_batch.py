"""What steps leave behind, and how steps that left different things are made alike."""

from __future__ import annotations

import numpy as np
import torch

from sgoif.core.objective import Classification
from sgoif.scoring.step_batch import Observation, make_alike

CLASSES = 3
LABELS = torch.tensor([2, 0])


def a_step(dtype: torch.dtype = torch.float32, **given: torch.Tensor | int | None) -> Observation:
    """Two examples of classes 2 and 0 whose labels can be read off the gradient."""
    logits = torch.tensor([[0.3, -0.2, 0.1], [1.0, 0.5, -0.5]], dtype=dtype)
    delta = logits.float().softmax(1) - torch.eye(CLASSES)[LABELS]
    known = {"response": None, "target": None, **given}
    return Observation(np.arange(2), logits, delta.to(dtype), torch.ones(2, 7), delta, **known)  # type: ignore[arg-type]


def test_layers_below_the_head_that_were_left_out_say_nothing() -> None:
    steps = [a_step(torch.float16), a_step(response=torch.ones(2)), a_step()]
    make_alike(steps, Classification(CLASSES))
    assert [step.response.tolist() for step in steps if step.response is not None] == [[0, 0], [1, 1], [0, 0]]
    assert {step.response.dtype for step in steps if step.response is not None} == {torch.float32}
    assert all(step.target is None and step.label is None for step in steps)


def test_targets_that_one_step_has_are_read_off_the_gradients_of_the_others() -> None:
    steps = [a_step(), a_step(target=torch.tensor([1, 1])), a_step(torch.float16)]
    make_alike(steps, Classification(CLASSES))
    assert [step.target.tolist() for step in steps if step.target is not None] == [[2, 0], [1, 1], [2, 0]]
    assert all(step.response is None and step.label is None for step in steps)


def test_labels_beside_a_mixture_make_mixtures_of_the_others() -> None:
    mixture = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    steps = [a_step(), a_step(target=mixture, label=torch.tensor([0, 2])), a_step(target=torch.tensor([1, 0]))]
    make_alike(steps, Classification(CLASSES))
    assert [step.label.tolist() for step in steps if step.label is not None] == [[2, 0], [0, 2], [1, 0]]
    expected = [torch.eye(CLASSES)[LABELS], mixture, torch.eye(CLASSES)[[1, 0]]]
    for step, target in zip(steps, expected, strict=True):
        torch.testing.assert_close(step.target, target)


def test_steps_that_left_the_same_stay_as_they_are() -> None:
    for given in ({}, {"response": torch.ones(2)}, {"target": LABELS}, {"target": torch.eye(3)[:2], "label": LABELS}):
        steps = [a_step(**given), a_step(**given)]
        make_alike(steps, Classification(CLASSES))
        for step in steps:
            for name in ("response", "target", "label"):
                assert getattr(step, name) is given.get(name)


def test_a_step_knows_whether_its_logits_were_written_into() -> None:
    step, foreign = a_step(version=0), a_step(version=None)
    assert not step.overwritten
    copied = step.copied()
    for each in (step, foreign):
        each.logits.zero_()
    assert step.overwritten
    assert not foreign.overwritten
    assert copied.version is None
    assert not copied.overwritten
    assert copied.logits[1, 0] == 1.0


def test_the_memory_of_an_example_is_that_of_its_tensors() -> None:
    assert a_step().bytes_per_example == 4 * (3 + 3 + 7 + 3)
    assert a_step(torch.float16).bytes_per_example == 2 * (3 + 3) + 4 * (7 + 3)
