"""The reference: every step is committed when it ends."""

from typing import Any

from sgoif.core.interrupts import guarded
from sgoif.engine.pipeline import OwnerRef
from sgoif.engine.step import OpenStep
from sgoif.execution.base import Scope, StepExecutor


class EagerExecutor(StepExecutor):
    """Commits every step at once; the default on a CPU."""

    def open(self, index: Any, weights: Any, owner: OwnerRef) -> OpenStep:
        return self.pipeline.open(index, weights, owner)

    def close(self, scope: Scope, target: Any) -> None:
        assert isinstance(scope, OpenStep)
        pipeline = self.pipeline
        pipeline.capture.end(scope.record)
        if scope.scored:
            pipeline.gradients.autocast = scope.record.autocast
        self.drain()
        pipeline.commit(pipeline.close(scope, target))

    def cancel(self, scope: Scope) -> None:
        assert isinstance(scope, OpenStep)
        self.pipeline.capture.end(scope.record)

    @guarded
    def drain(self) -> None:
        self.pipeline.complete_refresh()
