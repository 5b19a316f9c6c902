"""Where a monitor's figures can go: TensorBoard, Weights & Biases, MLflow, or any function of (step, values).

Each is recognised by the calls it answers to, so that a stand-in with the same calls works as well:

    add_scalar      torch.utils.tensorboard.SummaryWriter
    log_metrics     the module mlflow
    log             a run of wandb, or the module
    called itself   function(step, values)
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sgoif.errors import SettingError

Values = dict[str, float]
Sink = Callable[[int, Values], Any]
"""Takes the figures of a refresh by name."""
STEP = "sgoif/step"


def as_sink(target: Any) -> Sink:
    """The sink for a writer, a run, a module or a function."""
    if hasattr(target, "add_scalar"):
        return partial(_to_tensorboard, target)
    if hasattr(target, "log_metrics"):
        return partial(_to_mlflow, target)
    if callable(getattr(target, "log", None)):
        if hasattr(target, "define_metric"):
            target.define_metric(STEP)
            target.define_metric("sgoif/*", step_metric=STEP)
        return partial(_to_wandb, target)
    if callable(target):
        sink: Sink = target
        return sink
    raise SettingError(
        f"a {type(target).__name__} cannot take records: expected a TensorBoard SummaryWriter, a wandb run, the module"
        " mlflow, or a function of (step, values)"
    )


def _to_tensorboard(writer: Any, step: int, values: Values) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def _to_wandb(run: Any, step: int, values: Values) -> None:
    # A run's own step only ever grows and belongs to the training loop, which may be ahead: an entry for an earlier
    # step would be dropped. So the monitor's step is a figure of its own, and the axis of all the others.
    run.log({**values, STEP: step})


def _to_mlflow(module: Any, step: int, values: Values) -> None:
    # Its stores treat undefined values differently.
    module.log_metrics({name: value for name, value in values.items() if math.isfinite(value)}, step=step)
