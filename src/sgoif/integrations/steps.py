"""A monitor's step as a framework sees it: opened by one event and closed by another.

In a loop of one's own, `with monitor.step(index):` stands around forward and backward. A framework calls back before
the one and after the other, and in between an error may come, or no backward at all:

    open      enter the step, closing one that was left open
    close     leave it, so that it is scored
    abandon   leave it as after an error, so that it is forgotten
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch.utils.data import Dataset

from sgoif.analysis.health import Health
from sgoif.core.score_table import ScoreTable
from sgoif.errors import IndexingError, SettingError, SgoifError
from sgoif.integrations.records import Records
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks import LabelErrors

INDEX = "index"
logger = logging.getLogger(__name__)
BatchKey = str | int | Callable[[Any], Any] | None
"""Where something stands in a batch: a key, a position, or a function of the batch."""


class Abandoned(Exception):
    """Thrown into a step that is not to be scored; never leaves this module."""


class OpenStep:
    """At most one open step of a monitor."""

    def __init__(self) -> None:
        self._step: Any = None  # a `Step`

    def __bool__(self) -> bool:
        return self._step is not None

    def open(self, monitor: InfluenceMonitor, index: Any, target: Any = None) -> None:
        self.close()
        step = monitor.step(index, target=target)
        step.__enter__()
        self._step = step

    @property
    def answered(self) -> bool:
        """Whether a step is open and the watched model had its backward pass in it."""
        return self._step is not None and bool(self._step.answered)

    def close(self) -> None:
        """Leave the step, if one is open, and score it."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the step, if one is open, and forget it."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(Abandoned, Abandoned(), None)


class Results:
    """What a callback of a framework can tell about the training that it watches."""

    _starts: str

    def __init__(self) -> None:
        super().__init__()
        self.records: Records | None = None
        self._monitor: InfluenceMonitor | None = None
        self._step = OpenStep()

    @property
    def monitor(self) -> InfluenceMonitor:
        """The monitor of the current or last training."""
        if self._monitor is None:
            raise SettingError(f"there is no monitor yet: it is made when {self._starts}")
        return self._monitor

    def scores(self) -> ScoreTable:
        """The table of scores."""
        return self.monitor.scores()

    def health(self) -> Health:
        """Whether the run supports influence; logged when training ends."""
        return self.monitor.health()

    def errors(self, dataset: Dataset[Any] | None = None, **options: Any) -> LabelErrors:
        """Which labels are wrong; see `sgoif.tasks.LabelErrors`."""
        return LabelErrors(self.monitor, dataset=dataset, **options)

    def _release(self, error: BaseException | None) -> None:
        """Remove every hook, and forget a step that is still open."""
        self._step.abandon()
        self._remove_hooks()
        if self._monitor is not None and not self._monitor.closed:
            release(self._monitor, error)
        if self.records is not None:
            self.records.close()

    @contextmanager
    def _releasing_on_error(self) -> Iterator[None]:
        """Remove every hook where something goes wrong inside."""
        try:
            yield
        except Exception as error:
            self._release(error)
            raise

    def _remove_hooks(self) -> None:
        """Remove the hooks of this framework, beside those of the monitor."""
        raise NotImplementedError


def tell_health(monitor: InfluenceMonitor | None) -> None:
    """Log the health of a training that came to its end, as a warning where something is not well."""
    if monitor is None:
        return
    health = monitor.health()
    if monitor.communicator.rank == 0:
        level = logging.WARNING if health.warnings else logging.INFO
        logger.log(level, "the monitor after %d steps:\n%s", monitor.steps, health)


def release(monitor: InfluenceMonitor, error: BaseException | None) -> None:
    """Remove a monitor's hooks. After an error nothing is allowed to hide it, and other ranks are not waited for."""
    if error is None:
        monitor.close()
        return
    with suppress(SgoifError):
        monitor.__exit__(type(error), error, error.__traceback__)


def find_index(batch: Any, place: BatchKey) -> Any:
    """The indices in a batch: under the key "index" or in the last place, unless `place` says where."""
    if place is None:
        place = INDEX if isinstance(batch, Mapping) else -1
        if not isinstance(batch, Mapping) and not (isinstance(batch, Sequence) and len(batch) >= 3):
            raise _missing(batch, "of (x, y, index)")
    try:
        return find(batch, place)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        if callable(place):
            raise
        raise _missing(batch, f"with an index at {place!r}") from error


def find(batch: Any, place: BatchKey) -> Any:
    """What stands at some place of a batch; None where no place is named."""
    if place is None:
        return None
    return place(batch) if callable(place) else batch[place]


def _missing(batch: Any, expected: str) -> IndexingError:
    if isinstance(batch, Mapping):
        found = f"a mapping with the keys {', '.join(map(str, batch))}"
    elif isinstance(batch, Sequence):
        found = f"{len(batch)} parts"
    else:
        found = f"a {type(batch).__name__}"
    return IndexingError(
        f"the batch has no index: expected a batch {expected}, got {found}. Wrap the training set,"
        " DataLoader(indexed(train_set), ...), or say where the index is: index=KEY, index=POSITION or"
        " index=lambda batch: ..."
    )
