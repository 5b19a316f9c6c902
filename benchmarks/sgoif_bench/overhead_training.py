"""The training whose cost with and without the monitor is compared, and what is settled about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif.distributed.communicator import ProcessGroupCommunicator
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif_bench.command import Device, choose_device, setting
from sgoif_bench.models import MODELS

Watching = TypeVar("Watching", bound=InfluenceMonitor)
CLASSES = 10
POOL = 8
"""Batches that lie ready."""


@dataclass(frozen=True)
class OverheadSettings:
    """What is measured; unset values depend on the device."""

    device: Device = setting("auto", help="where to train")
    layers: str | None = setting(
        None, help="watched layers, comma-separated; unset: head (CPU), head,last-stage,all (CUDA)"
    )
    model: Literal["resnet9", "resnet18", "small-cnn", "tiny-vit"] | None = setting(
        None, help="network; unset: small-cnn (CPU), resnet18 (CUDA)"
    )
    batch_size: int | None = setting(None, help="examples in a batch; unset: 128 (CPU), 512 (CUDA)")
    examples: int | None = setting(None, help="size of the training set; unset: 6400 (CPU), 50000 (CUDA)")
    anchors: int | None = setting(None, help="held-out examples for the monitor; unset: 2%% of the examples")
    body_share: float | None = setting(
        None, help="share of the layers below the head that one step scores; unset: an eighth, at most four layers"
    )
    budget: float | None = setting(None, help="share of training time that the monitor may take; unset: no budget")
    execution: Literal["auto", "eager", "deferred"] = setting("auto", help="when the monitor commits a step")
    repeats: int = setting(5, help="ratios to take the median of")
    slice_steps: int | None = setting(None, help="steps with or without the monitor in turn; unset: 3 (CPU), 98 (CUDA)")
    least_steps: int = setting(60, help="least number of steps in a repeat")
    memory: bool = setting(True, help="measure peak memory as well")
    parts: bool = setting(False, help="the head alone, with parts of the monitor left out, so many repeats of a period")
    nproc: int = setting(1, help="processes that share every batch; their time is measured without memory")
    seed: int = setting(0, help="seed of data and weights")

    def __post_init__(self) -> None:
        for name in ("examples", "anchors", "repeats", "slice_steps", "least_steps", "batch_size", "nproc"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name.replace('_', ' ')} = {value} must be at least 1")
        if self.budget is not None and not 0 < self.budget < 1:
            raise SettingError(f"budget = {self.budget} must lie strictly between 0 and 1")


@dataclass(frozen=True)
class Plan:
    """The same with every value filled in."""

    device: str
    layers: tuple[str, ...]
    model: str
    batch_size: int
    examples: int
    anchors: int
    body_share: float | None
    repeats: int
    slice_steps: int
    least_steps: int
    seed: int
    nproc: int = 1
    budget: float | None = None
    execution: str = "auto"

    @classmethod
    def of(cls, settings: OverheadSettings) -> Plan:
        """Fill in what depends on the device."""
        device = choose_device(settings.device).type
        on_gpu = device == "cuda"
        examples = settings.examples or (50_000 if on_gpu else 6_400)
        plan = cls(
            device=device,
            layers=tuple((settings.layers or ("head,last-stage,all" if on_gpu else "head")).split(",")),
            model=settings.model or ("resnet18" if on_gpu else "small-cnn"),
            batch_size=settings.batch_size or (512 if on_gpu else 128),
            examples=examples,
            anchors=settings.anchors or max(examples // 50, CLASSES),
            body_share=settings.body_share,
            repeats=settings.repeats,
            slice_steps=settings.slice_steps or (98 if on_gpu else 3),
            least_steps=settings.least_steps,
            seed=settings.seed,
            nproc=settings.nproc,
            budget=settings.budget,
            execution=settings.execution,
        )
        if plan.batch_size % plan.nproc:
            raise SettingError(f"batch size = {plan.batch_size} cannot be shared evenly by {plan.nproc} processes")
        if plan.batch_size > plan.examples:
            raise SettingError(f"batch size = {plan.batch_size} is larger than the training set of {plan.examples}")
        return plan


class Training:
    """A model in training on made-up images of CIFAR's shape, with any of several monitors or none."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.device = torch.device(plan.device)
        self.part = slice(None) if plan.nproc == 1 else ProcessGroupCommunicator().share(plan.batch_size)
        on_gpu = self.device.type == "cuda"
        layout = torch.channels_last if on_gpu else torch.contiguous_format
        torch.manual_seed(plan.seed)
        self.model = MODELS[plan.model](3, CLASSES).to(self.device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.classes = torch.randn(CLASSES, 3, 32, 32)
        labels = torch.randint(CLASSES, (POOL, plan.batch_size))
        self.pool = [self._images(y)[self.part].to(self.device).contiguous(memory_format=layout) for y in labels]
        self.labels = labels[:, self.part].to(self.device)
        self.held_out = self._holdout(plan.anchors)
        self.network = self.model if plan.nproc == 1 else nn.parallel.DistributedDataParallel(self.model)
        self.indices = self._indices()
        self.done = 0

    def watched(self, layers: str, make: Callable[..., Watching]) -> Watching:
        """A monitor of these layers, made by `make`, which `run` puts on the model."""
        plan = self.plan
        monitor = make(
            self.network,
            self.optimizer,
            anchors=self.held_out,
            size=plan.examples,
            layers=layers,
            body_share=plan.body_share,
            budget=plan.budget,
            execution=plan.execution,
            seed=plan.seed,
        )
        monitor.capture.unhook()
        return monitor

    def _holdout(self, count: int) -> TensorDataset:
        """What anchors are taken from; there with the monitor and without it, as with whoever holds examples out."""
        labels = torch.arange(count) % CLASSES
        return TensorDataset(self._images(labels), labels)

    def _images(self, labels: Tensor) -> Tensor:
        """A pattern per class under a lot of noise, so that there is something to learn."""
        return 0.3 * self.classes[labels] + torch.randn(len(labels), 3, 32, 32)

    def run(self, steps: int, monitor: InfluenceMonitor | None = None) -> tuple[float, float]:
        """So many training steps; the seconds they took on the wall clock, and of processor time."""
        if monitor is not None:
            monitor.capture.hook()
        self._wait()
        start, busy = time.perf_counter(), time.process_time()
        if monitor is not None:
            account = monitor.schedule.time
            account.resume(*account.counts_and_times())  # a budget is a share of its own time alone
        for _ in range(steps):
            x, y, index = self.pool[self.done % POOL], self.labels[self.done % POOL], next(self.indices)
            self.done += 1
            with monitor.step(index) if monitor is not None else nullcontext():
                with self._autocast():
                    loss = F.cross_entropy(self.network(x), y)
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._wait()
        taken = time.perf_counter() - start, time.process_time() - busy
        if monitor is not None:
            monitor.schedule.time.end(0)
            monitor.capture.unhook()
        return taken

    def warm_up(self, monitor: InfluenceMonitor, most_epochs: int = 8) -> int:
        """Train until refreshes of the monitor come at their longest interval; the steps between two of them."""
        gaps: list[int] = []
        batch, examples = self.plan.batch_size, self.plan.examples
        while monitor.steps < most_epochs * (examples // batch):
            self.run(1, monitor)
            gaps = np.diff([int(entry["step"]) for entry in monitor.history]).tolist()
            if gaps and gaps[-1] * batch >= monitor.schedule.longest(examples):
                break
        return max([1, *gaps[-1:]])

    def _indices(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(self.plan.examples, generator=generator)
            size = self.plan.batch_size
            yield from (part[self.part] for part in order.split(size) if len(part) == size)

    def _autocast(self) -> AbstractContextManager[Any]:
        on_gpu = self.device.type == "cuda"
        return torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
