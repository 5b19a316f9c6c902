"""What the monitor costs: time and peak memory of monitored training, as a ratio to plain training.

    python -m sgoif.bench.overhead --device cuda --out results/overhead-cuda.json

One model trains in alternating slices of steps with the monitor and without it, its hooks taken off, so that both meet
the same machine and the same memory: of two copies of a model one may be slower by more than the monitor costs. A
repeat covers a whole number of the monitor's refresh periods: everything that happens from time to time (passes over
the anchors, solving, replacement) is inside the ratio in the proportion in which it really happens. Batches lie ready
on the device; with data loading in both loops the ratio could only be lower.
Peak memory is measured apart from time, each variant alone: `torch.cuda.max_memory_allocated`, or on the CPU the peak
resident size of a fresh process.

Other programs disturb a shared machine by more than the monitor costs. Beside `time_ratio`, the median over repeats of
whole periods, stands `quiet_time_ratio`: the median slice without a refresh, plus the median refresh in its proportion,
over the median plain slice. `processor_time_ratio` counts processor time; on a GPU that is the host's alone.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif.bench.command import Device, Say, choose_device, run_command, say, setting
from sgoif.bench.memory import resident_peak
from sgoif.bench.models import MODELS
from sgoif.bench.overhead_parts import measure_parts, parts_table
from sgoif.errors import SettingError, SgoifError
from sgoif.monitor import InfluenceMonitor
from sgoif.processes import choose_gpu, joined, launch, placed
from sgoif.ranks import SeveralRanks
from sgoif.scoring import BLOCK_STEPS, SETTLED

Watching = TypeVar("Watching", bound=InfluenceMonitor)
PROGRAM = "python -m sgoif.bench.overhead"
CLASSES = 10
POOL = 8
PROBE = "--probe-peak-memory"
PROBES = 7
"""Processes whose peak size is measured on a CPU; by how it happens to place large tensors, one differs by 3%."""
TARGETS = {
    ("cuda", "head"): 1.02,
    ("cuda", "last-stage"): 1.08,
    ("cuda", "all"): 1.35,
    ("cpu", "head"): 1.03,
}
"""Largest time ratio each setting is meant to have."""
SHARED_TARGET = 1.10
"""The same where several processes share the work."""


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
        self.part = slice(None) if plan.nproc == 1 else SeveralRanks().share(plan.batch_size)
        on_gpu = self.device.type == "cuda"
        layout = torch.channels_last if on_gpu else torch.contiguous_format
        torch.manual_seed(plan.seed)
        self.model = MODELS[plan.model](3, CLASSES).to(self.device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.classes = torch.randn(CLASSES, 3, 32, 32)
        labels = torch.randint(CLASSES, (POOL, plan.batch_size))
        self.pool = [self._images(y)[self.part].to(self.device).contiguous(memory_format=layout) for y in labels]
        self.labels = labels[:, self.part].to(self.device)
        self.network = self.model if plan.nproc == 1 else nn.parallel.DistributedDataParallel(self.model)
        self.indices = self._indices()
        self.done = 0
        self._left: dict[InfluenceMonitor, float] = {}

    def watched(self, layers: str, make: Callable[..., Watching]) -> Watching:
        """A monitor of these layers, made by `make`, which `run` puts on the model."""
        plan = self.plan
        held_out = torch.arange(plan.anchors) % CLASSES
        monitor = make(
            self.network,
            self.optimizer,
            anchors=TensorDataset(self._images(held_out), held_out),
            size=plan.examples,
            layers=layers,
            body_share=plan.body_share,
            budget=plan.budget,
            seed=plan.seed,
        )
        monitor._capture.unhook()
        return monitor

    def _images(self, labels: Tensor) -> Tensor:
        """A pattern per class under a lot of noise, so that there is something to learn."""
        return 0.3 * self.classes[labels] + torch.randn(len(labels), 3, 32, 32)

    def run(self, steps: int, monitor: InfluenceMonitor | None = None) -> tuple[float, float]:
        """So many training steps; the seconds they took on the wall clock, and of processor time."""
        if monitor is not None:
            monitor._capture.hook()
        self._wait()
        start, busy = time.perf_counter(), time.process_time()
        if monitor is not None and monitor in self._left:
            monitor.cadence.leave_out(start - self._left[monitor])  # a budget is a share of its own time alone
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
        end = time.perf_counter()
        taken = end - start, time.process_time() - busy
        if monitor is not None:
            self._left[monitor] = end
            monitor._capture.unhook()
        return taken

    def warm_up(self, monitor: InfluenceMonitor, most_epochs: int = 8) -> int:
        """Train until refreshes of the monitor come at their longest interval; the steps between two of them."""
        gaps: list[int] = []
        batch, examples = self.plan.batch_size, self.plan.examples
        while monitor.steps < most_epochs * (examples // batch):
            self.run(1, monitor)
            gaps = np.diff([int(entry["step"]) for entry in monitor.history]).tolist()
            if gaps and gaps[-1] * batch >= monitor.cadence.longest(examples):
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


def run_overhead(settings: OverheadSettings, tell: Say = say) -> dict[str, Any]:
    """Measure what watching costs: training time and peak memory with the monitor, as ratios to plain training."""
    start = time.perf_counter()
    plan = Plan.of(settings)
    if plan.nproc > 1 and not placed():
        return _together(settings, plan)
    if settings.parts:
        return {"plan": asdict(plan), **_parts(plan, tell), "seconds": time.perf_counter() - start}
    measured: dict[str, dict[str, Any]] = {}
    plain_peak = _peak_memory(plan, None) if settings.memory else None
    for layers in plan.layers:
        row: dict[str, Any] = {"time_target": TARGETS.get((plan.device, layers)) if plan.nproc == 1 else SHARED_TARGET}
        if plain_peak is not None:
            peak = _peak_memory(plan, layers)
            row |= {"memory_ratio": peak / plain_peak, "memory_plain_mb": plain_peak, "memory_monitored_mb": peak}
        measured[layers] = row | _time(plan, layers, tell)
    return {"plan": asdict(plan), "layers": measured, "seconds": time.perf_counter() - start}


def _parts(plan: Plan, tell: Say) -> dict[str, Any]:
    training = Training(plan)
    return measure_parts(training, partial(training.watched, "head"), plan.repeats, plan.slice_steps, tell)


def _together(settings: OverheadSettings, plan: Plan) -> dict[str, Any]:
    """The same by several processes; the first one's clock counts, and the others keep step with it."""
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        answer = Path(folder) / "answer.json"
        alike = replace(settings, memory=False)
        if launch(plan.nproc, partial(_first, alike, answer), partial(_joined, alike, _quiet)):
            raise SgoifError("the processes that measure have failed; what they said stands above")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _first(settings: OverheadSettings, answer: Path) -> int:
    answer.write_text(json.dumps(_joined(settings, say)), encoding="utf-8")
    return 0


