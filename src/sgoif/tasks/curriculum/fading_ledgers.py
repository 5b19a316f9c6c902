"""What the examples of a run have answered, with weights of its own.

The monitor's ledger weighs a step by the loss on held-out data, so that a run that learns by heart is judged by what it
said before. A curriculum undoes both the memorising and that weight: a network that no longer learns wrong labels
contradicts those of the hold-out, and the more certain it becomes the higher is its loss on them, often past that of a
guess. Later, better answers would then count for nothing, and the weights would stay what the first judgements made
them. Here the warm-up, in which little is known, counts like one pass over the data, every later pass like every other
when it is new, and all of them `fade` times as much at each judgement that follows.
"""

from copy import copy
from typing import Any

from torch import Tensor

from sgoif.core.serialization import nest, unnest
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.influence import StepScores, remember
from sgoif.scoring.ledger import SUMS, Ledger, merged
from sgoif.scoring.step_batch import Observation

SQUARED = SUMS.index("weight2")


class FadingLedgers:
    """A second ledger of training examples, and one of held-out examples, beside those of a monitor."""

    def __init__(self, monitor: InfluenceMonitor) -> None:
        self.monitor = monitor
        self.training, self.held_out = monitor.ledger.blank(), monitor.anchor_ledger.blank()
        # What the monitor remembers is little beside what is seen from now on, and all where nothing follows.
        self.training.load_state_dict(monitor.ledger.state_dict())
        self.held_out.load_state_dict(monitor.anchor_ledger.state_dict())
        self.attach()

    def attach(self) -> None:
        """Watch the steps of the monitor."""
        if self._observe not in self.monitor.observers:
            self.monitor.observers.append(self._observe)

    def detach(self) -> None:
        """Watch no more steps; what was seen stays."""
        if self._observe in self.monitor.observers:
            self.monitor.observers.remove(self._observe)

    def record(self) -> Ledger:
        """The training examples, of all ranks together."""
        communicator = self.monitor.communicator
        return self.training if communicator.size == 1 else merged(self.training, communicator)

    def ask_held_out(self, *, everything: bool = False) -> None:
        """Ask the anchors, or the whole hold-out, what they answer now."""
        monitor = self.monitor
        asked = (monitor.anchor_ledger.column("count") > 0) | everything
        monitor.held_out.score_into(self.held_out, asked.nonzero().squeeze(1).cpu(), monitor.anchors.read)

    def fade(self, factor: float) -> None:
        """Let what was seen so far count so many times as much beside what comes."""
        for ledger in (self.training, self.held_out):
            ledger.sums *= factor
            ledger.sums[:, SQUARED] *= factor

    def state_dict(self) -> dict[str, Any]:
        """What all ranks remember together."""
        parts = {"training": self.record(), "held_out": self.held_out}
        return {
            key: value.clone() if isinstance(value, Tensor) else value
            for name, ledger in parts.items()
            for key, value in nest(name, ledger.state_dict()).items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; one that does not fit raises and changes nothing."""
        training, held_out = self.training.blank(), self.held_out.blank()
        training.load_state_dict(unnest("training", state))
        held_out.load_state_dict(unnest("held_out", state))
        if self.monitor.communicator.rank > 0:
            training.forget()  # what was seen so far counts once: on the first rank
        self.training, self.held_out = training, held_out

    def _observe(self, steps: Observation, scores: StepScores) -> None:
        del steps
        monitor = self.monitor
        self.training.reserve(monitor.ledger.used - 1)
        remember(
            self.training, copy(monitor.scaling), scores, monitor.directions.support, 1.0, monitor.settings.help_weight
        )
