"""Mistakes: each is explained by an error that says what to do, and the loop goes on afterwards."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from mistake_cases import BATCH, CLASSES, TRAINING, Loop, same
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from sgoif import InfluenceMonitor, SgoifError, indexed, split_holdout
from sgoif.errors import (
    AnchorError,
    DeviceError,
    IndexingError,
    LayerError,
    NonFiniteError,
    SettingError,
    StepError,
)
from sgoif.tasks import Curriculum
from sgoif.tracking.validation import check_index


@pytest.fixture
def loop() -> Loop:
    return Loop()


# --- indices ----------------------------------------------------------------------------------------------------

BAD_INDICES = {
    "missing": (None, r"indexed\(train_set\)"),
    "duplicated": (torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 3]), "index 3 appears 2 times.*allow_duplicates=True"),
    "negative": (torch.arange(BATCH) - 1, "index -1 is out of range"),
    "float": (torch.rand(BATCH), "whole numbers; got float32"),
    "bool": (torch.ones(BATCH, dtype=torch.bool), "whole numbers; got bool"),
    "text": ([str(i) for i in range(BATCH)], "whole numbers"),
    "two axes": (torch.arange(BATCH).view(2, 5), r"shape \(2, 5\)"),
    "ragged": ([[1, 2], [3]], "whole numbers"),
    "empty": ([], "whole numbers"),
    "none at all": (torch.zeros(0, dtype=torch.long), "at least one"),
    "too few": (torch.arange(BATCH - 1), "9 indices were given but the layer '2' saw 10 examples"),
    "too many": (torch.arange(BATCH + 1), "11 indices were given but the layer '2' saw 10 examples"),
    "one for two views": (torch.arange(BATCH // 2), r"saw 10 examples.*index\.repeat\(2\).*allow_duplicates=True"),
    "absurd": (torch.arange(BATCH) + 2**40, "out of range"),
}


@pytest.mark.parametrize("mistake", BAD_INDICES)
def test_bad_indices(loop: Loop, mistake: str) -> None:
    index, message = BAD_INDICES[mistake]
    before = loop.state()
    with pytest.raises(IndexingError, match=message), loop.monitor.step(index):
        loop.loss().backward()
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_an_index_beyond_the_known_size() -> None:
    loop = Loop(size=TRAINING)
    before = loop.state()
    with pytest.raises(IndexingError, match="index 60 is out of range: the training set was said to have 60"):
        loop.attempt(lambda: loop.loss().backward(), torch.arange(BATCH) + TRAINING - BATCH + 1)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


@pytest.mark.parametrize("first", [-BATCH, -TRAINING, -TRAINING - 1, -2 * TRAINING, -(2**40)])
def test_a_negative_index_is_never_counted_from_the_end(first: int) -> None:
    loop, spared = Loop(size=TRAINING, steps=2), Loop(size=TRAINING, steps=2)
    with pytest.raises(IndexingError, match=f"index {first} is out of range"):
        loop.attempt(lambda: loop.loss().backward(), torch.arange(BATCH) + first)
    loop.optimizer.zero_grad()
    for _ in range(3):
        loop.step()
        spared.step()
    for name in ("n_observations", "influence", "margin"):
        np.testing.assert_allclose(loop.monitor.scores()[name], spared.monitor.scores()[name], rtol=1e-5)


@pytest.mark.parametrize(
    "index", [range(3), [0, 1, 2], (0, 1, 2), np.arange(3), np.arange(3, dtype=np.uint8), torch.arange(3).int()]
)
def test_every_usual_kind_of_index_is_taken(index) -> None:
    np.testing.assert_array_equal(check_index(index, 10, False), [0, 1, 2])
    np.testing.assert_array_equal(check_index(2, 10, False), [2])


def test_allowed_duplicates_count_every_time() -> None:
    """A batch in which an example comes twice gives what two steps at the same weights give."""
    rows = torch.tensor([0, 1, 2, 3, 3, 3])
    options = {"temperature": None, "weigh_steps": False, "refresh_every": 100, "help_weight": 1.0}
    twice = Loop(allow_duplicates=True, steps=0, **options)
    with twice.monitor.step(rows):
        twice.loss(rows).backward()
    table = twice.monitor.scores()
    assert dict(zip(table["index"].tolist(), table["n_observations"].tolist(), strict=True)) == {0: 1, 1: 1, 2: 1, 3: 3}
    raw = twice.monitor.last
    assert table["influence"][3] == pytest.approx(float(raw.influence[3:].mean()), rel=1e-5)
    worst = raw.groups[3:].mean(0).argmax()
    assert table["group"][3] == int(worst)
    twice.assert_goes_on()


# --- what a step must contain -----------------------------------------------------------------------------------


def test_no_backward(loop: Loop) -> None:
    before = loop.state()
    with pytest.raises(StepError, match=r"without a backward pass.*loss\.backward\(\)"):
        loop.attempt(loop.loss)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_no_forward(loop: Loop) -> None:
    before = loop.state()
    with pytest.raises(StepError, match=r"layer '2' did not run.*model\(x\), inside"):
        loop.attempt(lambda: None)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_evaluation_instead_of_training(loop: Loop) -> None:
    with pytest.raises(StepError, match="backward"), loop.monitor.step(loop.rows()), torch.no_grad():
        loop.loss()
    loop.assert_goes_on()


def test_a_copy_of_the_model(loop: Loop) -> None:
    import copy

    model = copy.deepcopy(loop.model)
    model[2]._forward_hooks.clear()
    with pytest.raises(StepError, match="make the monitor last"), loop.monitor.step(loop.rows()):
        nn.functional.cross_entropy(model(loop.inputs[loop.rows()]), loop.labels[loop.rows()]).backward()
    loop.assert_goes_on()


def test_two_forward_passes(loop: Loop) -> None:
    before = loop.state()
    with pytest.raises(LayerError, match=r"'2' ran twice in one step.*one forward pass per step"):
        loop.attempt(lambda: (loop.loss() + loop.loss()).backward())
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_a_step_inside_a_step(loop: Loop) -> None:
    before = loop.state()
    with pytest.raises(StepError, match="already open"):
        loop.attempt(lambda: loop.attempt(lambda: loop.loss().backward()))
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_an_error_of_the_user_passes_through(loop: Loop) -> None:
    def broken() -> None:
        loop.loss().backward()
        _ = 1 / 0

    before = loop.state()
    with pytest.raises(ZeroDivisionError):
        loop.attempt(broken)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_a_closed_monitor(loop: Loop) -> None:
    loop.monitor.close()
    before = loop.monitor.scores()["influence"]
    with pytest.raises(StepError, match="closed"), loop.monitor.step(loop.rows()):
        loop.loss().backward()
    np.testing.assert_array_equal(loop.monitor.scores()["influence"], before)
    loop.loss().backward()  # training itself is not touched
    loop.monitor.close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.zeros(BATCH - 1, dtype=torch.long), r"shape \(10,\)"),
        (torch.zeros(BATCH, CLASSES, dtype=torch.long), "one class number per example"),
        (torch.zeros(BATCH), "float32"),
        (torch.full((BATCH,), CLASSES), "labels from 3 to 3; the model has 3"),
        (torch.full((BATCH,), -1), "labels from -1"),
    ],
)
def test_a_target_that_does_not_fit(loop: Loop, target: torch.Tensor, message: str) -> None:
    before = loop.state()
    with pytest.raises(StepError, match=message), loop.monitor.step(loop.rows(), target=target):
        loop.loss().backward()
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_every_error_is_one_of_ours_and_of_a_usual_kind() -> None:
    kinds = {
        SettingError: ValueError,
        LayerError: ValueError,
        IndexingError: ValueError,
        AnchorError: ValueError,
        StepError: RuntimeError,
        DeviceError: RuntimeError,
        NonFiniteError: FloatingPointError,
    }
    for error, usual in kinds.items():
        assert issubclass(error, SgoifError)
        assert issubclass(error, usual)


# --- habits of loops that are no mistakes -----------------------------------------------------------------------


def test_a_batch_buffer_that_is_used_again_does_not_change_scores() -> None:
    """Scoring waits for several steps; what it reads must not be what the next batch overwrites."""
    inputs, labels = torch.randn(40, 5), torch.arange(40) % CLASSES
    tables = []
    for reuse in (False, True):
        torch.manual_seed(3)
        model = nn.Linear(5, CLASSES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = InfluenceMonitor(model, optimizer, anchors=(inputs[30:], labels[30:]), refresh_every=100)
        buffer = torch.empty(10, 5)
        for start in (0, 10, 20):
            rows = torch.arange(start, start + 10)
            batch = buffer.copy_(inputs[rows]) if reuse else inputs[rows]
            with monitor.step(rows):
                nn.functional.cross_entropy(model(batch), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        tables.append(monitor.scores()["influence"])
    np.testing.assert_array_equal(*tables)


# --- numbering ----------------------------------------------------------------------------------------------------


def held_out_loop(dataset, holdout, curriculum: bool = False) -> list[str]:
    """Warnings of two steps over a data set."""
    model = nn.Linear(5, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, anchors=holdout)
    if curriculum:
        Curriculum(monitor).finished = True
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _, (x, y, index) in zip(range(2), DataLoader(indexed(dataset), batch_size=20), strict=False):
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
    return [str(entry.message) for entry in seen if entry.filename == __file__]


def test_indices_of_held_out_examples_are_noticed_once() -> None:
    data = TensorDataset(torch.randn(80, 5), torch.arange(80) % CLASSES)
    train, holdout = split_holdout(data, share=0.4)
    assert held_out_loop(train, holdout) == []
    again = held_out_loop(Subset(train, range(len(train))), holdout)
    assert len(again) == 1
    assert f"index {holdout.indices[0]} of this step belongs to a held-out example" in again[0]
    assert held_out_loop(data, holdout, curriculum=True) == []
    assert held_out_loop(data, (torch.randn(6, 5), torch.arange(6) % CLASSES)) == []
