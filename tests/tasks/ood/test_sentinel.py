"""The sentinel: its formula, what it tells apart, its gate, its honesty, its state and its errors."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ood_task_cases import CLASSES, batches, blobs, strangers, trained
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import LayerError, SettingError, StateError
from sgoif.tasks import Sentinel
from sgoif.tasks.ood.activation_matrix import ActivationMatrix
from sgoif.tasks.ood.ood_score import minus_energy
from sgoif.tasks.ood.reference import LEAST_TRUST, OneInMany, outvoted
from sgoif.tasks.ood.sentinel import HELD_BACK
from sgoif.tracking.evaluation import evaluation
from sgoif_bench.metrics import auroc


@pytest.fixture(scope="module")
def sentinel() -> Sentinel:
    return Sentinel.fit(trained(), batches(600, 0), calibration=batches(500, 1))


def mislabelled(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, labels of which every fifth is wrong, and which are."""
    images, labels = blobs(count, seed)
    wrong = torch.arange(count) % 5 == 0
    return images, torch.where(wrong, (labels + 1) % CLASSES, labels), wrong


@pytest.mark.parametrize("wrong_labels", [False, True])
def test_the_score_is_the_formula(sentinel: Sentinel, wrong_labels: bool) -> None:
    if wrong_labels:
        images, noisy, _ = mislabelled(600, 0)
        sentinel = Sentinel.fit(trained(), [(images, noisy)], calibration=batches(500, 1))
        assert sentinel.trust < 0.9
    x = strangers(20)
    seen = sentinel.network.see(x)
    z = seen.logits - seen.logits.mean(1, keepdim=True)
    parts = [layer.distance(a) for layer, a in zip(sentinel.layers, (*seen.pooled, seen.features), strict=True)]
    matrix = ActivationMatrix(sentinel.neighbours.sizes, x.device).join((*seen.pooled, seen.features))
    spread, apart = torch.stack(parts).mean(0), 1 - sentinel.neighbours.nearest(matrix)
    expected = 0.5 * spread.log() + 0.5 * apart.log() - sentinel.trust * z.exp().sum(1).log().log()
    torch.testing.assert_close(sentinel.score(x), expected)


