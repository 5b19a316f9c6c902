"""Whether losses and gradients are finite."""

from typing import Any

import torch
from torch import Tensor

from sgoif.device.async_scalar import AsyncScalar
from sgoif.errors import NonFiniteError


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
        """Look at one or more steps; raises on the host only.

        Infinite (not undefined) gradients in float16 are the normal overflow of a loss scaler and pass quietly: the
        scaler skips such a step and so do the scores.
        """
        if self.skip:
            return
        gradient = delta.clamp(-1, 1) if delta.dtype == torch.float16 else delta
        # Anything infinite or undefined makes the sum undefined after the multiplication with zero.
        self.flag += (logits.sum(dtype=torch.float32) + gradient.sum(dtype=torch.float32)) * 0
        if self.at_once:
            self.raise_if_set()

    def to_skip(self, logits: Tensor, delta: Tensor) -> bool:
        """Whether a step is to be dropped; waits for the device."""
        return self.skip and not bool(logits.isfinite().all() & delta.isfinite().all())

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
        faulty = bool(self.flag.isnan())
        self.flag.zero_()
        if faulty:
            raise NonFiniteError(
                "the loss or its gradient was infinite or not a number; the scores of such steps were dropped and the"
                " monitor goes on. Lower the learning rate, clip gradients, check the inputs and that no weight is"
                " zero; pass skip_nonfinite=True to drop such steps quietly"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"_nonfinite": self.flag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flag.copy_(state["_nonfinite"])
