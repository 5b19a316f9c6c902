"""A number on its way from a GPU to the host."""

import torch
from torch import Tensor


class AsyncScalar:
    """Sends a number to the host without making it wait: it is there when it has arrived."""

    def __init__(self) -> None:
        self._host: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self._under_way = False

    def send(self, value: Tensor) -> None:
        """Send a number, unless another is still under way."""
        if self._under_way:
            return
        if self._host is None or self._event is None:
            self._host, self._event = torch.empty_like(value, device="cpu", pin_memory=True), torch.cuda.Event()
        self._host.copy_(value, non_blocking=True)
        self._event.record()
        self._under_way = True

    def arrived(self) -> Tensor | None:
        """What was sent last, once, when it is there."""
        if not self._under_way or self._event is None or not self._event.query():
            return None
        self._under_way = False
        return self._host
