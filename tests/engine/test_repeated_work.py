"""Work that is repeated from a recording: here played by a stand-in that runs the work again where it was recorded."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_backlog import TRAINING, Run, assert_same
from torch import Tensor

from sgoif import InfluenceMonitor
from sgoif.device import cuda_graph
from sgoif.device.cuda_graph import CapturedWork, joined
from sgoif.engine import block_scorer
from sgoif.execution.choose import use_graphs
from sgoif.scoring import score_queue, score_scaling


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return [t for f in fields(value) for t in tensors_in(getattr(value, f.name))] if is_dataclass(value) else []


class StandIn:
    """Runs the work at every repetition and leaves the results where the first ones lay, as a graph does."""

    def __init__(self) -> None:
        self.made = self.repeated = 0

    def __call__(self, device: torch.device, inputs: list[Tensor], work: Callable[[list[Tensor]], Any]) -> Any:
        self.made += 1
        take = SimpleNamespace(inputs=inputs, result=None)

        def repeat() -> None:
            self.repeated += 1
            found = work(inputs)
            if take.result is None:
                take.result = found
            else:
                for place, value in zip(tensors_in(take.result), tensors_in(found), strict=True):
                    place.copy_(value)

        take.repeat = repeat
        return take


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(cuda_graph, "capture_graph", made)
    for module in (score_scaling, block_scorer):
        monkeypatch.setattr(module, "SETTLED", 10)
    monkeypatch.setattr(score_queue, "GRAPH_STEPS", 4)
    return made


def recorded_run(late: bool = False, **options: Any) -> Run:
    run = Run(late, **options)
    use_graphs(run.monitor.pipeline)
    return run


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"refresh_every": 7, "curvature_every": 5}, {"batch": 7}, {"layers": "all", "refresh_every": 9}],
    ids=str,
)
def test_the_table_is_that_of_plain_work(
    late: bool, options: dict[str, Any], stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded_run(late, **options).train(80)
    assert stand_in.repeated > 10
    monkeypatch.setattr(CapturedWork, "run", lambda _, key, parts, work: work([joined(part) for part in parts]))
    plain = recorded_run(late, **options).train(80)
    assert_same(plain.monitor, run.monitor)
    assert plain.monitor.scaling.updates == run.monitor.scaling.updates == 80
    assert plain.monitor.curvature.updates == run.monitor.curvature.updates


def test_few_forms_are_recorded_once_each(stand_in: StandIn) -> None:
    recorded_run(batch=8).train(150)
    assert stand_in.repeated > 30
    assert stand_in.made <= 5, "blocks of one to four steps, and learning"


def test_a_state_resumes_what_was_recorded(stand_in: StandIn) -> None:
    whole = recorded_run(refresh_every=9).train(60)
    first = recorded_run(refresh_every=9).train(37)
    other = recorded_run(refresh_every=9)
    other.monitor.load_state_dict(first.monitor.state_dict())
    other.model.load_state_dict(first.model.state_dict())
    other.optimizer.load_state_dict(first.optimizer.state_dict())
    other.batches = first.batches
    other.train(23)
    assert_same(whole.monitor, other.monitor)


def test_a_state_loaded_on_the_way_is_where_scores_go_from_then_on(stand_in: StandIn) -> None:
    run = recorded_run().train(40)
    state = run.monitor.state_dict()
    before = run.monitor.scores()["n_observations"].sum()
    run.train(20)
    assert stand_in.repeated
    run.monitor.load_state_dict(state)
    run.train(20)
    assert run.monitor.scores()["n_observations"].sum() == before + 20 * 8


def test_scores_of_the_last_step_are_not_overwritten(stand_in: StandIn) -> None:
    run = recorded_run().train(60)
    last = run.monitor.last
    assert last is not None
    kept = last.influence.clone()
    run.train(30)
    assert run.monitor.last is not last
    assert torch.equal(last.influence, kept)


def test_whoever_observes_sees_plain_steps(stand_in: StandIn) -> None:
    run = recorded_run()
    seen: list[int] = []
    run.monitor.observers.append(lambda steps, scores: seen.extend(steps.indices.tolist()))
    made = stand_in.made
    run.train(15)
    run.monitor.flush()
    assert sorted(seen) == list(range(TRAINING))
    assert stand_in.made <= made + 1, "learning alone"


def test_work_that_cannot_be_recorded_is_done_plainly(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "capture_graph", refuse)
    run = recorded_run().train(80)
    assert run.monitor.scorer.runner.blocks.broken
    assert not run.monitor.scorer.repeats
    counts = Run(False).train(80).monitor.scores()["n_observations"]
    assert run.monitor.scores()["n_observations"].tolist() == counts.tolist()


def test_the_forms_that_come_most_are_kept(stand_in: StandIn) -> None:
    work = CapturedWork[Tensor](torch.device("cpu"))
    for key in (1, 2, 3, 4, 5, 1):
        work.run(key, [[torch.full((1,), float(key))]], lambda tensors: tensors[0] * 2)
    assert stand_in.made == 0, "the first key was forgotten before it came again"
    for value in (5.0, 6.0):
        assert work.run(1, [[torch.full((1,), value)]], lambda tensors: tensors[0] * 2).item() == 2 * value
    assert stand_in.made == 1
    assert stand_in.repeated == 2


def test_recordings_do_not_keep_their_monitor() -> None:
    model = torch.nn.Linear(12, 4)
    held_out = torch.randn(24, 12), torch.arange(24) % 4
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), held_out)
    with monitor.step(torch.arange(8)):
        torch.nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.arange(8) % 4).backward()
    monitor.close()
    gone = weakref.ref(monitor)
    gc.collect()
    gc.disable()
    try:
        del monitor
        assert gone() is None
    finally:
        gc.enable()
