"""Which executor a monitor has."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from deferred_cases import TRAINING, Run, assert_same

from sgoif import InfluenceMonitor
from sgoif.errors import SettingError
from sgoif.execution import deferred
from sgoif.execution.deferred import DeferredExecutor
from sgoif.execution.eager import EagerExecutor


def make(**options: Any) -> InfluenceMonitor:
    model = torch.nn.Linear(12, 4)
    held_out = torch.randn(24, 12), torch.arange(24) % 4
    return InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), held_out, **options)


@pytest.mark.parametrize(
    ("execution", "kind"), [("auto", EagerExecutor), ("eager", EagerExecutor), ("deferred", DeferredExecutor)]
)
def test_the_setting_chooses_and_a_cpu_commits_at_once(execution: str, kind: type) -> None:
    assert type(make(execution=execution).executor) is kind


@pytest.mark.parametrize(
    ("options", "why"), [({"budget": 0.1}, "under a budget"), ({"allow_duplicates": True}, "allow_dup")]
)
def test_steps_that_cannot_be_deferred_are_refused_where_that_was_asked_for(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=rf'execution="deferred" is not possible .*{why}.*use execution="auto"'):
        make(execution="deferred", **options)
    assert type(make(**options).executor) is EagerExecutor


def test_a_refused_monitor_leaves_no_hook() -> None:
    model = torch.nn.Linear(12, 4)
    held_out = torch.randn(24, 12), torch.arange(24) % 4
    with pytest.raises(SettingError):
        InfluenceMonitor(model, torch.optim.SGD(model.parameters()), held_out, execution="deferred", budget=0.1)
    assert not model._forward_hooks


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(SettingError, match="execution='lazy' is not valid: expected one of auto, eager, deferred"):
        make(execution="lazy")


def test_a_state_may_go_on_with_the_other_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "PROMPT_STEPS", 3)
    whole = Run(False, refresh_every=20).train(30)
    first = Run(True, refresh_every=20).train(11)
    other = Run(False, refresh_every=20)
    other.monitor.load_state_dict(first.monitor.state_dict())
    other.model.load_state_dict(first.model.state_dict())
    other.optimizer.load_state_dict(first.optimizer.state_dict())
    other.batches = first.batches
    assert_same(whole.monitor, other.train(19).monitor)


def test_scores_of_the_last_step_are_not_overwritten() -> None:
    run = Run(True).train(60)
    last = run.monitor.last
    assert last is not None
    kept = last.influence.clone()
    run.train(30)
    assert run.monitor.last is not last
    assert torch.equal(last.influence, kept)


def test_whoever_observes_sees_every_step() -> None:
    run = Run(True)
    seen: list[int] = []
    run.monitor.observers.append(lambda steps, scores: seen.extend(steps.indices.tolist()))
    run.train(15)
    run.monitor.flush()
    assert sorted(seen) == list(range(TRAINING))


@pytest.mark.parametrize("execution", ["eager", "deferred"])
def test_parts_do_not_keep_their_monitor(execution: str) -> None:
    model = torch.nn.Linear(12, 4)
    held_out = torch.randn(24, 12), torch.arange(24) % 4
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), held_out, execution=execution)
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
