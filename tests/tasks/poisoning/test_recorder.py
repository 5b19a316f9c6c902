"""The watch: what it adds up along a run, against a record kept by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from poison_cases import CLASSES, SIZE, Cloud, cloud
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.errors import SettingError, StateError
from sgoif.tasks import PoisonTrace, PoisonWatch
from sgoif.tasks.poisoning.geometry import fit_geometry
from sgoif.tasks.poisoning.recorder import FOLDS, is_due
from sgoif.tasks.poisoning.signature import signature

EPOCHS, BATCH = 3, 64


class Run:
    """A small network in training, and what its head was given in every epoch."""

    def __init__(self, case: Cloud, refresh_every: int | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.case = case
        self.model = nn.Sequential(nn.Linear(SIZE, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        held = cloud(per_class=10, planted=0, seed=9)
        anchors, size = (held.x, held.y), len(case.y)
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors, size=size, refresh_every=refresh_every)
        self.watch = PoisonWatch(self.monitor, **options)
        self.seen: list[torch.Tensor] = []
        self.order = np.random.default_rng(0)

    def epoch(self, most: int | None = None) -> None:
        features = torch.zeros(len(self.case.y), 16)
        rows = torch.from_numpy(self.order.permutation(len(self.case.y)))
        for some in rows.split(BATCH)[:most]:
            with self.recorded(features, some), self.monitor.step(some):
                F.cross_entropy(self.model(self.case.x[some]), self.case.y[some]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.seen.append(features)

    @contextmanager
    def recorded(self, features: torch.Tensor, some: torch.Tensor) -> Iterator[None]:
        def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if len(inputs[0]) == len(some) and self.model.training:
                features[some] = inputs[0].detach()

        handle = self.model[2].register_forward_pre_hook(keep)
        try:
            yield
        finally:
            handle.remove()


def test_signatures_are_the_mean_over_passes() -> None:
    case = cloud(per_class=80)
    run = Run(case)
    for _ in range(EPOCHS):
        run.epoch()
    run.watch.finish()
    assert run.watch.passes == EPOCHS
    y, order = case.y.numpy(), np.random.default_rng(0)
    wanted = np.zeros(len(y))
    for number, features in enumerate(run.seen):
        index = order.permutation(len(y))  # the order in which training met them decides who is in which half
        geometry = fit_geometry(features, case.y, CLASSES)
        for label in range(CLASSES):
            rows = index[y[index] == label]
            whitened = geometry.whiten(features[torch.from_numpy(rows)], label)
            wanted[rows] += signature(whitened, number, FOLDS).values / EPOCHS
    found = run.watch.signatures(np.arange(len(y)))
    assert found is not None
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(np.abs(wanted).max()))


def test_training_is_not_disturbed() -> None:
    case = cloud(per_class=40)
    weights = []
    for watched in (True, False):
        run = Run(case)
        if not watched:
            run.watch.close()
        state = torch.random.get_rng_state()
        run.epoch()
        run.epoch()
        run.watch.finish()
        assert torch.equal(torch.random.get_rng_state(), state)
        weights.append([p.detach().clone() for p in run.model.parameters()])
        assert run.watch.passes == (2 if watched else 0)
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_with_little_memory_a_pass_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgoif.scoring.score_queue.BLOCK_STEPS", 1)
    case = cloud(per_class=120)
    run = Run(case, refresh_every=1000, memory=3 * BATCH * 16 * 4)  # so that every step is scored by itself
    run.epoch()
    run.watch.finish()
    assert run.watch.passes == 2  # of eight batches, the first four and the last four
    found = run.watch.signatures(np.arange(len(case.y)))
    assert found is not None
    assert np.isfinite(found).all()


def test_an_unfinished_pass_counts_only_if_it_is_most_of_one() -> None:
    run = Run(cloud(per_class=80))
    run.epoch()
    run.epoch(most=1)
    run.watch.finish()
    assert run.watch.passes == 1
    run.epoch(most=4)
    run.watch.finish()
    assert run.watch.passes == 3  # the single batch was met again, and then most of a pass


def test_the_trace_of_a_watched_run_uses_it() -> None:
    case = cloud(per_class=100, planted=12)
    run = Run(case)
    for _ in range(EPOCHS):
        run.epoch()
    with_watch = PoisonTrace.fit(run.model, case.dataset(), watch=run.watch)
    alone = PoisonTrace.fit(run.model, case.dataset())
    assert not np.array_equal(with_watch.suspects().score, alone.suspects().score)
    unseen = PoisonWatch(run.monitor)
    assert unseen.signatures(np.arange(5)) is None


def test_a_saved_state_goes_on() -> None:
    case = cloud(per_class=60)
    run = Run(case)
    run.epoch()
    run.watch.finish()
    state = run.watch.state_dict()
    other = PoisonWatch(run.monitor)
    other.load_state_dict(state)
    index = np.arange(len(case.y) + 5)  # indices beyond what was seen have seen nothing
    first, second = run.watch.signatures(index), other.signatures(index)
    assert first is not None
    np.testing.assert_array_equal(first, second)
    assert (first[-5:] == 0).all()
    assert other.passes == 1
    with pytest.raises(StateError, match="not the state"):
        other.load_state_dict({"signature": 1})
    with pytest.raises(StateError, match="differ in length"):
        other.load_state_dict({**state, "counts": state["counts"][:-1]})


def test_a_state_holds_every_pass_that_is_complete() -> None:
    run, passes = Run(cloud(per_class=60)), []
    for _ in range(4):
        run.epoch()
        passes.append(run.watch.state_dict()["passes"])
    assert passes == [0, 2, 3, 4]  # that the first is complete is known once the second begins
    run.epoch(most=1)
    assert run.watch.state_dict()["passes"] == 4


def test_later_passes_are_looked_at_less_often() -> None:
    assert [number for number in range(41) if is_due(number)] == [
        *range(5),
        *range(6, 13, 2),
        16,
        20,
        24,
        28,
        32,
        36,
        40,
    ]
    run = Run(cloud(per_class=24, planted=5))
    for _ in range(12):
        run.epoch()
    run.watch.finish()
    assert run.watch.passes == 12
    assert set(run.watch.state_dict()["counts"][: len(run.case.y)].tolist()) == {8}  # not the 6th, 8th, 10th and 12th


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0}, "number of bytes"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Run(cloud(per_class=20), **options)
