"""What an executor does with a training step, and the `with` statement around one.

with monitor.step(index):            executor.open(index, weights, owner)   →  scope
loss(model(x), y).backward()     hooks fill the scope
executor.close(scope, target)          →  committed, now or with later steps
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch

from sgoif.core.interrupts import TorchModes, guarded
from sgoif.engine.pipeline import OwnerRef, StepPipeline
from sgoif.engine.step import OpenStep
from sgoif.tracking.head_snapshot import HeadSnapshot

Scope = OpenStep | HeadSnapshot
"""A step whose passes are watched."""


class StepExecutor(ABC):
    """Decides when steps are committed."""

    def __init__(self, pipeline: StepPipeline) -> None:
        self.pipeline, self.device = pipeline, pipeline.device

    @abstractmethod
    def open(self, index: Any, weights: Any, owner: OwnerRef) -> Scope:
        """Watch the passes that follow."""

    @abstractmethod
    def close(self, scope: Scope, target: Any) -> None:
        """Stop watching, and commit the step or see to it that it is committed later."""

    @abstractmethod
    def cancel(self, scope: Scope) -> None:
        """Stop watching, and forget the step."""

    @abstractmethod
    def drain(self) -> None:
        """Commit what was deferred: steps, and the rest of a refresh."""

    def reset(self) -> None:  # noqa: B027 - most executors know nothing of the next steps
        """Another state was loaded, so that nothing can be told of the next steps."""


class _Exit:
    """The `__exit__` of a step: an object that lives as long as the `with` statement that asked for it.

    Ctrl-C may come just when a method begins, `__exit__` as well, and then nothing of it runs. The statement lets go of
    what it would have called all the same, so that afterwards the step can be seen to be abandoned.
    """

    def __get__(self, step: TrainingStep | None, owner: type[TrainingStep] | None = None) -> Callable[..., None]:
        if step is None:
            return TrainingStep.leave
        leave = partial(step.leave)
        if step.statement is None or step.statement() is None:
            step.statement = ref(leave)
        return leave


class TrainingStep:
    """What `monitor.step` returns. A plain object: it is made in every step, and a generator would take longer."""

    __slots__ = ("__weakref__", "_executor", "_index", "_modes", "_scope", "_target", "_weights", "statement")

    def __init__(self, executor: StepExecutor, index: Any, target: Any, weights: Any) -> None:
        self._executor, self._index, self._target, self._weights = executor, index, target, weights
        self._scope: Scope | None = None
        self._modes: TorchModes | None = None
        self.statement: ref[Callable[..., None]] | None = None
        """The `with` statement around this step, as long as it has not ended."""

    __exit__ = _Exit()

    @guarded
    def __enter__(self) -> None:
        if self.abandoned:
            self.statement = None  # somebody asked for `__exit__` and did not use it
        self._modes = TorchModes(self.device.type)
        try:
            self._scope = self._executor.open(self._index, self._weights, ref(self))
        except BaseException:
            self._executor.pipeline.capture.forget(ref(self))
            raise

    @property
    def abandoned(self) -> bool:
        """Whether the `with` statement around this step has ended without leaving it."""
        return self.statement is not None and self.statement() is None

    @property
    def device(self) -> torch.device:
        return self._executor.device

    @property
    def answered(self) -> bool:
        """Whether a backward pass has come to the head of the model in this step."""
        return self._executor.pipeline.capture.reached

    @guarded
    def leave(self, kind: object = None, *_: object) -> None:
        """End the step, or forget it after an error."""
        scope, self._scope = self._scope, None  # what a step leaves behind must not live as long as this object is kept
        if kind is not None and self._modes is not None:
            self._modes.restore()
        if scope is None:
            return
        if kind is None:
            self._executor.close(scope, self._target)
        else:
            self._executor.cancel(scope)