def _joined(settings: OverheadSettings, tell: Say) -> dict[str, Any]:
    choose_gpu()
    with joined(choose_device(settings.device)):
        return run_overhead(settings, tell)


def _quiet(message: str) -> None:
    del message


def _time(plan: Plan, layers: str, tell: Say) -> dict[str, Any]:
    training = Training(plan)
    start = time.perf_counter()
    monitor = training.watched(layers, InfluenceMonitor)
    setup_seconds = time.perf_counter() - start
    tell(f"{layers}: warming up until refreshes come at a steady pace")
    training.run(plan.slice_steps)
    period = training.warm_up(monitor)
    length = period * -(-plan.least_steps // period)
    before = len(monitor.history)
    seconds = {"plain": np.zeros(2), "monitored": np.zeros(2)}
    ratios, processor_ratios = [], []
    slices: dict[str, list[float]] = {"plain": [], "monitored": []}
    for repeat in range(plan.repeats):
        spent = {"plain": np.zeros(2), "monitored": np.zeros(2)}
        turns = [("plain", None), ("monitored", monitor)]
        for number, steps in enumerate(_slices(length, plan.slice_steps)):
            for name, watching in turns if (number + repeat) % 2 == 0 else turns[::-1]:
                known = len(monitor.history)
                taken = training.run(steps, watching)
                spent[name] += taken
                if len(monitor.history) == known:
                    slices[name].append(taken[0] / steps)
        wall, processor = (spent["monitored"] / spent["plain"]).tolist()
        ratios.append(wall)
        processor_ratios.append(processor)
        seconds = {name: total + spent[name] for name, total in seconds.items()}
        tell(f"{layers}: repeat {repeat + 1} of {plan.repeats}, {length} steps each: {wall:.4f}×")
    refreshes = monitor.history[before:]
    start = time.perf_counter()
    monitor.scores()
    scores_seconds = time.perf_counter() - start
    monitor.close()
    steps = length * plan.repeats
    refresh = float(np.median([entry["seconds"] for entry in refreshes])) if refreshes else 0.0
    quiet = (float(np.median(slices["monitored"])) + refresh / period) / float(np.median(slices["plain"]))
    return {
        "quiet_time_ratio": quiet,
        "time_ratio": float(np.median(ratios)),
        "time_ratio_low": min(ratios),
        "time_ratio_high": max(ratios),
        "time_ratios": ratios,
        "processor_time_ratio": float(np.median(processor_ratios)),
        "plain_ms_per_step": 1000 * float(seconds["plain"][0]) / steps,
        "monitored_ms_per_step": 1000 * float(seconds["monitored"][0]) / steps,
        "steps_per_repeat": length,
        "refresh_period": period,
        "refreshes_measured": len(refreshes),
        "stride": monitor.cadence.stride,
        "refresh_seconds": refresh,
        "setup_seconds": setup_seconds,
        "scores_seconds": scores_seconds,
    }


def _slices(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, length, size)]


