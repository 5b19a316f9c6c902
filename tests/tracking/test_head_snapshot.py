"""Steps of which only a snapshot of the head is kept: nothing but the time they take differs from a full capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deferred_cases import Run, assert_same
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.engine.step import ClosedStep
from sgoif.errors import IndexingError, LayerError, StepError
from sgoif.execution import deferred
from sgoif.execution.deferred import DeferredExecutor
from sgoif.tracking.head_snapshot import HeadSnapshot, IndexBuffer

NOTHING_DUE: dict[str, Any] = {"refresh_every": 60, "curvature_every": 1000}
"""Nothing is due in the runs of these tests."""
Loop = Callable[[Run, int], None]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "PROMPT_STEPS", 3)


def head_snapshots(run: Run) -> list[HeadSnapshot]:
    return [step for step in run.monitor.executor.deferred if isinstance(step, HeadSnapshot)]


def loss_of(run: Run, rows: Tensor, change: Callable[[Tensor], Tensor] = lambda logits: logits) -> Tensor:
    return nn.functional.cross_entropy(change(run.model(run.inputs[rows])), run.labels[rows])


def loop(change: Callable[[Tensor], Tensor], first: int = 0) -> Loop:
    """Training that does something to the logits from a step on."""

    def step(run: Run, number: int) -> None:
        rows = next(run.batches)
        with run.monitor.step(rows):
            loss_of(run, rows, change if number >= first else lambda logits: logits).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()

    return step


def twice(run: Run, number: int) -> None:
    """Training with two backward passes in every step."""
    rows = next(run.batches)
    with run.monitor.step(rows):
        loss = loss_of(run, rows)
        (0.25 * loss).backward(retain_graph=True)
        (0.75 * loss).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def twice_differentiable(run: Run, number: int) -> None:
    rows = next(run.batches)
    with run.monitor.step(rows):
        loss_of(run, rows).backward(create_graph=True)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


def watched(late: bool, step: Loop, steps: int = 30, layers: str = "head") -> Run:
    run = Run(late, **NOTHING_DUE, layers=layers)
    for number in range(steps):
        step(run, number)
    return run


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize(
    "step",
    [loop(lambda z: z), loop(lambda z: z / 2), loop(lambda z: z.div_(2)), twice, twice_differentiable],
    ids=["plain", "scaled", "scaled in place", "two passes", "twice differentiable"],
)
@pytest.mark.parametrize("layers", ["head", "all"])
def test_the_table_is_that_of_a_full_capture(step: Loop, layers: str, request: pytest.FixtureRequest) -> None:
    late = watched(True, step, layers=layers)
    assert late.monitor.executor.deferred
    assert bool(head_snapshots(late)) == ("in place" not in request.node.name)
    assert all((snapshot.response is not None) == (layers == "all") for snapshot in head_snapshots(late))
    assert not any(snapshot.body for snapshot in head_snapshots(late)), (
        "what a layer answered is as large as its output"
    )
    assert_same(watched(False, step, layers=layers).monitor, late.monitor)


def test_a_loop_that_starts_to_overwrite_its_logits_loses_that_one_step() -> None:
    """The gradient of what the head gave cannot be had afterwards; a wrong one must not be scored."""
    run = watched(True, loop(lambda z: z.div_(2), first=20), steps=21)
    assert len(head_snapshots(run)) > 1
    assert run.monitor.scores()["n_observations"].sum() == 20 * 8
    for number in range(21, 30):
        loop(lambda z: z.div_(2))(run, number)
    assert run.monitor.scores()["n_observations"].sum() == 29 * 8
    assert not head_snapshots(run)


class Changing(nn.Module):
    """A model that answers with something else from some day on, or whose head gets inputs without a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*list(model)[:-1]), list(model)[-1]  # type: ignore[call-overload]
        self.answer = "logits"

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        if self.answer == "frozen":
            features = features.detach()
        logits: Tensor = self.head(features)
        if self.answer == "twice":
            return logits + self.head(features)
        if self.answer == "in place":
            logits.div_(2)
        return logits.log_softmax(1) if self.answer in ("logarithms", "in place") else logits


def changing(late: bool, answer: str, **more: Any) -> Run:
    class Wrapped(Run):
        def __init__(self, late: bool, **options: Any) -> None:
            super().__init__(late, **options)
            self.monitor.close()
            self.model = Changing(self.model)
            held_out = (self.inputs[120:], self.labels[120:])
            self.monitor = InfluenceMonitor(self.model, self.optimizer, held_out, **self.options)

    run = Wrapped(late, **NOTHING_DUE, **more)
    run.train(12)
    run.model.answer = answer
    return run


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("answer", ["logits", "logarithms", "frozen"])
def test_a_model_that_changes_is_captured_in_full(answer: str, layers: str) -> None:
    late = changing(True, answer, layers=layers)
    assert head_snapshots(late)
    before = len(head_snapshots(late))
    late.train(10)
    assert len(head_snapshots(late)) == before + (10 if answer == "logits" else 0)
    assert_same(changing(False, answer, layers=layers).train(10).monitor, late.monitor)


def test_a_model_that_starts_to_overwrite_its_logits_loses_that_one_step() -> None:
    run = changing(True, "in place").train(1)
    assert run.monitor.scores()["n_observations"].sum() == 12 * 8
    run.train(3)
    assert run.monitor.scores()["n_observations"].sum() == 15 * 8


