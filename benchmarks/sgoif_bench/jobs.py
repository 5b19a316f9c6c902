"""What a benchmark that runs a grid is made of: jobs, something that does them, and what comes of each."""

from __future__ import annotations

import gc
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

from sgoif.core.provenance import machine, versions
from sgoif.errors import SgoifError
from sgoif_bench.command import Say, say, sentence
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


class KeyedJob(Job, Protocol):
    """One whose results are lines of a file that others with the same key replace."""

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that its results depend on."""

    def key(self, method: str) -> Any:
        """What tells the line of one of its methods from all others, a named tuple."""


@dataclass(frozen=True)
class NoisyJob:
    """A job on a data set with one kind of wrong labels; the grid adds the recipe and the key."""

    set: str
    noise: str
    seed: int
    family: str
    methods: tuple[str, ...]

    @property
    def place(self) -> dict[str, Any]:
        """Data set, noise and seed."""
        return {"set": self.set, "noise": self.noise, "seed": self.seed}

    def called(self, name: str) -> str:
        """A method, or what else the name is of, at this place, for a person."""
        return f"{self.set} {self.noise} {name} seed {self.seed}"

    def __str__(self) -> str:
        return self.called(" and ".join(self.methods))


J = TypeVar("J", bound=Job)
KJ = TypeVar("KJ", bound=KeyedJob)
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


class OneDevice(ABC, Generic[KJ]):
    """What runners have in common, which are data classes with at least these fields."""

    command: str
    device: torch.device
    tell: Say

    @abstractmethod
    def lines(self, job: KJ) -> tuple[list[Line], dict[str, str]]:
        """Lines for the methods that worked, reasons for the others."""

    def do(self, job: KJ) -> Result:
        """What comes of a job."""
        result = tried(job, self.lines)
        free_memory(self.device)
        return result

    def moved(self, device: torch.device) -> Self:
        """The same for another process."""
        return replace(self, device=device, tell=say)  # type: ignore[type-var]

    def origin(self, job: KJ, method: str, **further: Any) -> Line:
        """What a line says about where it comes from."""
        made = {"command": self.command, "versions": versions(), "machine": machine(self.device)}
        return {**job.key(method)._asdict(), **further, "recipe": job.recipe, **made}


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
