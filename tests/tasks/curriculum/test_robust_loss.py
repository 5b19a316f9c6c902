"""A robust loss: as far as labels are wrong at random, and no further."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curriculum_cases import CLASSES, COUNT, Blobs, Run, blobs
from torch import Tensor

from sgoif.errors import SettingError, StateError
from sgoif.tasks import Curriculum
from sgoif.tasks.curriculum import robust_loss
from sgoif.tasks.curriculum.robust_loss import RobustWeighting, robustness

EVEN, ONES = np.full(CLASSES, 200.0), np.ones(8)


def train(run: Run, curriculum: Curriculum, first: int, last: int) -> None:
    """With the loss of the curriculum, from one epoch up to another."""
    for epoch in range(first, last):
        for index in run.batches(epoch):
            step(run, curriculum, index)


def step(run: Run, curriculum: Curriculum, index: Tensor) -> Tensor:
    x, y = run.data.x[index], torch.from_numpy(run.data.given)[index]
    weights = curriculum.weights(index)
    with run.monitor.step(index, target=y, weights=weights):
        curriculum.loss(index, y, run.model(x)).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    return weights


def labels_of(run: Run) -> Tensor:
    return torch.from_numpy(run.data.given)


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs(rate=0.4)


@pytest.fixture(scope="module")
def trained(noisy: Blobs) -> tuple[Run, Curriculum]:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, robust=True)
    train(run, curriculum, 0, 6)
    return run, curriculum


# How much of it


def test_nothing_is_robust_where_noise_is_structured_doubtful_or_a_class_is_rare() -> None:
    assert robustness(1.0, 1.0, EVEN, ONES) == RobustWeighting(1.0, 0.0)
    assert robustness(0.0, 1.0, EVEN, ONES) == RobustWeighting(0.0, 1.0)
    assert robustness(1.0, 0.0, EVEN, ONES).share == 0
    assert robustness(1.0, 1.0, np.array([397.0, 1.0, 1.0, 1.0]), ONES).share == pytest.approx(0.01)
    weights = np.array([0.25, 1.0, 1.75])
    expected = 0.9 * 0.5 * 0.5, 0.5, 3 / (0.5 + 1 + np.sqrt(1.75))
    assert robustness(0.9, 0.5, np.array([100.0, 300.0]), weights) == pytest.approx(expected)


def test_a_class_that_nobody_has_does_not_count() -> None:
    assert robustness(1.0, 1.0, np.array([200.0, 200.0, 0.0]), ONES).share == 1
    assert robustness(1.0, 1.0, np.zeros(3), ONES).share == 0


def test_parts_have_the_mean_of_the_weights_and_follow_them_less_the_franker_the_network() -> None:
    weights = torch.tensor([0.02, 0.5, 1.0, 2.48])
    for power in (0.0, 0.4, 1.0):
        usual, rest = RobustWeighting(0.7, power, 1 / float((weights**power).mean())).parts(weights)
        torch.testing.assert_close(usual, 0.3 * weights)
        assert float((usual + rest).mean()) == pytest.approx(1, abs=1e-6)
        torch.testing.assert_close(rest / rest[2], weights**power)
    usual, rest = RobustWeighting().parts(weights)
    assert torch.equal(usual, weights)
    assert not rest.any()


# In the loop


def test_the_loss_is_what_the_formula_says(trained: tuple[Run, Curriculum]) -> None:
    run, curriculum = trained
    entry, index = curriculum.history[-1], torch.from_numpy(run.data.rows[:40])
    share, power, _ = curriculum.robust
    assert (share, power) == (entry["robust_share"], entry["robust_power"])
    assert share > 0.2
    weights = curriculum.state_dict()["weights"]
    judged = weights[run.data.rows]
    level = judged.mean() / (judged**power).mean()
    usual, rest = (1 - share) * weights[index], share * level * weights[index] ** power
    torch.manual_seed(1)
    logits, labels = torch.randn(40, CLASSES), labels_of(run)[index]
    p = logits.softmax(1)[torch.arange(40), labels]
    expected = (usual * -p.log() + rest * (0.1 * -p.log() + 4 * (1 - p))).mean()
    assert float(curriculum.loss(index, labels, logits)) == pytest.approx(float(expected), rel=1e-5)
    rounded = curriculum.loss(index, labels, logits.bfloat16())  # as under autocast
    assert rounded.dtype == torch.float32
    assert float(rounded) == pytest.approx(float(curriculum.loss(index, labels, logits.bfloat16().float())))
    torch.testing.assert_close(torch.from_numpy(curriculum.values()).float()[index], usual + rest)


def test_weights_are_what_labels_count_in_all(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, robust=True)
    train(run, curriculum, 0, 5)
    index = next(run.batches(9))
    shown = step(run, curriculum, index)
    np.testing.assert_allclose(shown.numpy(), curriculum.values(COUNT)[index.numpy()], rtol=1e-6)
    assert curriculum.values(COUNT)[run.data.rows].mean() == pytest.approx(1, abs=1e-3)
    state = curriculum.state_dict()["weights"].numpy()
    wrong = run.data.wrong[: len(state)]
    assert state[wrong].mean() < curriculum.values(len(state))[wrong].mean()  # in part every label counts


def test_the_monitor_sees_as_much_of_every_label_as_counts(trained: tuple[Run, Curriculum]) -> None:
    """What is learned by the whole loss, divided by v: no label looks harmless because its weight is gone."""
    run, curriculum = trained
    index = torch.from_numpy(run.data.rows[:50])
    labels, logits = labels_of(run)[index], run.model(run.data.x[index]).detach().requires_grad_()
    curriculum.loss(index, labels, logits).backward()
    assert logits.grad is not None
    values = torch.from_numpy(curriculum.values(COUNT)).float()[index]
    strength = 50 * logits.grad.norm(dim=1) / values
    p = logits.detach().softmax(1)[torch.arange(50), labels]
    assert float((strength / ((0.1 + 4 * p) * (1 - p)).clamp_min(1e-3)).median()) == pytest.approx(1, abs=0.5)


def test_without_the_setting_it_is_weighed_cross_entropy(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 6, curriculum.weights)
    assert curriculum.history[-1]["robust_share"] > 0.2  # it could be
    assert curriculum.robust == RobustWeighting()
    index = torch.from_numpy(noisy.rows[:40])
    logits, labels = torch.randn(40, CLASSES), labels_of(run)[index]
    weights = torch.from_numpy(curriculum.values(COUNT)).float()[index]
    expected = (F.cross_entropy(logits, labels, reduction="none") * weights).mean()
    torch.testing.assert_close(curriculum.loss(index, labels, logits), expected)


def test_flips_that_follow_classes_are_weighed_as_ever() -> None:
    data = blobs(rate=0.0)
    flipped = np.random.default_rng(1).random(COUNT) < 0.3
    given = np.where(flipped, (data.true + 1) % CLASSES, data.true)
    ends = []
    for setting in (False, True):
        run = Run(Blobs(data.x, data.true, given))
        curriculum = Curriculum(run.monitor, warm_up=2, robust=setting)
        train(run, curriculum, 0, 6)
        ends.append(curriculum.values(COUNT))
        assert curriculum.history[-1]["robust_share"] < 0.02
    assert np.abs(ends[0] - ends[1]).mean() < 0.03


def test_examples_that_nobody_judged_count_as_one(trained: tuple[Run, Curriculum]) -> None:
    _, curriculum = trained
    usual, rest = curriculum._loss_weights(np.array([COUNT - 1 + 50]))
    assert rest is not None
    assert float(usual + rest) == pytest.approx(1, abs=0.2)


# Mistakes


def test_a_robust_curriculum_whose_loss_is_not_used_says_so(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, robust=True)
    with pytest.warns(UserWarning, match=r"Train with curriculum\.loss"):
        run.epochs(0, 4, curriculum.weights)
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, robust=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(run, curriculum, 0, 4)


def test_what_cannot_be_robust_is_refused(noisy: Blobs, trained: tuple[Run, Curriculum]) -> None:
    run, curriculum = trained
    for setting in (1, 0.5, "yes", None):
        with pytest.raises(SettingError, match="expected True or False"):
            Curriculum(Run(noisy).monitor, robust=setting)
    index = torch.from_numpy(noisy.rows[:5])
    with pytest.raises(SettingError, match="a tensor of shape"):
        curriculum.loss(index, labels_of(run)[index], torch.zeros(5, CLASSES + 1))


# State


def test_a_resumed_run_ends_where_the_other_does(noisy: Blobs, tmp_path: Path) -> None:
    whole = Run(noisy)
    curriculum = Curriculum(whole.monitor, warm_up=2, robust=True)
    train(whole, curriculum, 0, 4)
    whole.monitor.save(tmp_path / "monitor.npz")
    curriculum.save(tmp_path / "curriculum.npz")
    model, optimizer = (deepcopy(part.state_dict()) for part in (whole.model, whole.optimizer))
    train(whole, curriculum, 4, 6)

    resumed = Run(noisy)
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    resumed.monitor.load(tmp_path / "monitor.npz")
    again = Curriculum(resumed.monitor, warm_up=2, robust=True)
    again.load(tmp_path / "curriculum.npz")
    train(resumed, again, 4, 6)
    assert np.array_equal(again.values(), curriculum.values())
    assert again.robust == curriculum.robust
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_states_that_do_not_fit_are_refused(noisy: Blobs, trained: tuple[Run, Curriculum]) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 4, curriculum.weights)
    state = curriculum.state_dict()
    history = [
        {name: value for name, value in entry.items() if not name.startswith("robust")} for entry in state["history"]
    ]
    with pytest.raises(StateError, match="was saved with"):
        trained[1].load_state_dict(state)
    whole = trained[1].state_dict()
    values, share = trained[1].values(), trained[1].robust
    with pytest.raises(StateError, match="incomplete"):
        trained[1].load_state_dict({**whole, "history": history})
    assert np.array_equal(trained[1].values(), values)
    assert trained[1].robust == share


def test_a_robust_loss_withstands_what_cross_entropy_does_not() -> None:
    """The pull of a label that the network is sure is wrong: bounded, and near nothing."""
    logits = torch.tensor([[12.0, 0.0, 0.0]], requires_grad=True)
    wrong = torch.tensor([1])
    (gradient,) = torch.autograd.grad(robust_loss.symmetric_cross_entropies(logits, wrong), logits)
    (usual,) = torch.autograd.grad(F.cross_entropy(logits, wrong), logits)
    assert float(gradient.abs().max()) < 0.11 < 0.99 < float(usual.abs().max())
