"""Where a monitor's history can go: TensorBoard, Weights & Biases, MLflow, or any function.

Each is recognised by the calls it answers to, so that a stand-in with the same calls works as well:

    add_scalar, add_histogram, add_image   torch.utils.tensorboard.SummaryWriter
    log_metrics, log_image                 the module mlflow
    log                                    a run of wandb, or the module
    called itself                          function(step, values)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from sgoif.errors import SettingError

Picture = np.ndarray[Any, np.dtype[np.uint8]]
"""Height × width × 3."""
STEP = "sgoif/step"


@runtime_checkable
class Sink(Protocol):
    """Takes what a monitor has to say after a refresh."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Figures by name."""

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        """The distribution of some values."""

    def image(self, step: int, name: str, picture: Picture) -> None:
        """A picture."""


def as_sink(target: Any) -> Sink:
    """The sink for a writer, a run, a module or a function."""
    if isinstance(target, Sink):
        return target
    if hasattr(target, "add_scalar"):
        return TensorBoard(target)
    if hasattr(target, "log_metrics"):
        return MLflow(target)
    if callable(getattr(target, "log", None)):
        return Run(target)
    if callable(target):
        return Function(target)
    raise SettingError(
        f"a {type(target).__name__} cannot take records: expected a TensorBoard SummaryWriter, a wandb run, the module"
        " mlflow, or a function of (step, values)"
    )


class TensorBoard:
    """A SummaryWriter."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        self.writer.add_histogram(name, values, step)

    def image(self, step: int, name: str, picture: Picture) -> None:
        self.writer.add_image(name, picture, step, dataformats="HWC")


class Run:
    """A run of Weights & Biases.

    Its own step only ever grows and belongs to the training loop, which may be ahead: an entry for an earlier step
    would be dropped. So the monitor's step is a figure of its own, and the axis of all the others.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        define = getattr(run, "define_metric", None)
        if define is not None:
            define(STEP)
            define("sgoif/*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, STEP: step})

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        self.run.log({name: self._as("Histogram", values.cpu().numpy()), STEP: step})

    def image(self, step: int, name: str, picture: Picture) -> None:
        self.run.log({name: self._as("Image", picture), STEP: step})

    @staticmethod
    def _as(kind: str, values: Any) -> Any:
        """The values in wandb's own type; wandb is imported wherever there is a real run."""
        make = getattr(sys.modules.get("wandb"), kind, None)
        return values if make is None else make(values)


class MLflow:
    """The module mlflow, with an active run. It has no histograms, so quantiles stand in for them."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # Its stores refuse some names and treat undefined values differently.
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self.module.log_metrics(finite, step=step)

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        if len(values):
            found = np.quantile(values.cpu().numpy(), [0.1, 0.5, 0.9])
            self.scalars(step, {f"{name}_q{q}": x for q, x in zip((10, 50, 90), found.tolist(), strict=True)})

    def image(self, step: int, name: str, picture: Picture) -> None:
        self.module.log_image(picture, f"{name}_{step}.png")


class Function:
    """A function of (step, values)."""

    def __init__(self, function: Callable[[int, dict[str, Any]], Any]) -> None:
        self.function = function

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.function(step, dict(values))

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        self.function(step, {name: values.cpu().numpy()})

    def image(self, step: int, name: str, picture: Picture) -> None:
        self.function(step, {name: picture})
