"""What a monitor has to say, sent to experiment trackers while it says it: `follow(monitor, writer, run)`.

Every refresh leaves an entry in `monitor.history`; `update` sends those that are new, each as `sgoif/NAME`, and the
distribution of the anchors' confidences with the newest. A loop need not call it: the monitor does whenever it has
scored a block of steps. Of several ranks the first sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from sgoif.errors import SettingError
from sgoif.integrations.sinks import Picture, Sink, as_sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sgoif.monitor import InfluenceMonitor

PREFIX = "sgoif/"


def follow(monitor: InfluenceMonitor, *sinks: Any) -> Records:
    """Send the history of a monitor to experiment trackers from now on.

    Args:
        monitor: what is followed.
        *sinks: TensorBoard writers, wandb runs, the module mlflow, or functions of (step, values).

    Returns:
        What sends them; a context manager, whose `close` sends the rest.

    Example:
        ```python
        from sgoif.integrations.records import follow

        with follow(monitor, lambda step, values: print(step, sorted(values))):
            train()                                         # the loop, as it is
        ```
    """
    return Records(monitor, [as_sink(sink) for sink in sinks])


class Records:
    """A monitor on one side, trackers on the other; `close` sends the rest."""

    def __init__(self, monitor: InfluenceMonitor, sinks: Sequence[Sink]) -> None:
        self.monitor = monitor
        self.sinks = list(sinks)
        self._sent = len(monitor.history)
        monitor.observers.append(self._observe)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self) -> int:
        """Send what is new; returns the number of entries."""
        new, self._sent = self.monitor.history[self._sent :], len(self.monitor.history)
        if not new or self.monitor.communicator.rank > 0:
            return len(new)
        for entry in new:
            values = {PREFIX + name: float(value) for name, value in entry.items() if name != "step"}
            for sink in self.sinks:
                sink.scalars(int(entry["step"]), values)
        confidence = self.monitor.anchors.confidence.detach()
        for sink in self.sinks:
            sink.histogram(int(new[-1]["step"]), PREFIX + "confidence", confidence)
        return len(new)

    def worst_images(
        self, dataset: Dataset[Any], count: int = 16, *, class_names: Sequence[str] | None = None
    ) -> np.ndarray[Any, Any]:
        """Send a grid of the most harmful examples with their index, label and influence; all ranks call this.

        Args:
            dataset: the one whose indices the loop uses, or a part of it.
            count: number of images.
            class_names: one name for every class.

        Returns:
            The indices of the examples.
        """
        from sgoif.integrations.image_grid import image_grid

        if count < 1:
            raise SettingError(f"count={count!r} is not valid: expected at least one image")
        worst = self.monitor.scores().worst(count)
        worst = worst.take(np.isfinite(worst["influence"]))
        if len(worst) and self.monitor.communicator.rank == 0:
            picture: Picture = image_grid(dataset, worst["index"].tolist(), worst["influence"].tolist(), class_names)
            for sink in self.sinks:
                sink.image(self.monitor.steps, PREFIX + "worst_images", picture)
        return np.asarray(worst["index"])

    def close(self) -> None:
        """Send the rest, and follow no longer. Writers and runs stay open."""
        self.update()
        if self._observe in self.monitor.observers:
            self.monitor.observers.remove(self._observe)

    def _observe(self, *_: object) -> None:
        self.update()
