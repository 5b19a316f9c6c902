"""What a benchmark that runs a grid is made of: jobs, something that does them, and what comes of each."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import torch

from sgoif.errors import SgoifError
from sgoif_bench.command import Say, sentence
from sgoif_bench.journal import Line


class Job(Protocol):
    """One training, and the methods whose results come from it."""

    @property
    def set(self) -> str:
        """The data set."""

    @property
    def family(self) -> str:
        """Jobs of one family on one data set take about as long."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What is still to be computed."""

    @property
    def place(self) -> dict[str, Any]:
        """Where its results belong in the grid, method apart."""

    def called(self, name: str) -> str:
        """One of its methods, or its family, at its place, for a person."""


J = TypeVar("J", bound=Job)
J_in = TypeVar("J_in", bound=Job, contravariant=True)


@dataclass(frozen=True)
class Result:
    """What came of a job: lines for the methods that worked, reasons for the others."""

    lines: list[Line] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Runner(Protocol[J_in]):
    """Does jobs, one after the other, on one device."""

    @property
    def device(self) -> torch.device: ...

    @property
    def tell(self) -> Say: ...

    def check(self, jobs: Sequence[J_in]) -> None:
        """Find out before anything is trained that something does not fit."""

    def do(self, job: J_in) -> Result:
        """An error is an answer too; only an interrupt gets through."""

    def moved(self, device: torch.device) -> Self:
        """The same for another process, which tells a person directly and has nothing in memory yet."""

    def forget(self) -> None:
        """Give the memory of data sets back."""


def tried(job: J, lines: Callable[[J], tuple[list[Line], dict[str, str]]]) -> Result:
    """What `lines` makes of a job, and how long it took. An error is an answer too; only an interrupt gets through."""
    start = time.perf_counter()
    try:
        found, failures = lines(job)
    except Exception as error:
        found, failures = [], dict.fromkeys(job.methods, reason_of(error))
    return Result(found, failures, time.perf_counter() - start)


def free_memory(device: torch.device) -> None:
    """Give back what a job left on a GPU."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def reason_of(error: Exception) -> str:
    """A user's mistake as a sentence; anything else with where it happened."""
    if isinstance(error, SgoifError):
        return sentence(error)
    return "".join(traceback.format_exception(error)).rstrip()
