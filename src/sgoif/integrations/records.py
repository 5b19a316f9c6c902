"""What a monitor has to say, sent to experiment trackers while it says it: `follow(monitor, writer, run)`.

Every refresh leaves an entry in `monitor.history`; `update` sends those that are new, each as `sgoif/NAME`, and
with the newest quantiles of the anchors' confidences. A loop need not call it: the monitor does whenever it has scored
a block of steps. Of several ranks the first sends.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from sgoif.integrations.sinks import Sink, as_sink
from sgoif.monitor import InfluenceMonitor

PREFIX = "sgoif/"
QUANTILES = (10, 50, 90)
"""Percent of the anchors' confidences that are sent."""


def follow(monitor: InfluenceMonitor, *sinks: Any) -> "Records":
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self) -> int:
        """Send what is new; returns the number of entries."""
        new, self._sent = self.monitor.history[self._sent :], len(self.monitor.history)
        if not new or self.monitor.communicator.rank > 0:
            return len(new)
        found = np.percentile(self.monitor.anchors.confidence.detach().cpu().numpy(), QUANTILES).tolist()
        quantiles = {f"confidence_q{percent}": value for percent, value in zip(QUANTILES, found, strict=True)}
        for entry in new:
            figures = {**entry, **(quantiles if entry is new[-1] else {})}
            values = {PREFIX + name: float(value) for name, value in figures.items() if name != "step"}
            for sink in self.sinks:
                sink(int(entry["step"]), dict(values))
        return len(new)

    def close(self) -> None:
        """Send the rest, and follow no longer. Writers and runs stay open."""
        self.update()
        if self._observe in self.monitor.observers:
            self.monitor.observers.remove(self._observe)

    def _observe(self, *_: object) -> None:
        self.update()
