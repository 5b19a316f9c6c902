"""Scores of whole sets and what they cost, for several methods that share one look at every batch.

The cost of a method is the time from images on the device to scores: the forward pass that its detector looks at, plus
its score. It is compared with a plain forward pass of the network on the same 256 images, in the same layout and
without gradients too, as one would ask a trained network for its answers. All are measured in turn, round after round,
so that a change of the machine's pace meets all of them alike, and the middle round counts. The first rounds warm up
and do not count. Where a round is soon over, there are more of them: of nine, the middle one of the same steps differs
by a few hundredths of a forward pass from run to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.jobs import reason_of
from sgoif_bench.ood.measures import Scores

S = TypeVar("S")
BATCH = 256
ROUNDS = 9
MOST_ROUNDS = 99
SECONDS = 1.0
"""There are more rounds than `ROUNDS` as long as all of them take no longer."""
WARM = 3
"""Rounds before those: in them a GPU sets memory aside, and what can be started at once is recorded."""
PLAIN = ""


@dataclass
class Panel(Generic[S]):
    """Methods that look at the same batches. One that fails is left out from then on, with the reason."""

    see: Callable[[Tensor], S]
    """What all of them need of a batch, made once."""
    score: dict[str, Callable[[S], Tensor]]
    failures: dict[str, str] = field(default_factory=dict)

    def scores(self, batches: Iterable[Tensor], what: str) -> dict[str, Scores]:
        """Every method's scores of a set; `what` names it in a reason."""
        parts: dict[str, list[Scores]] = {name: [] for name in self.score}
        any_batch = False
        for x in batches:
            any_batch, seen = True, self.see(x)
            for name in list(self.score):
                found = self._tried(name, seen, len(x), what)
                if found is not None:
                    parts[name].append(found)
        if not any_batch:
            raise SettingError(f"no image of {what} can be read")
        return {name: np.concatenate(parts[name]) for name in self.score}

    def _tried(self, name: str, seen: S, size: int, what: str) -> Scores | None:
        try:
            found: Scores = self.score[name](seen).detach().double().cpu().numpy()
            if found.shape != (size,):
                raise SettingError(f"scores of shape {found.shape} came back for {size} images of {what}")
            if np.isnan(found).any():
                raise SettingError(f"{int(np.isnan(found).sum())} of {size} scores of {what} are not numbers")
        except Exception as error:
            self.failures[name] = reason_of(error)
            del self.score[name]
            return None
        return found

    def cost(self, plain: nn.Module, x: Tensor, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
        """For every method milliseconds per image and how many plain forward passes that is."""
        forward = no_grad(plain)
        every: dict[str, Callable[[], object]] = {PLAIN: lambda: forward(x)}
        every |= {name: self._from_images(score, x) for name, score in self.score.items()}
        spent: dict[str, list[float]] = {name: [] for name in every}
        until = time.perf_counter() + SECONDS
        for number in range(WARM + MOST_ROUNDS):
            if number >= WARM + rounds and time.perf_counter() > until:
                break
            for name, task in every.items():
                seconds = timed(task, x.device)
                if number >= WARM:
                    spent[name].append(seconds)
        base = median(spent.pop(PLAIN))
        return {
            name: {"ms_per_image": 1000 * median(times) / len(x), "time_ratio": median(times) / base}
            for name, times in spent.items()
        }

    def _from_images(self, score: Callable[[S], Tensor], x: Tensor) -> Callable[[], object]:
        return lambda: score(self.see(x))


def no_grad(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """A forward pass in evaluation mode that keeps no graph."""
    model.eval()

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(x)
        return logits

    return forward


def timed(task: Callable[[], object], device: torch.device) -> float:
    """Seconds until the task is done, on the device too."""
    _synchronise(device)
    start = time.perf_counter()
    task()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def accuracy(classifier: nn.Module, batches: Iterable[Tensor], labels: NDArray[np.int64]) -> float:
    """Share of the in-distribution test images that are classified rightly."""
    forward = no_grad(classifier)
    predicted = torch.cat([forward(x).argmax(dim=1).cpu() for x in batches])
    return float((predicted.numpy() == labels).mean())


def exactly(images: Tensor, count: int) -> Tensor:
    """So many images, repeated from the start where there are fewer."""
    return images[torch.arange(count) % len(images)]