def _peak_memory(plan: Plan, layers: str | None) -> float:
    """Peak memory in MiB of a short training that contains refreshes of the monitor."""
    if plan.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        _short_training(plan, layers)
        return torch.cuda.max_memory_allocated() / 2**20
    request = json.dumps({"plan": asdict(plan), "layers": layers})
    command = [sys.executable, "-m", "sgoif.bench.overhead", PROBE, request]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    peaks = []
    for _ in range(PROBES):
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if answer.returncode != 0:
            raise SgoifError(f"the process that measures memory failed: {answer.stderr.strip().splitlines()[-1:]}")
        peaks.append(float(answer.stdout))
    return float(np.median(peaks))


def _short_training(plan: Plan, layers: str | None) -> None:
    """So many steps that the monitor holds as much as it ever does: waiting steps, and on a GPU recordings of them."""
    training = Training(plan)
    steps = BLOCK_STEPS + 16 + (SETTLED if plan.device == "cuda" else 0)
    monitor = training.watched(layers, InfluenceMonitor) if layers is not None else None
    training.run(steps, monitor)
    if monitor is not None:
        monitor.scores()
        monitor.close()


def _probe(request: str) -> int:
    """Train for a moment in this fresh process and print its peak resident size in MiB."""
    asked = json.loads(request)
    _short_training(Plan(**asked["plan"]), asked["layers"])
    peak = resident_peak()
    if peak is None:
        print("this system does not tell how much memory a process has held", file=sys.stderr)
        return 1
    print(peak / 2**20)
    return 0


def _table(result: Mapping[str, Any]) -> str:
    if "levels" in result:
        return parts_table(result)
    lines = [
        f"{'watched':<12}{'time':>9}{'range':>18}{'quiet':>9}{'target':>9}{'memory':>9}{'ms/step':>10}{'refresh':>10}"
    ]
    for layers, row in result["layers"].items():
        spread = f"{row['time_ratio_low']:.3f}–{row['time_ratio_high']:.3f}"
        target = f"{row['time_target']:.2f}×" if row.get("time_target") else "–"
        memory = f"{row['memory_ratio']:.3f}×" if "memory_ratio" in row else "–"
        lines.append(
            f"{layers:<12}{row['time_ratio']:>8.3f}×{spread:>18}{row['quiet_time_ratio']:>8.3f}×{target:>9}{memory:>9}"
            f"{row['plain_ms_per_step']:>10.1f}{row['refresh_period']:>10}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the benchmark from the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) == 2 and given[0] == PROBE:
        return _probe(given[1])
    default_out = "results/overhead-DEVICE.json"
    return run_command(program, OverheadSettings, run_overhead, _table, given, default_out)


if __name__ == "__main__":
    raise SystemExit(main())