def test_mistakes_are_named_at_once_and_the_loop_goes_on() -> None:
    run = changing(True, "twice")
    with pytest.raises(LayerError, match="ran twice in one step"):
        run.train(1)
    run.model.answer = "logits"
    run.train(5)
    run.step(list(range(8)))  # what is not plain is captured in full, and from then on a snapshot will do again
    run.train(3)
    assert head_snapshots(run)
    with pytest.raises(IndexingError, match="4 indices were given"), run.monitor.step(torch.arange(4)):
        loss_of(run, torch.arange(8)).backward()
    run.step(list(range(8, 16)))
    run.train(3)
    assert head_snapshots(run)
    with pytest.raises(StepError, match="did not run inside"), run.monitor.step(torch.arange(4)):
        pass
    with pytest.raises(RuntimeError, match="mine"), run.monitor.step(torch.arange(8)):
        raise RuntimeError("mine")
    run.train(3)
    assert run.monitor.scores()["n_observations"].sum() == (12 + 5 + 4 + 4 + 3) * 8


def test_an_open_step_is_not_opened_again() -> None:
    run = Run(True, **NOTHING_DUE).train(10)
    with run.monitor.step(torch.arange(8)):
        with pytest.raises(StepError, match="already open"), run.monitor.step(torch.arange(8)):
            pass
        loss_of(run, torch.arange(8)).backward()
    assert run.monitor.steps == 11


def test_a_step_says_when_the_backward_pass_has_come() -> None:
    run = Run(True, **NOTHING_DUE).train(10)
    step = run.monitor.step(torch.arange(8))
    with step:
        loss = loss_of(run, torch.arange(8))
        assert not step.answered  # type: ignore[attr-defined]
        loss.backward()
        assert step.answered  # type: ignore[attr-defined]


def test_a_late_step_holds_no_graph() -> None:
    run = Run(True, **NOTHING_DUE).train(10)
    with run.monitor.step(torch.arange(8)):
        hidden = run.inputs[:8].clone().requires_grad_(True) * 1
        loss = nn.functional.cross_entropy(run.model(hidden), run.labels[:8])
        loss.backward(retain_graph=True)
    (last,) = head_snapshots(run)[-1:]
    assert all(held is not None and held.grad_fn is None for held in (last.inputs, last.output, last.gradient))


def test_training_is_the_same_bit_for_bit() -> None:
    late, alone = Run(True, **NOTHING_DUE).train(40), Run(False, **NOTHING_DUE)
    alone.monitor.close()
    for _ in range(40):
        rows = next(alone.batches)
        loss_of(alone, rows).backward()
        alone.optimizer.step()
        alone.optimizer.zero_grad()
        alone.optimizer.param_groups[0]["lr"] *= 0.98
    assert late.latest > 10
    for mine, theirs in zip(late.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_another_monitor_may_look_at_its_anchors_meanwhile() -> None:
    def both(late: bool) -> Run:
        run = Run(late, **NOTHING_DUE)
        held_out = (run.inputs[120:], run.labels[120:])
        second = InfluenceMonitor(run.model, run.optimizer, held_out, max_anchors=24, refresh_every=2)
        for _ in range(20):
            rows = next(run.batches)
            with run.monitor.step(rows), second.step(rows):
                loss_of(run, rows).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        return run

    late = both(True)
    assert head_snapshots(late)
    assert_same(both(False).monitor, late.monitor)


def test_an_epoch_that_ends_between_late_steps_parts_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    enqueue = DeferredExecutor._enqueue_together

    def counted(executor: DeferredExecutor, steps: list[ClosedStep]) -> bool:
        asked.append(len(steps))
        return enqueue(executor, steps)

    monkeypatch.setattr(DeferredExecutor, "_enqueue_together", counted)
    run = Run(True, **NOTHING_DUE, size=120).train(15 + 9)
    late = len(run.monitor.executor.deferred)
    assert late > 15
    run.monitor.executor.drain()
    assert asked == [late, late - 9, 9, 9], "the new epoch is tried twice: before and after what waits was scored"


def test_rows_hold_indices_until_they_are_kept() -> None:
    rows = IndexBuffer(2)
    rows.fit(3)
    assert rows.keep([torch.arange(2)])[0].tolist() == [0, 1]
    placed = [rows.put(number, torch.arange(3) + number) for number in range(2)]
    other = rows.put(2, torch.arange(3)), rows.put(0, torch.arange(4))
    assert [index.tolist() for index in other] == [[0, 1, 2], [0, 1, 2, 3]]
    kept = rows.keep([*placed, *other])
    rows.put(0, torch.tensor([7, 7, 7]))
    assert [index.tolist() for index in kept] == [[0, 1, 2], [1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]


def test_a_compiled_layer_is_captured_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled graph may use the buffer of an output again, so those are copied."""
    run = Run(True, **NOTHING_DUE).train(10)
    assert head_snapshots(run)
    before = len(head_snapshots(run))
    monkeypatch.setattr(run.monitor.capture, "compiled", True)
    run.train(3)
    assert len(head_snapshots(run)) == before
    copies = [step.observation for step in run.monitor.executor.deferred if not isinstance(step, HeadSnapshot)]
    assert [copy is not None and copy.version for copy in copies] == [None] * 3
    assert run.monitor.scores()["n_observations"].sum() == 13 * 8
