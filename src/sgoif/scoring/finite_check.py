"""Whether losses and gradients are finite."""

from typing import Any

import torch
from torch import Tensor

from sgoif.device.async_scalar import AsyncScalar
from sgoif.tracking.validation import check_finite, is_finite, raise_if_nonfinite


class FiniteCheck:
    """Raises for a step whose loss was not finite: at once on the host, and some steps later where a GPU runs behind.

    `skip` drops such steps quietly.
    """

    def __init__(self, device: torch.device, skip: bool) -> None:
        self.skip = skip
        self.at_once = device.type == "cpu"
        """Whether looking makes nobody wait."""
        self.flag = torch.zeros((), device=device)
        """Not a number once a step was not finite."""
        self.arrival = AsyncScalar()

    def note(self, logits: Tensor, delta: Tensor) -> None:
        """Look at one or more steps; raises on the host only."""
        self.flag.copy_(check_finite(logits, delta, self.flag, self.skip))

    def to_skip(self, logits: Tensor, delta: Tensor) -> bool:
        """Whether a step is to be dropped."""
        return self.skip and not is_finite(logits, delta)

    def send(self) -> None:
        """Have the flag on its way to the host."""
        if not self.at_once:
            self.arrival.send(self.flag)

    def poll(self) -> None:
        """Raise if a flag that has arrived says so."""
        if (note := self.arrival.arrived()) is not None and bool(note.isnan()):
            self.raise_if_set()

    def raise_if_set(self) -> None:
        """Raise if a step was not finite, once."""
        note = self.flag.clone()
        self.flag.zero_()
        raise_if_nonfinite(note)

    def state_dict(self) -> dict[str, Any]:
        return {"_nonfinite": self.flag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flag.copy_(state["_nonfinite"])
