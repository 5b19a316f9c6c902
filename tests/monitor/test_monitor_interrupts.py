"""Ctrl-C at any moment of a step: afterwards the model, torch and the monitor go on as if it had not come."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sgoif
from sgoif import InfluenceMonitor
from sgoif.errors import StepError

PACKAGE = str(Path(sgoif.__file__).parent)
CONTEXTS = ("torch/utils/_contextlib.py", "torch/autograd/grad_mode.py", "torch/amp/autocast_mode.py", "contextlib.py")
"""Where code of others enters and leaves on our behalf."""


class TinyLoop:
    """A training loop of a tiny network, some steps of which refresh the anchors."""

    def __init__(self, layers: str = "head") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3))
        self.inputs, self.labels = torch.randn(24, 4), torch.arange(24) % 3
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.monitor = InfluenceMonitor(
            self.model,
            self.optimizer,
            (torch.randn(9, 4), torch.arange(9) % 3),
            layers=layers,
            curvature_every=1,
            refresh_every=2,
            size=24,
        )
        self.number = 0

    def step(self) -> None:
        rows = torch.arange(6) + 6 * (self.number % 4)
        self.number += 1
        with self.monitor.step(rows):
            loss = F.cross_entropy(self.model(self.inputs[rows]), self.labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()

    def assert_usable(self) -> None:
        """The model runs, torch is as it was, and steps are scored."""
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert all(module.training for module in self.model.modules())
        assert torch.backends.mha.get_fastpath_enabled()
        self.model(self.inputs)
        self.model(self.inputs[:5])
        before = self.monitor.steps
        self.step()
        self.step()
        assert self.monitor.steps == before + 2
        assert bool(torch.isfinite(self.monitor.directions.psi).all())  # type: ignore[arg-type]


def is_ours(frame: FrameType) -> bool:
    """Whether code is ours, or enters and leaves a context for it; contexts of the optimizer are torch's concern."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.endswith(CONTEXTS):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(PACKAGE)


class Interruption:
    """Raises KeyboardInterrupt at one event of our code: when a function is called, or a line begins."""

    def __init__(self, at: int | None, calls_only: bool) -> None:
        self.at, self.calls_only = at, calls_only
        self.seen = 0

    def __enter__(self) -> Interruption:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if is_ours(frame):
            self._count()
            return None if self.calls_only else self._line
        return None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._count()
        return self._line

    def _count(self) -> None:
        if self.seen == self.at:
            self.seen += 1
            sys.settrace(None)
            raise KeyboardInterrupt
        self.seen += 1


def events(layers: str, calls_only: bool) -> int:
    loop = TinyLoop(layers)
    for _ in range(4):
        loop.step()
    with Interruption(None, calls_only) as counted:
        loop.step()
        loop.step()
    return counted.seen


def interrupt_at(layers: str, calls_only: bool, stride: int) -> None:
    loop, total = TinyLoop(layers), events(layers, calls_only)
    for _ in range(4):
        loop.step()
    tried = interrupted = 0
    for at in range(0, total, stride):
        tried += 1
        try:
            with Interruption(at, calls_only):
                loop.step()
                loop.step()
        except KeyboardInterrupt:
            interrupted += 1
            loop.assert_usable()  # while the traceback still holds every frame, as in a notebook
    assert interrupted > 0.8 * tried > 20
    assert np.isfinite(loop.monitor.scores()["influence"]).all()


@pytest.mark.parametrize("layers", ["head", "all"])
def test_an_interrupt_at_any_call_leaves_the_loop_usable(layers: str) -> None:
    interrupt_at(layers, calls_only=True, stride=11)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_an_interrupt_at_any_line_leaves_the_loop_usable(layers: str) -> None:
    interrupt_at(layers, calls_only=False, stride=61)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("calls_only", [True, False], ids=["calls", "lines"])
@pytest.mark.parametrize("layers", ["head", "all"])
def test_an_interrupt_at_every_event_leaves_the_loop_usable(layers: str, calls_only: bool) -> None:
    interrupt_at(layers, calls_only, stride=1)


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Ctrl-C after so many seconds: the system's clock decides when it comes."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt_in_time(loop: TinyLoop, alarm: Callable[[float], None], count: int) -> None:
    """So many interrupts at random moments of entering and leaving steps; the passes of the model are torch's own."""
    moments, interrupted = random.Random(0), 0
    rows = torch.arange(6)
    while interrupted < count:
        try:
            alarm(moments.uniform(2e-6, 4e-4))
            for _ in range(20):
                with loop.monitor.step(rows):
                    loss = F.cross_entropy(loop.model(loop.inputs[rows]), loop.labels[rows])
                    loss.backward()
            alarm(0)
        except KeyboardInterrupt:
            interrupted += 1
            with torch.no_grad():
                loop.model(loop.inputs)
            assert torch.is_grad_enabled()
            assert all(module.training for module in loop.model.modules())
            if interrupted % 50 == 0:
                loop.assert_usable()
    loop.assert_usable()


def test_interrupts_in_time_leave_the_loop_usable(alarm: Callable[[float], None]) -> None:
    interrupt_in_time(TinyLoop(), alarm, 800)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layers", ["head", "all"])
def test_fifty_thousand_interrupts_in_time(alarm: Callable[[float], None], layers: str) -> None:
    interrupt_in_time(TinyLoop(layers), alarm, 25_000)


def test_a_step_that_is_open_is_not_taken_for_abandoned() -> None:
    loop = TinyLoop()
    loop.step()
    step = loop.monitor.step(torch.arange(6))
    with step:
        assert hasattr(step, "__exit__")
        with pytest.raises(StepError, match="already open"):
            loop.step()
        F.cross_entropy(loop.model(loop.inputs[:6]), loop.labels[:6]).backward()
    assert loop.monitor.steps == 2


def train_beside(loop: TinyLoop, steps: int, evaluating: int) -> list[BaseException]:
    """Train while other threads run the model; what these raised."""
    done, raised = threading.Event(), list[BaseException]()

    def evaluate() -> None:
        while not done.is_set():
            try:
                with torch.no_grad():
                    loop.model(loop.inputs)
                loop.model(loop.inputs).sum()
            except BaseException as error:
                raised.append(error)
            time.sleep(0)

    threads = [threading.Thread(target=evaluate) for _ in range(evaluating)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(steps):
            loop.step()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return raised


def plain(layers: str) -> TinyLoop:
    """A loop whose passes neither draw random numbers nor keep statistics, which other threads would disturb."""
    loop = TinyLoop(layers)
    loop.monitor.close()
    loop.model[1], loop.model[2] = nn.ReLU(), nn.Identity()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), 0.01)
    anchors: tuple[Tensor, Tensor] = (loop.inputs[:9] * 1.1, loop.labels[:9])
    loop.monitor = InfluenceMonitor(loop.model, loop.optimizer, anchors, layers=layers, refresh_every=2, size=24)
    return loop


def assert_threads_change_nothing(layers: str, steps: int) -> None:
    alone, beside = plain(layers), plain(layers)
    assert train_beside(alone, steps, 0) == []
    assert train_beside(beside, steps, 2) == []
    mine, theirs = alone.monitor.scores(), beside.monitor.scores()
    for name in ("influence", "confidence", "margin", "n_observations"):
        np.testing.assert_array_equal(mine[name], theirs[name])
    for a, b in zip(alone.model.parameters(), beside.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_threads_that_run_the_model_beside_training_change_nothing(layers: str) -> None:
    assert_threads_change_nothing(layers, 80)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_threads_beside_ten_thousand_steps() -> None:
    assert_threads_change_nothing("head", 10_000)
