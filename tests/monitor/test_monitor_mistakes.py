"""Mistakes: each is explained by an error that says what to do, and the loop goes on afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from sgoif import InfluenceMonitor, Settings, SgoifError, indexed, split_holdout
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
from sgoif.tracking.validation import check_finite, check_index

CLASSES, TRAINING, BATCH = 3, 60, 10


class Loop:
    """A training loop around a monitor that has scored one step already."""

    def __init__(self, model: nn.Module | None = None, steps: int = 1, **options) -> None:
        torch.manual_seed(1)
        self.inputs, self.labels = torch.randn(80, 5), torch.arange(80) % CLASSES
        self.model = model or nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        anchors = (self.inputs[TRAINING:], self.labels[TRAINING:])
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors=anchors, **options)
        self.done = 0
        for _ in range(steps):
            self.step()

    def rows(self) -> torch.Tensor:
        return (torch.arange(BATCH) + BATCH * self.done) % TRAINING

    def loss(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.rows() if rows is None else rows
        return nn.functional.cross_entropy(self.model(self.inputs[rows]), self.labels[rows])

    def step(self) -> None:
        """One correct step."""
        with self.monitor.step(self.rows()):
            self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def attempt(self, body: Callable[[], object], index=None, **options) -> None:
        """One step around any body."""
        with self.monitor.step(self.rows() if index is None else index, **options):
            body()

    def state(self) -> dict:
        return self.monitor.state_dict()

    def assert_goes_on(self) -> None:
        """The next correct step works, is scored, and nothing else has left a trace."""
        steps, seen = self.monitor.steps, self.monitor.scores()["n_observations"].sum()
        self.optimizer.zero_grad()
        rows = self.rows()
        self.step()
        assert self.monitor.steps == steps + 1
        table = self.monitor.scores()
        assert table["n_observations"].sum() == seen + BATCH
        scored = dict(zip(table["index"].tolist(), table["influence"].tolist(), strict=True))
        assert all(np.isfinite(scored[row]) for row in rows.tolist())
        assert bool(self.monitor.last.influence.isfinite().all())


@pytest.fixture
def loop() -> Loop:
    return Loop()


def same(one: dict, other: dict) -> list[str]:
    """Keys in which two states differ, apart from the time that was spent."""
    differ = []
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        equal = torch.equal(a.nan_to_num(7), b.nan_to_num(7)) if tensors else repr(a) == repr(b)
        if not equal and key != "cadence.times":
            differ.append(key)
    return sorted(differ)


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
    options = {"temperature": None, "competence": False, "refresh_every": 100, "help_weight": 1.0}
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


# --- numbers that are none --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["loss", "input", "one input"])
def test_a_loss_that_is_not_finite(loop: Loop, value: float, where: str) -> None:
    before = loop.state()
    inputs = loop.inputs[loop.rows()].clone()
    inputs[: {"loss": 0, "input": BATCH, "one input": 1}[where]] = value

    def broken() -> None:
        loss = nn.functional.cross_entropy(loop.model(inputs), loop.labels[loop.rows()])
        (loss * (value if where == "loss" else 1)).backward()

    with pytest.raises(NonFiniteError, match=r"infinite or not a number.*learning rate.*skip_nonfinite=True"):
        loop.attempt(broken)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [True, False])
def test_skip_nonfinite_drops_the_step(value: float, first: bool) -> None:
    """The scores of a run with a broken step in it are those of the run without that step."""
    options = {"refresh_every": 2, "curvature_every": 1, "skip_nonfinite": True}
    loop, plain = Loop(steps=0 if first else 3, **options), Loop(steps=0 if first else 3, **options)
    with loop.monitor.step(loop.rows()):
        (loop.loss() * value).backward()
    loop.optimizer.zero_grad()
    assert loop.monitor.scores()["n_observations"].sum() == (0 if first else 3 * BATCH)
    plain.monitor.scores()  # scores what waits, as above
    differ = same(loop.state(), plain.state())
    assert [key for key in differ if key not in ("steps", "cadence.counts", "history")] == []
    for _ in range(3):
        loop.assert_goes_on()
    table = loop.monitor.scores()
    assert table["n_observations"].max() == 1
    assert np.isfinite(table["influence"]).all()


def half_loop(**options) -> Loop:
    """A loop under float16 autocast, as mixed precision with a loss scaler runs."""

    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 8), nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return self.head(torch.relu(self.body(x)))

    class HalfLoop(Loop):
        def loss(self, rows: torch.Tensor | None = None) -> torch.Tensor:
            rows = self.rows() if rows is None else rows
            logits = self.model(self.inputs[rows])
            assert logits.dtype == torch.float16
            return nn.functional.cross_entropy(logits.float(), self.labels[rows])

    torch.manual_seed(1)
    return HalfLoop(Autocast(), **options)


def test_the_overflow_of_a_loss_scaler_passes_quietly() -> None:
    loop = half_loop()
    assert loop.monitor.last is not None
    seen = loop.monitor.scores()["n_observations"].sum()
    with loop.monitor.step(loop.rows()):
        (loop.loss() * 2.0**40).backward()  # every gradient overflows in float16
    assert loop.monitor.scores()["n_observations"].sum() == seen, "nothing of it is scored"
    loop.assert_goes_on()


def test_a_partial_overflow_does_not_scale_the_other_examples_up() -> None:
    calm, loop = half_loop(refresh_every=100), half_loop(refresh_every=100)
    with calm.monitor.step(calm.rows()):
        (calm.loss() * 1024).backward()
    with loop.monitor.step(loop.rows()):
        logits = loop.model(loop.inputs[loop.rows()])
        losses = nn.functional.cross_entropy(logits.float(), loop.labels[loop.rows()], reduction="none")
        (losses * torch.tensor([1e9] + [1024.0] * (BATCH - 1)) / BATCH).sum().backward()
    expected, found = calm.monitor.last.influence, loop.monitor.last.influence
    assert not bool(found[0].isfinite())
    torch.testing.assert_close(found[1:], expected[1:], rtol=2e-2, atol=1e-4)


def test_only_float16_may_overflow() -> None:
    flag, logits = torch.zeros(()), torch.zeros(2, 3)
    infinite = torch.full((2, 3), float("inf"))
    check_finite(logits, infinite.half(), flag, False)
    check_finite(logits, infinite, flag, True)
    for delta in (
        infinite,
        infinite.bfloat16(),
        torch.full((2, 3), float("nan")),
        torch.full((2, 3), float("nan")).half(),
    ):
        with pytest.raises(NonFiniteError):
            check_finite(logits, delta, flag, False)
    with pytest.raises(NonFiniteError):
        check_finite(infinite, torch.zeros(2, 3), flag, False)
    with pytest.raises(NonFiniteError):
        check_finite(torch.tensor([[float("inf"), float("-inf")]]), torch.zeros(1, 2), flag, False)


def test_large_but_finite_numbers_are_not_mistaken_for_infinite_ones() -> None:
    flag = torch.zeros(())
    check_finite(torch.full((512, 1000), 1e30), torch.full((512, 1000), 1e-3), flag, False)


# --- devices and types ------------------------------------------------------------------------------------------


def test_a_model_that_runs_elsewhere_than_the_monitor(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loop.state()
    monkeypatch.setattr(loop.monitor.pipeline, "device", torch.device("cuda", 1))
    with pytest.raises(DeviceError, match=r"ran on cpu but the monitor was made on cuda:1.*Move the model first"):
        loop.attempt(lambda: loop.loss().backward())
    monkeypatch.undo()
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_that_is_converted_while_it_trains(layers: str, dtype: torch.dtype) -> None:
    loop, alone = Loop(steps=3, layers=layers, refresh_every=1), Loop(steps=3, layers=layers, refresh_every=1)
    alone.monitor.close()
    for each in (loop, alone):
        each.model.to(dtype)
        each.inputs = each.inputs.to(dtype)
    said = rf"converted from torch.float32 to {dtype} .*Convert it back with model.to\(torch.float32\), or make a new"
    with pytest.raises(StepError, match=said):
        loop.attempt(lambda: loop.loss().backward())
    with pytest.raises(StepError, match=said):
        loop.monitor.refresh()
    # The gradients of the step that could not be scored are there, and training goes on beside the monitor.
    alone.loss().backward()
    for _ in range(3):
        for each in (loop, alone):
            each.optimizer.step()
            each.optimizer.zero_grad()
            each.loss().backward()
    for mine, other in zip(loop.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    loop.model.float()
    loop.inputs = loop.inputs.float()
    loop.optimizer.zero_grad()
    loop.assert_goes_on()


def test_a_model_of_whole_numbers_may_be_converted_while_it_trains() -> None:
    loop = Loop()
    loop.inputs, loop.model = torch.randint(0, 10, (80, 2)), tokens()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    anchors = (loop.inputs[TRAINING:], loop.labels[TRAINING:])
    loop.monitor = InfluenceMonitor(loop.model, loop.optimizer, anchors, layers="all", refresh_every=1)
    loop.step()
    loop.model.double()
    loop.assert_goes_on()


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_model_that_is_moved_while_it_trains(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(steps=3, layers=layers)
    loop.monitor.flush()
    before, weights = loop.state(), deepcopy(loop.model.state_dict())
    # The weights stay the same objects, as they do between devices that hold something.
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    loop.model.to("meta")
    with pytest.raises(DeviceError, match=r"moved from cpu to meta .*still on cpu\. Move it back, or make a new"):
        loop.monitor.refresh()
    if layers == "all":  # their responses are asked for in the middle of the forward pass
        with pytest.raises(DeviceError, match=r"moved from cpu to meta"):
            loop.attempt(lambda: loop.model(torch.empty(BATCH, 5, device="meta")))
    loop.model.to_empty(device="cpu").load_state_dict(weights)
    assert same(before, loop.state()) == []
    loop.assert_goes_on()


def test_other_errors_of_a_converted_model_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(steps=3)
    loop.model.double()

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("the device is full")

    monkeypatch.setattr(loop.model, "forward", full)
    with pytest.raises(torch.OutOfMemoryError, match="the device is full"):
        loop.monitor.refresh()


# --- anchors ----------------------------------------------------------------------------------------------------


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, CLASSES))


LABELS = torch.arange(9) % CLASSES
BAD_ANCHORS: dict[str, tuple[Callable[[], nn.Module], object, str]] = {
    "empty": (images, (torch.zeros(0, 3, 8, 8), LABELS[:0]), "anchors is empty.*split_holdout"),
    "none": (images, None, "got NoneType.*split_holdout"),
    "too large a label": (images, (torch.zeros(9, 3, 8, 8), LABELS + 1), "labels from 1 to 3.*model has 3 classes"),
    "negative label": (images, (torch.zeros(9, 3, 8, 8), LABELS - 1), "labels from -1 to 1"),
    "bytes into floats": (
        images,
        (torch.zeros(9, 3, 8, 8, dtype=torch.uint8), LABELS),
        "uint8.*weights are torch.float32",
    ),
    "double into floats": (images, (torch.zeros(9, 3, 8, 8, dtype=torch.double), LABELS), "float64.*same transforms"),
    "wrong shape": (images, (torch.zeros(9, 1, 8, 8), LABELS), r"shape \(2, 1, 8, 8\).*same transforms"),
    "unequal lengths": (images, (torch.zeros(9, 3, 8, 8), LABELS[:5]), "9 anchor inputs but 5 labels"),
    "unknown tokens": (tokens, (torch.full((9, 2), 99), LABELS), "cannot run on the anchors"),
    "unequal shapes": (images, [(torch.zeros(3, 8, 8 + i), 0) for i in range(4)], "one batch.*transforms"),
    "not tensors": (images, [(object(), 0), (object(), 1)], "one batch.*transforms"),
    "no labels": (images, TensorDataset(torch.zeros(9, 3, 8, 8)), r"\(input, label\) pairs"),
    "soft labels": (images, (torch.zeros(9, 3, 8, 8), torch.rand(9, CLASSES)), "one class number"),
    "names for labels": (images, [(torch.zeros(3, 8, 8), "cat")] * 4, "class number; got 'cat'"),
}


@pytest.mark.parametrize("mistake", BAD_ANCHORS)
def test_bad_anchors(mistake: str) -> None:
    make, anchors, message = BAD_ANCHORS[mistake]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(AnchorError, match=message):
        InfluenceMonitor(model, optimizer, anchors=anchors)
    assert all(not m._forward_hooks for m in model.modules()), "nothing is left on the model"
    good = torch.zeros(9, 2, dtype=torch.long) if make is tokens else torch.randn(9, 3, 8, 8)
    monitor = InfluenceMonitor(model, optimizer, anchors=(good, LABELS))
    with monitor.step(range(9)):
        nn.functional.cross_entropy(model(good), LABELS).backward()
    assert np.isfinite(monitor.scores()["influence"]).all()


def test_a_model_that_gives_no_logits() -> None:
    class Strange(nn.Linear):
        def forward(self, x: torch.Tensor) -> str:  # type: ignore[override]
            super().forward(x)
            return "logits"

    model = Strange(5, 3)
    with pytest.raises(AnchorError, match="returned str; expected logits"):
        InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=(torch.zeros(9, 5), LABELS))
    flat = nn.Sequential(nn.Linear(5, 3), nn.Flatten(0))
    with pytest.raises(AnchorError, match=r"logits \[batch, classes\]"):
        InfluenceMonitor(flat, torch.optim.SGD(flat.parameters(), lr=0.1), anchors=(torch.zeros(9, 5), LABELS))


# --- layers -----------------------------------------------------------------------------------------------------


def monitored(model: nn.Module, **options) -> InfluenceMonitor:
    parameters = list(model.parameters()) or [nn.Parameter(torch.zeros(()))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return InfluenceMonitor(model, optimizer, anchors=(torch.randn(9, 5), LABELS), **options)


def test_no_layer_to_watch() -> None:
    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(5, 5, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x)

    with pytest.raises(LayerError, match=r"no layer to watch was found.*layers=\[\.\.\.\]"):
        monitored(Bilinear())
    frozen = nn.Linear(5, 3).requires_grad_(False)
    with pytest.raises(LayerError, match=r"Unfreeze the head"):
        monitored(nn.Sequential(frozen, nn.PReLU()))
    with pytest.raises(LayerError, match="no parameters"):
        monitored(nn.Flatten())


def test_a_layer_that_does_not_exist() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(LayerError, match=r"matches 'fc\*'. Layers of this model: 0, 2"):
        monitored(model, layers=["fc*"])
    assert monitored(model, layers=["2"]).head.name == "2"


def test_a_layer_that_the_model_uses_twice() -> None:
    shared = nn.Linear(5, 5)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(5, CLASSES))
    with pytest.raises(LayerError, match=r"'0' is used 2 times.*layers=\[\.\.\.\]"):
        monitored(model, layers="all")
    assert monitored(model).head.name == "3", "the head alone can be watched"


def test_a_model_that_is_one_layer() -> None:
    assert monitored(nn.Linear(5, CLASSES)).head.name == ""


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dampening": 0.1}, "unknown setting 'dampening'; known are .*damping"),
        ({"curvature": "hessian"}, "unknown curvature 'hessian'.*kfac"),
        ({"solver": "lissa"}, "unknown solver 'lissa'.*richardson"),
        ({"gate": "off"}, "gate='off'.*none"),
        ({"reduction": "batchmean"}, "reduction='batchmean'"),
        ({"damping": 0}, "damping=0 is not valid: expected a positive number"),
        ({"damping": float("nan")}, "damping"),
        ({"decay": 1.0}, "decay"),
        ({"kappa": -1.0}, "kappa"),
        ({"pass_quantile": 0.0}, "pass_quantile"),
        ({"temperature": 0.0}, "temperature"),
        ({"level": 1.0}, "level"),
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.0}, "budget"),
        ({"replace_share": 1.0}, "replace_share"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"curvature_every": 0}, "curvature_every"),
        ({"max_anchors": 0}, "max_anchors"),
        ({"gamma": (0.0, 0.0)}, "gamma"),
        ({"solver_steps": 0}, "solver_steps"),
        ({"size": 0}, "size=0"),
        ({"budget": 0.05, "refresh_every": 10}, "budget=0.05.*one of the two sets the cadence"),
        ({"settings": Settings(), "damping": 0.1}, "either settings"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(options: dict, message: str) -> None:
    model = nn.Linear(5, CLASSES)
    with pytest.raises(SettingError, match=message):
        monitored(model, **options)
    assert not model._forward_hooks
    monitored(model)


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


# --- numbering and optimizer --------------------------------------------------------------------------------------


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


def replaced_head() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, CLASSES)
    return model, optimizer


ANCHORS = torch.randn(12, 5), torch.arange(12) % CLASSES


def test_an_optimizer_without_the_watched_layer_is_noticed() -> None:
    model, optimizer = replaced_head()
    with pytest.warns(UserWarning, match="holds no weights of the watched layers '2'.*make it afterwards"):
        InfluenceMonitor(model, optimizer, anchors=ANCHORS)


@pytest.mark.parametrize("case", ["other layers", "added", "parametrised", "frozen below", "the model itself"])
def test_an_optimizer_with_the_watched_layers_is_not(case: str, recwarn: pytest.WarningsRecorder) -> None:
    model, optimizer = replaced_head()
    if case == "added":
        optimizer.add_param_group({"params": model[2].parameters()})
    elif case == "parametrised":
        nn.utils.parametrizations.weight_norm(model[2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elif case == "frozen below":
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    layers: str | list[str] = {"other layers": ["0"], "frozen below": "all"}.get(case, "head")
    chosen: nn.Module = model
    if case == "the model itself":
        chosen = nn.Linear(5, CLASSES)
        optimizer = torch.optim.SGD(chosen.parameters(), lr=0.1)
    InfluenceMonitor(chosen, optimizer, anchors=ANCHORS, layers=layers)
    assert not [entry for entry in recwarn if "optimizer" in str(entry.message)]


def test_several_optimizers_are_refused() -> None:
    model, optimizer = replaced_head()
    with pytest.raises(SettingError, match="one torch optimizer; got list"):
        InfluenceMonitor(model, [optimizer], anchors=ANCHORS)
