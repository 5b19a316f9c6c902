"""Wrong uses of the tasks: each is one sentence that says what was given and what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.errors import SettingError, StateError
from sgoif.tasks import Curriculum, PoisonTrace, PoisonWatch, Sentinel, ShiftWatch, Unlearner

CLASSES = 4


@pytest.fixture(scope="module")
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, CLASSES, (300,), generator=generator)
    return TensorDataset(torch.randn(300, 8, generator=generator) + 2 * F.one_hot(y, 8), y)


@pytest.fixture(scope="module")
def monitor(data: TensorDataset) -> Iterator[InfluenceMonitor]:
    torch.manual_seed(0)
    train, held_out = split_holdout(data, share=0.2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with InfluenceMonitor(model, optimizer, anchors=held_out) as made:
        for x, y, index in DataLoader(indexed(train), batch_size=32):
            with made.step(index):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        yield made


Case = tuple[Callable[[InfluenceMonitor, TensorDataset], Any], str]
CASES: dict[str, Case] = {
    "a curriculum of a model": (lambda m, d: Curriculum(m.model), "reads an InfluenceMonitor.*got a Sequential"),
    "a curriculum of nothing": (lambda m, d: Curriculum(None), "got None"),
    "settings in a dict": (lambda m, d: Curriculum(m, settings={"floor": 0.1}), r"expected CurriculumSettings\("),
    "a setting as text": (lambda m, d: Curriculum(m, floor="a"), "floor='a' is not valid: expected a number"),
    "no setting": (lambda m, d: Curriculum(m, floor=None), "floor=None is not valid: expected a number"),
    "a watch of a model": (lambda m, d: PoisonWatch(m.model), "reads an InfluenceMonitor"),
    "a trace of a monitor": (lambda m, d: PoisonTrace.fit(m, d), "needs the network itself.*InfluenceMonitor"),
    "few class names": (lambda m, d: PoisonTrace.fit(m.model, d, names=["a"]), "1 class names were given for 4"),
    "labels as text": (lambda m, d: PoisonTrace.fit(m.model, d, labels="a"), "list of class numbers; got 'a'"),
    "a victim's label as text": (
        lambda m, d: PoisonTrace.fit(m.model, d).culprits(d.tensors[0][:2], labels="cat"),
        "must be class numbers; got 'cat'",
    ),
    "a sentinel of nothing": (lambda m, d: Sentinel.fit(None, d), "needs the network itself"),
    "a sentinel of a model": (lambda m, d: Sentinel.from_monitor(m.model), "reads an InfluenceMonitor"),
    "no data": (lambda m, d: Sentinel.fit(m.model, None), "a data set or a loader of batches; got NoneType"),
    "a tensor for batches": (lambda m, d: Sentinel.fit(m.model, d.tensors[0]), "give a list with it"),
    "labels by name": (lambda m, d: Sentinel.fit(m.model, [(d.tensors[0], ["a"] * 300)]), "must be class numbers"),
    "a share as text": (lambda m, d: Sentinel.fit(m.model, d).threshold("a"), "'a' must lie between 0 and 1"),
    "alarms as text": (lambda m, d: Sentinel.fit(m.model, d).watch("a"), "'a' must lie between 0 and 1"),
    "scores in a list": (lambda m, d: ShiftWatch(None, torch.rand(50)).update_scores([1.0]), "got list"),
    "scores in a matrix": (lambda m, d: ShiftWatch(None, torch.rand(50)).update_scores(torch.rand(3, 2)), r"\(3, 2\)"),
    "an unlearner of nothing": (lambda m, d: Unlearner.fit(None, d, log=None), "needs the network itself"),
    "an unlearner of a model": (lambda m, d: Unlearner.from_monitor(m.model, d, log=None), "reads an InfluenceMonitor"),
    "features as text": (lambda m, d: Unlearner.from_features("a", [1], log=None), "floating numbers.*got 'a'"),
    "a head for nothing": (lambda m, d: Unlearner.fit(m.model, d, log=None).apply_to(None), "needs the network itself"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_use_is_explained(name: str, monitor: InfluenceMonitor, data: TensorDataset) -> None:
    use, message = CASES[name]
    before = monitor.pipeline.weighting
    with pytest.raises(SettingError, match=message):
        use(monitor, data)
    if name != "a batch size as text":
        assert monitor.pipeline.weighting is before, "a curriculum that could not be made takes the place of none"


def test_a_sentinel_learns_from_a_data_set_as_from_its_batches(monitor: InfluenceMonitor, data: TensorDataset) -> None:
    torch.testing.assert_close(
        Sentinel.fit(monitor.model, data).calibration,
        Sentinel.fit(monitor.model, DataLoader(data, batch_size=256)).calibration,
    )


def test_a_sentinel_refuses_a_model_without_its_trained_weights(
    monitor: InfluenceMonitor, data: TensorDataset, tmp_path: Path
) -> None:
    model = deepcopy(monitor.model)
    x = data.tensors[0][:20]
    made = Sentinel.fit(model, data)
    made.save(tmp_path / "s.npz")
    torch.testing.assert_close(Sentinel.load(tmp_path / "s.npz", model).score(x), made.score(x), rtol=1e-3, atol=1e-3)
    Sentinel.load(tmp_path / "s.npz", deepcopy(model).bfloat16())
    torch.manual_seed(1)
    fresh = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    with pytest.raises(StateError, match="load the trained weights first"):
        Sentinel.load(tmp_path / "s.npz", fresh)


def test_targets_need_the_answers_to_the_same_examples(monitor: InfluenceMonitor) -> None:
    curriculum = Curriculum(monitor)
    curriculum.finish()
    for shape in ((1, 7), (3, 4)):
        with pytest.raises(SettingError, match=rf"shape \(1, 4\); got \({shape[0]}, {shape[1]}\)"):
            curriculum.targets([1], torch.tensor([1]), torch.zeros(shape))
    assert curriculum.targets([1], torch.tensor([1]), torch.zeros(1, 4)).shape == (1, 4)


def test_the_state_of_a_monitor_is_not_that_of_a_curriculum(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    monitor.save(tmp_path / "monitor.npz")
    with pytest.raises(StateError, match="not the state of a curriculum"):
        Curriculum(monitor).load(tmp_path / "monitor.npz")
