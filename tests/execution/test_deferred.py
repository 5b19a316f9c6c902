"""Steps that are committed late, as on a GPU: the same tables, errors that say which step is meant, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deferred_cases import TRAINING, Run, assert_same

from sgoif.errors import IndexingError, NonFiniteError, StepError
from sgoif.execution import deferred


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "PROMPT_STEPS", 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refresh_every": 7, "curvature_every": 5},
        {"refresh_every": 5, "curvature_every": 10},
        {"refresh_every": 1},
        {"batch": 7},
        {"layers": "all", "refresh_every": 9, "curvature_every": 4},
        {"size": TRAINING},
        {"coverage_floor": 1.0, "replace_every": 2, "replace_share": 0.2},
    ],
    ids=str,
)
def test_the_table_is_that_of_prompt_steps(options: dict[str, Any]) -> None:
    prompt, late = Run(False, **options).train(70), Run(True, **options).train(70)
    assert prompt.latest == 0
    assert late.latest > (0 if options.get("refresh_every") == 5 else 1) or options.get("refresh_every") == 1
    assert_same(prompt.monitor, late.monitor)


def test_steps_are_late_for_as_long_as_nothing_is_due() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000, size=TRAINING)
    late = []
    for _ in range(36):
        run.step(next(run.batches))
        late.append(len(run.monitor.executor.deferred))
    assert late[:3] == [0, 0, 0]
    assert max(late) == deferred.MOST_DEFERRED - 1
    assert late.count(0) == 4
    assert run.monitor.steps == 36


def test_whoever_asks_sees_every_step() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000).train(10)
    assert run.monitor.executor.deferred
    assert run.monitor.scores()["n_observations"].sum() == 10 * 8
    run.train(5)
    assert run.monitor.executor.deferred
    last = run.monitor.last
    assert last is not None
    assert len(last.index) == 8
    run.train(4)
    assert run.monitor.executor.deferred
    run.monitor.close()
    assert run.monitor.ledger.column("count").sum() == 19 * 8


def test_a_state_has_the_late_steps_in_it() -> None:
    whole = Run(True, refresh_every=20).train(30)
    first = Run(True, refresh_every=20).train(11)
    assert first.monitor.executor.deferred
    state = first.monitor.state_dict()
    other = Run(True, refresh_every=20)
    other.monitor.load_state_dict(state)
    other.model.load_state_dict(first.model.state_dict())
    other.optimizer.load_state_dict(first.optimizer.state_dict())
    other.batches = first.batches
    other.train(19)
    assert other.latest > 0
    assert_same(whole.monitor, other.monitor)


@pytest.mark.parametrize("loaded", [True, False])
def test_late_steps_do_not_come_back_after_another_state_was_loaded(loaded: bool) -> None:
    run = Run(True, refresh_every=40, curvature_every=1000).train(6)
    state = run.monitor.state_dict()
    run.train(4)
    assert run.monitor.executor.deferred
    if loaded:
        run.monitor.load_state_dict(state)
        assert run.monitor.scores()["n_observations"].sum() == 6 * 8
    else:
        assert run.monitor.scores()["n_observations"].sum() == 10 * 8


def test_a_mistake_is_named_with_its_step_and_the_others_count() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000, size=TRAINING).train(6)
    run.step(torch.arange(8))
    run.step(torch.tensor([1, 2, 2, 3]))
    run.step(torch.arange(8, 16))
    with pytest.raises(IndexingError, match="appears 2 times") as caught:
        run.monitor.scores()
    assert "a step 1 steps ago" in caught.value.__notes__[0]
    table = run.monitor.scores()
    assert table["n_observations"].sum() == 6 * 8 + 16
    run.train(5)
    assert run.monitor.scores()["n_observations"].sum() == 11 * 8 + 16


def test_an_index_out_of_range_is_found_where_the_steps_are_looked_at() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000, size=TRAINING).train(6)
    run.step(torch.tensor([0, TRAINING]))
    with pytest.raises(IndexingError, match=f"index {TRAINING} is out of range"):
        run.monitor.flush()
    run.step(torch.tensor([-1, 5]))
    with pytest.raises(IndexingError, match="index -1 is out of range"):
        run.monitor.flush()
    run.monitor.flush()


def test_a_step_without_a_backward_pass_is_named_at_once() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000).train(6)
    assert run.monitor.executor.deferral_budget > 0
    with pytest.raises(StepError, match="without a backward pass"), run.monitor.step(torch.arange(8)):
        run.model(run.inputs[:8])
    run.train(2)
    assert run.monitor.scores()["n_observations"].sum() == 8 * 8


def test_lists_weights_and_targets_are_served_in_turn() -> None:
    prompt, late = (Run(flag, refresh_every=30, curvature_every=1000) for flag in (False, True))
    for run in (prompt, late):
        run.train(6)
        run.step(list(range(8)))
        run.step(torch.arange(8, 16), weights=torch.ones(8))
        run.step(torch.arange(16, 24), target=run.labels[16:24])
        run.step(torch.arange(24, 32, dtype=torch.int32))
        run.train(6)
    assert late.latest > 1
    assert_same(prompt.monitor, late.monitor)


def test_a_loop_may_fill_its_index_anew() -> None:
    run = Run(True, refresh_every=40, curvature_every=1000)
    index = torch.empty(8, dtype=torch.int64)
    for number in range(10):
        run.step(index.copy_(torch.arange(8) + 8 * number))
    counts = run.monitor.scores()["n_observations"]
    assert counts[:80].tolist() == [1] * 80


def test_a_loss_that_was_not_finite_takes_no_other_step_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(True, refresh_every=40, curvature_every=1000).train(10)
    assert run.monitor.executor.deferred
    monkeypatch.setattr(run.monitor.scorer.finite.arrival, "arrived", iter([torch.tensor(torch.nan), None]).__next__)
    run.monitor.scorer.finite.flag.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        run.monitor.flush()
    assert run.monitor.scores()["n_observations"].sum() == 10 * 8
    assert run.monitor.steps == 10


@pytest.mark.parametrize("late", [False, True])
def test_a_refresh_that_fails_loses_no_step_and_is_tried_again(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(late, refresh_every=20, curvature_every=1000).train(19)
    renew, failed = run.monitor.refresher.complete_refresh, []

    def fail_once(look: Any) -> dict[str, float]:
        if not failed:
            failed.append(look.step)
            raise NonFiniteError("on the way")
        return renew(look)

    monkeypatch.setattr(run.monitor.refresher, "complete_refresh", fail_once)
    for number in range(12):
        try:
            run.step(next(run.batches))
            if number == 5:
                run.monitor.flush()
        except NonFiniteError:
            run.optimizer.zero_grad()
    assert failed == [20]
    run.monitor.flush()
    assert 20 <= run.monitor.history[-1]["step"] <= 27
    assert run.monitor.scores()["n_observations"].sum() == 31 * 8