class Operations(TorchDispatchMode):
    """Counts what is computed; views and empty tensors are not."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (function.is_view or function.overloadpacket in FREE)
        return function(*args, **(kwargs or {}))


FREE = (torch.ops.aten._unsafe_view, torch.ops.aten.empty)


def operations(task: Callable[[], object]) -> int:
    with torch.no_grad(), Operations() as mode:
        task()
    return mode.count


def test_a_score_takes_few_operations_beyond_the_forward_pass(
    sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = strangers(20)
    sentinel.score(x)
    forward = operations(lambda: sentinel.network.model(x))
    stages = len(sentinel.network.stages)
    assert operations(lambda: sentinel.score(x)) - forward <= stages + 25
    monkeypatch.setattr(sentinel, "_graphed", sentinel._score.columns)
    assert operations(lambda: sentinel.score(x)) - forward == stages + 1  # and two to start what is recorded


def test_strangers_are_stranger(sentinel: Sentinel) -> None:
    fresh, _ = blobs(200, 5)
    scores = torch.cat([sentinel.score(fresh), sentinel.score(strangers(200))])
    assert auroc((torch.arange(400) >= 200).numpy(), scores.double().numpy()) > 0.97


def test_p_values_of_held_out_inputs_are_honest(sentinel: Sentinel) -> None:
    p = sentinel.p_value(blobs(1000, 6)[0])
    for level in (0.05, 0.2, 0.5):
        assert float((p <= level).double().mean()) <= level + 3 * math.sqrt(level * (1 - level) * (1 / 1000 + 1 / 500))
    assert float(p.min()) >= 1 / 501
    beyond = sentinel.score(blobs(1000, 6)[0]) > sentinel.threshold(0.05)
    assert torch.equal(beyond, p <= 0.05)


def test_energy_is_blind_to_a_common_shift_and_never_below_the_guess() -> None:
    logits = torch.randn(50, 7)
    torch.testing.assert_close(minus_energy(logits), minus_energy(logits + 5.0))
    assert float(minus_energy(logits).max()) <= -math.log(7) + 1e-6
    one = torch.tensor([[2.0]])
    torch.testing.assert_close(minus_energy(one), -torch.tensor([math.log(math.exp(1) + math.exp(-1))]))


def test_a_label_is_outvoted_by_more_than_half() -> None:
    answers = torch.tensor([[0.9, 0.1, 0.0], [0.25, 0.75, 0.0], [0.2, 0.75, 0.05], [0.3, 0.3, 0.4]])
    assert outvoted(answers, torch.tensor([0, 0, 0, 0])).tolist() == [False, False, True, False]
    assert outvoted(answers, torch.tensor([1, 1, 1, 1])).tolist() == [True, False, False, False]


def test_the_answers_count_as_far_as_the_labels_are_believed() -> None:
    images, noisy, wrong = mislabelled(600, 0)
    network, held_out = trained(), batches(300, 1)

    def trust(y: torch.Tensor | None, gate: bool = True) -> float:
        parts = images.split(70) if y is None else list(zip(images.split(70), y.split(70), strict=True))
        return Sentinel.fit(network, parts, calibration=held_out, gate=gate).trust

    with torch.no_grad():
        answers = network(images).softmax(1)
    against = sum(
        any(float(p) > float(row[y]) + 0.5 for p in row) for row, y in zip(answers, noisy.tolist(), strict=True)
    )
    assert trust(noisy) == pytest.approx(1 - against / 600)
    assert against / 600 == pytest.approx(float(wrong.float().mean()), abs=0.05)
    assert trust(blobs(600, 0)[1]) > 0.95
    assert trust(noisy, gate=False) == trust(None) == 1.0


def test_examples_that_calibrate_have_no_say_in_that() -> None:
    images, labels = blobs(600, 0)
    back = OneInMany(HELD_BACK).chosen(600)
    assert int(back.sum()) == 120
    noisy = torch.where(back, (labels + 1) % CLASSES, labels)
    assert Sentinel.fit(trained(), [(images, noisy)]).trust == Sentinel.fit(trained(), [(images, labels)]).trust


def test_a_network_that_is_believed_in_nothing_is_still_asked() -> None:
    images, labels = blobs(600, 0)
    made = Sentinel.fit(trained(), [(images, (labels + 1) % CLASSES)], calibration=batches(300, 1))
    assert made.trust == LEAST_TRUST  # with 0, an answer that is no number would count like any other
    x, _ = blobs(3, 3)
    seen = made.network.see(x)
    broken = replace(seen, logits=seen.logits.index_fill(0, torch.tensor([1]), math.nan))
    assert torch.isfinite(made.strangeness(broken)).tolist() == [True, False, True]


def test_the_gate_changes_nothing_but_that() -> None:
    images, noisy, _ = mislabelled(600, 0)
    gated, plain = (
        Sentinel.fit(trained(), [(images, noisy)], calibration=batches(300, 1), gate=gate) for gate in (True, False)
    )
    x = torch.cat([blobs(20, 5)[0], strangers(20)])
    shift = (1 - gated.trust) * (-minus_energy(trained()(x).detach())).log()
    assert float(shift.min()) > 0
    torch.testing.assert_close(gated.score(x), plain.score(x) + shift, rtol=1e-4, atol=1e-5)


def test_a_class_that_the_network_gets_wrong_still_has_a_centre() -> None:
    images, labels = blobs(600, 0)
    shifted = (labels + 1) % CLASSES
    made = Sentinel.fit(trained(), [(images, shifted)], calibration=batches(300, 1))
    assert made.layers[-1].centres.shape[0] == CLASSES


def test_labels_are_not_needed() -> None:
    unlabelled = Sentinel.fit(trained(), [x for x, _ in batches(600, 0)], calibration=[x for x, _ in batches(300, 1)])
    assert float(unlabelled.score(strangers(50)).median()) > float(unlabelled.score(blobs(50, 5)[0]).median())


def test_a_fifth_is_kept_back_without_a_calibration() -> None:
    made = Sentinel.fit(trained(), batches(600, 0))
    assert len(made.calibration) == 120


def monitored() -> InfluenceMonitor:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )
    data, hold_out = TensorDataset(*blobs(400, 0)), TensorDataset(*blobs(200, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, anchors=hold_out, max_anchors=200)
    for _ in range(3):
        for x, y, index in DataLoader(indexed(data), batch_size=50, shuffle=True):
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor


def test_a_monitor_that_runs_gives_one_and_is_left_as_it_was() -> None:
    monitor = monitored()
    monitor.model.train()
    monitor.model[1].eval()  # whoever froze a layer finds it frozen
    before = {name: value.clone() for name, value in monitor.model.state_dict().items()}
    made = Sentinel.from_monitor(monitor)
    assert monitor.model.training
    assert not monitor.model[1].training
    assert all(torch.equal(value, before[name]) for name, value in monitor.model.state_dict().items())
    assert len(made.calibration) == len(monitor.anchors)
    x, y = monitor.anchors.batch(monitor.anchors.members)
    with torch.no_grad(), evaluation(monitor.model):
        against = outvoted(monitor.model(x).softmax(1), y)
    assert made.trust == pytest.approx(1 - float(against.double().mean()))
    assert Sentinel.from_monitor(monitor, gate=False).trust == 1.0
    scores = torch.cat([made.score(blobs(100, 5)[0]), made.score(strangers(100))])
    assert auroc((torch.arange(200) >= 100).numpy(), scores.double().numpy()) > 0.9
    assert monitor.model.training
    p = made.p_value(blobs(400, 7)[0])
    assert float((p <= 0.1).double().mean()) < 0.2


def test_anchors_count_alike_unless_they_are_to_be_weighted() -> None:
    monitor, x = monitored(), strangers(20)
    alike, weighted = (Sentinel.from_monitor(monitor, weighted=choice) for choice in (False, True))
    monitor.anchors.confidence[::2] = 0
    again, half = (Sentinel.from_monitor(monitor, weighted=choice) for choice in (False, True))
    assert torch.equal(again.score(x), alike.score(x))
    assert not torch.allclose(half.score(x), weighted.score(x))
    monitor.anchors.confidence.zero_()
    assert torch.equal(Sentinel.from_monitor(monitor, weighted=True).score(x), alike.score(x))


def test_saved_and_loaded_it_says_the_same(sentinel: Sentinel, tmp_path: Path) -> None:
    sentinel.save(tmp_path / "sentinel.npz")
    again = Sentinel.load(tmp_path / "sentinel.npz", trained())
    assert torch.equal(again.neighbours.rows, sentinel.neighbours.rows)
    x = torch.cat([blobs(10, 3)[0], strangers(10)])
    assert torch.equal(again.score(x), sentinel.score(x))
    assert torch.equal(again.p_value(x), sentinel.p_value(x))


def test_a_copy_goes_by_its_own_state(sentinel: Sentinel) -> None:
    again, x = copy.deepcopy(sentinel), strangers(10)
    assert torch.equal(again.score(x), sentinel.score(x))
    again._score._power.zero_()
    assert not again.score(x).any()
    assert sentinel.score(x).any()


def test_the_trust_of_a_file_is_checked_and_so_is_its_version(tmp_path: Path) -> None:
    images, noisy, _ = mislabelled(600, 0)
    made = Sentinel.fit(trained(), [(images, noisy)], calibration=batches(300, 1))
    made.save(tmp_path / "new.npz")
    state = load_state(tmp_path / "new.npz")
    assert Sentinel.load(tmp_path / "new.npz", trained()).trust == made.trust < 1
    save_state(tmp_path / "bad.npz", {**state, "trust": 7.0})
    with pytest.raises(StateError, match="damaged: its trust"):
        Sentinel.load(tmp_path / "bad.npz", trained())
    save_state(tmp_path / "older.npz", {**state, "version": 1})
    with pytest.raises(StateError, match="fit it again"):
        Sentinel.load(tmp_path / "older.npz", trained())


def test_a_state_of_another_model_or_kind_is_refused(sentinel: Sentinel, tmp_path: Path) -> None:
    sentinel.save(tmp_path / "s.npz")
    with pytest.raises(StateError, match="another model"):
        Sentinel.load(tmp_path / "s.npz", nn.Linear(3, 2))
    other = nn.Sequential(*list(trained())[:-1], nn.Linear(10, CLASSES))
    with pytest.raises(StateError, match="takes 64 features, this one's 10"):
        Sentinel.load(tmp_path / "s.npz", other)
    with pytest.raises(StateError, match="another model with 3 outputs, not 4"):
        Sentinel.load(tmp_path / "s.npz", nn.Sequential(*list(trained())[:-1], nn.Linear(64, 4)))
    monitored().save(tmp_path / "monitor.npz")
    with pytest.raises(StateError, match="not a sentinel"):
        Sentinel.load(tmp_path / "monitor.npz", trained())
    (tmp_path / "broken.npz").write_bytes((tmp_path / "s.npz").read_bytes()[:500])
    with pytest.raises(StateError, match="damaged"):
        Sentinel.load(tmp_path / "broken.npz", trained())
    with pytest.raises(FileNotFoundError):
        Sentinel.load(tmp_path / "none.npz", trained())


def test_inputs_that_are_not_numbers_are_infinitely_strange_and_harm_nobody(sentinel: Sentinel) -> None:
    x, _ = blobs(4, 3)
    alone = sentinel.score(x)
    x[1, 0, 0, 0], x[2, 0, 3, 3] = math.nan, math.inf
    scores = sentinel.score(x)
    assert scores[[1, 2]].tolist() == [math.inf, math.inf]
    torch.testing.assert_close(scores[[0, 3]], alone[[0, 3]])
    assert float(sentinel.p_value(x)[1]) == pytest.approx(1 / 501)


def test_a_network_that_makes_something_finite_of_it_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sigmoid(), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    made = Sentinel.fit(model, batches(300, 0))
    x, _ = blobs(6, 3)
    alone = made.score(x)
    x[1, 0, 0, 0], x[2, 0, 3, 3], x[4] = math.inf, -math.inf, math.nan
    assert bool(torch.isfinite(model(x[1:3])).all())
    scores = made.score(x.contiguous(memory_format=torch.channels_last))
    assert scores[[1, 2, 4]].tolist() == [math.inf] * 3
    torch.testing.assert_close(scores[[0, 3, 5]], alone[[0, 3, 5]])


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(2, 1, 9, 9), r"\(1, 9, 9\) do not go with a sentinel for \(1, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8), r"\(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "normalised floats, not torch.uint8"),
        (np.zeros((2, 1, 8, 8), dtype=np.float32), "must be a tensor.*found ndarray"),
    ],
)
def test_other_inputs_are_refused(sentinel: Sentinel, x: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        sentinel.score(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_inputs_of_another_precision_are_brought_to_that_of_the_network(sentinel: Sentinel, dtype: torch.dtype) -> None:
    x = strangers(8).to(dtype)
    assert torch.equal(sentinel.score(x), sentinel.score(x.float()))
    others = [(images.to(dtype), labels) for images, labels in batches(300, 0)]
    rounded = [(images.float(), labels) for images, labels in others]
    fitted = Sentinel.fit(trained(), others, calibration=others)
    assert torch.equal(fitted.score(x), Sentinel.fit(trained(), rounded, calibration=rounded).score(x))


def test_the_precision_of_the_caller_is_that_of_the_network_alone(sentinel: Sentinel) -> None:
    x = torch.cat([blobs(20, 5)[0], strangers(20)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = sentinel.score(x)
        assert torch.equal(rough, sentinel.score(x))
        seen = sentinel.network.see(x)
        made = Sentinel.fit(trained(), batches(600, 0), calibration=batches(500, 1))
    assert seen.logits.dtype == rough.dtype == torch.float32
    torch.testing.assert_close(rough, sentinel.strangeness(seen))
    assert float((made.score(x) - sentinel.score(x)).abs().max()) < 0.2
    assert float((sentinel.score(x) - rough).abs().max()) < 0.2


def test_another_default_precision_changes_nothing(sentinel: Sentinel) -> None:
    x, data, held_out = strangers(20), batches(600, 0), batches(500, 1)
    torch.set_default_dtype(torch.float64)
    try:
        made = Sentinel.fit(trained(), data, calibration=held_out)
        assert made.score(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(made.score(x), sentinel.score(x))


def test_a_model_that_moved_away_is_noticed() -> None:
    model = copy.deepcopy(trained())
    made = Sentinel.fit(model, batches(300, 0))
    model.to("meta")
    with pytest.raises(StateError, match=r"model is on meta and its sentinel on cpu.*save the sentinel"):
        made.score(strangers(3))


def test_it_goes_when_nobody_holds_it() -> None:
    """What is recorded on a GPU holds its memory, which no collector of garbage sees."""
    made = Sentinel.fit(trained(), batches(300, 0))
    made.score(strangers(3))
    held = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert held() is None
    finally:
        gc.enable()


def test_nothing_is_nothing(sentinel: Sentinel) -> None:
    assert len(sentinel.score(torch.zeros(0, 1, 8, 8))) == 0
    assert len(sentinel.p_value(torch.zeros(0, 1, 8, 8))) == 0


def test_too_little_or_wrong_data_is_named() -> None:
    with pytest.raises(SettingError, match="loader is empty"):
        Sentinel.fit(trained(), [])
    with pytest.raises(SettingError, match="4 examples are too few to calibrate"):
        Sentinel.fit(trained(), batches(20, 0))
    with pytest.raises(SettingError, match="labels must lie between 0 and 2; found 0 to 7"):
        Sentinel.fit(trained(), [(blobs(100, 0)[0], torch.arange(100) % 8)])
    for batch in ((["a"], [0]), {"x": blobs(100, 0)[0]}, []):
        with pytest.raises(SettingError, match="a batch must be or start with"):
            Sentinel.fit(trained(), [batch])
    with pytest.raises(LayerError, match="no linear layer"):
        Sentinel.fit(nn.Conv2d(1, 2, 3), batches(100, 0))


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (torch.zeros(100), r"torch.float32 \[100\]"),
        (torch.zeros(99, dtype=torch.long), r"torch.int64 \[99\]"),
        (torch.zeros(100, CLASSES, dtype=torch.long), r"torch.int64 \[100, 3\]"),
    ],
)
def test_labels_of_another_form_are_refused(labels: torch.Tensor, found: str) -> None:
    with pytest.raises(SettingError, match=f"one whole number for each of 100 inputs.*found {found}"):
        Sentinel.fit(trained(), [(blobs(100, 0)[0], labels)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_are_whole_numbers_of_any_width(dtype: torch.dtype) -> None:
    images, labels = blobs(300, 0)
    narrow, wide = (Sentinel.fit(trained(), [(images, y)]) for y in (labels.to(dtype), labels))
    assert torch.equal(narrow.score(strangers(5)), wide.score(strangers(5)))


def test_one_class_is_enough() -> None:
    images, _ = blobs(300, 0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    made = Sentinel.fit(model, [(images, torch.zeros(300, dtype=torch.long))])
    assert bool(torch.isfinite(made.score(strangers(5))).all())


def test_a_stream_of_images_is_watched(sentinel: Sentinel) -> None:
    watch = sentinel.watch(false_alarms=0.01)
    assert watch.update(blobs(200, 8)[0]) is None
    alarm = watch.update(strangers(100))
    assert alarm is not None
    assert 190 <= alarm.change <= 215
