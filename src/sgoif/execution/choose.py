"""Which executor a monitor has."""

from sgoif.engine.pipeline import StepPipeline
from sgoif.errors import SettingError
from sgoif.execution.base import StepExecutor
from sgoif.execution.deferred import DeferredExecutor
from sgoif.execution.eager import EagerExecutor


def choose_executor(pipeline: StepPipeline) -> StepExecutor:
    """The executor that the settings name, or the one for the device; raises where a named one is impossible."""
    settings = pipeline.settings
    obstacle = _obstacle(pipeline)
    if settings.execution == "deferred" and obstacle:
        raise SettingError(f'execution="deferred" is not possible {obstacle}; use execution="auto", or "eager"')
    deferring = settings.execution == "deferred" or (settings.execution == "auto" and pipeline.device.type == "cuda")
    return DeferredExecutor(pipeline) if deferring and not obstacle else EagerExecutor(pipeline)


def _obstacle(pipeline: StepPipeline) -> str:
    """Why steps cannot be deferred, if they cannot."""
    if pipeline.communicator.size > 1:
        return "where several processes train the model"
    if pipeline.settings.budget is not None:
        return "under a budget, which times every step"
    if not pipeline.objective.classes:
        return "where targets are no classes"
    return "with allow_duplicates=True" if pipeline.settings.allow_duplicates else ""
