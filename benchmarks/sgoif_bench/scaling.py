"""How the monitor's cost grows with the training set, the number of anchors and the number of watched weights.

    sgoif-bench scaling --out results/scaling-cpu.json

The watched head of a network sees made-up activations: the monitor never asks where they come from, so a training set
of a million examples needs no million images. Steps of the head with and without a monitor take turns, in slices, with
steps of a small convolutional network on images of the same batch size; what the monitor adds is set in relation to
that network's step, the cheapest that anybody trains on images. Everything is processor time, since other programs
disturb the clock on the wall.

    added = median slice with − median slice without + refresh / steps between refreshes      per step

Memory is that of all tensors that the monitor keeps between steps, after every example was seen once.

Where weights are swept, up to 10⁸ of them, a training step of the head itself would take seconds, and what the monitor
adds would drown in how these vary. There the head computes its outputs through a product of rank 8 in place of its
matrix (`Thin`): nothing of the monitor's work depends on what the weights are, only on how many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif_bench.command import Device, Say, choose_device, listed, run_command, setting
from sgoif_bench.growth import slopes
from sgoif_bench.models import small_cnn

PROGRAM = "python -m sgoif_bench.scaling"
POOL = 8
REFRESHES = 3
WARM_UP = 64
"""Steps before anything is measured."""
RANK = 8
NEVER = 10**9
"""Steps between refreshes, which are timed apart from the steps."""


@dataclass(frozen=True)
class Size:
    """One point of a sweep."""

    examples: int = 10_000
    anchors: int = 256
    features: int = 512
    classes: int = 10
    groups: str = "class"
    thin: bool = False
    """Whether outputs come of a product of low rank in place of the weights."""

    @property
    def parameters(self) -> int:
        return self.classes * (self.features + 1)


WEIGHTS = {10**4: (1000, 10), 10**5: (2000, 50), 10**6: (2000, 500), 10**7: (5000, 2000), 10**8: (20_000, 5000)}
"""Features and classes of a head with about so many weights."""


@dataclass(frozen=True)
class ScalingSettings:
    """What is swept."""

    examples: str = setting("1000,10000,100000,1000000", help="sizes of the training set, separated by commas")
    anchors: str = setting("16,64,256,1024,4096", help="numbers of anchors, separated by commas")
    parameters: str = setting(
        "10000,100000,1000000,10000000,100000000", help=f"watched weights, of {', '.join(map(str, WEIGHTS))}"
    )
    batch_size: int = setting(128, help="examples in a batch")
    slices: int = setting(15, help="turns of each kind that are timed")
    slice_steps: int = setting(64, help="steps in a turn")
    device: Device = setting("cpu", help="where to train")
    seed: int = setting(0, help="seed of activations and weights")

    def __post_init__(self) -> None:
        for name in ("batch_size", "slices", "slice_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name.replace('_', ' ')} = {getattr(self, name)} must be at least 1")
        self.sweeps()

    def sweeps(self) -> dict[str, list[Size]]:
        """The points of every sweep; what is not swept stays as `Size` has it."""
        heads = _numbers(self.parameters, "parameters")
        if unknown := [number for number in heads if number not in WEIGHTS]:
            raise SettingError(f"parameters = {unknown[0]} must be one of {', '.join(map(str, WEIGHTS))}")
        return {
            "examples": [Size(examples=number) for number in _numbers(self.examples, "examples")],
            "anchors": [Size(anchors=number) for number in _numbers(self.anchors, "anchors")],
            "parameters": [
                Size(anchors=16, features=features, classes=classes, groups="one", thin=True)
                for features, classes in map(WEIGHTS.__getitem__, heads)
            ],
        }


class Thin(nn.Linear):
    """A linear layer of full size to whoever watches it, whose outputs and gradients cost next to nothing."""

    def __init__(self, features: int, classes: int, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = features, classes
        self.weight = nn.Parameter(torch.empty(classes, features))  # never written, so it takes no memory either
        self.bias = nn.Parameter(torch.zeros(classes))
        self.down: Tensor
        self.register_buffer("down", torch.randn(features, RANK, generator=generator) / features**0.5)
        self.up = nn.Parameter(torch.randn(RANK, classes, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down @ self.up + self.bias


class Head:
    """The last layer of a network in training, with or without a monitor."""

    def __init__(self, size: Size, settings: ScalingSettings, watched: bool) -> None:
        device = choose_device(settings.device)
        generator = torch.Generator().manual_seed(settings.seed)
        self.size, self.batch_size, self.done = size, min(settings.batch_size, size.examples), 0
        self.means = torch.randn(size.classes, size.features, generator=generator)
        labels = torch.randint(size.classes, (POOL, self.batch_size), generator=generator)
        self.pool = [self._activations(y, generator).to(device) for y in labels]
        self.labels = labels.to(device)
        torch.manual_seed(settings.seed)
        layer = Thin(size.features, size.classes, generator) if size.thin else nn.Linear(size.features, size.classes)
        self.model = layer.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.indices = self._indices(generator)
        self.monitor: InfluenceMonitor | None = None
        if watched:
            held_out = torch.arange(size.anchors) % size.classes
            self.monitor = InfluenceMonitor(
                self.model,
                self.optimizer,
                anchors=TensorDataset(self._activations(held_out, generator), held_out),
                size=size.examples,
                max_anchors=size.anchors,
                refresh_every=NEVER,
                groups=size.groups,
                seed=settings.seed,
            )

    def _activations(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(labels), self.size.features, generator=generator)
        activations: Tensor = self.means[labels] / self.size.features**0.5 + noise
        return activations.relu()

    def _indices(self, generator: torch.Generator) -> Iterator[Tensor]:
        while True:
            order = torch.randperm(self.size.examples, generator=generator)
            yield from (part for part in order.split(self.batch_size) if len(part) == self.batch_size)

    def run(self, steps: int) -> None:
        """So many training steps."""
        for _ in range(steps):
            x, y = self.pool[self.done % POOL], self.labels[self.done % POOL]
            self.done += 1
            if self.monitor is None:
                self._train(x, y)
            else:
                with self.monitor.step(next(self.indices)):
                    self._train(x, y)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _train(self, x: Tensor, y: Tensor) -> None:
        nn.functional.cross_entropy(self.model(x), y).backward()


def network_step(settings: ScalingSettings) -> Callable[[], None]:
    """One training step of a small convolutional network on images of CIFAR's size."""
    device = choose_device(settings.device)
    torch.manual_seed(settings.seed)
    model = small_cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(settings.batch_size, 3, 32, 32, device=device)
    y = torch.randint(10, (settings.batch_size,), device=device)

    def step() -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run_scaling(settings: ScalingSettings, tell: Say) -> dict[str, Any]:
    """Measure how time and memory of the monitor grow with examples, anchors and watched weights."""
    found: dict[str, list[dict[str, Any]]] = {}
    network = network_step(settings)
    network()
    for name, sizes in settings.sweeps().items():
        found[name] = []
        for size in sizes:
            row = measured(size, settings, network)
            found[name].append(row)
            tell(f"{name} {getattr(size, name)}: {told(row)}")
    return {"sweeps": found, "slopes": slopes(found)}


def measured(size: Size, settings: ScalingSettings, network: Callable[[], None]) -> dict[str, Any]:
    """What a monitor adds to a training step of this size, and to memory."""
    plain = Head(size, settings, watched=False)
    plain.run(WARM_UP)
    watched = Head(size, settings, watched=True)
    monitor = watched.monitor
    assert monitor is not None
    watched.run(max(WARM_UP, -(-size.examples // watched.batch_size)))
    spent: dict[str, list[float]] = {"plain": [], "watched": [], "network": []}
    for _ in range(settings.slices):
        spent["plain"].append(_timed(lambda: plain.run(settings.slice_steps)) / settings.slice_steps)
        spent["watched"].append(_timed(lambda: watched.run(settings.slice_steps)) / settings.slice_steps)
        spent["network"].append(_timed(network))
    refresh = float(np.median([_timed(monitor.refresh) for _ in range(REFRESHES)]))
    period = monitor.schedule.longest(size.examples) / watched.batch_size
    kept = sum(value.nbytes for value in monitor.state_dict().values() if isinstance(value, Tensor))
    ledger = size.examples * monitor.ledger.bytes_per_example
    monitor.close()
    step = float(np.median(spent["network"]))
    scoring = max(0.0, float(np.median(spent["watched"])) - float(np.median(spent["plain"])))
    return {
        **asdict(size),
        "batch_size": watched.batch_size,
        "parameters": size.parameters,
        "scoring_ms": 1000 * scoring,
        "refresh_ms": 1000 * refresh,
        "steps_between_refreshes": period,
        "added_ms": 1000 * (scoring + refresh / period),
        "network_ms": 1000 * step,
        "added_share": (scoring + refresh / period) / step,
        "ledger_mb": ledger / 2**20,
        "kept_mb": kept / 2**20,
    }


def _timed(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def _numbers(text: str, what: str) -> list[int]:
    try:
        numbers = [int(word) for word in listed(text, what)]
    except ValueError as error:
        raise SettingError(f"--{what} takes whole numbers, separated by commas; got {text!r}") from error
    if any(number < 10 for number in numbers):
        raise SettingError(f"--{what} takes numbers of at least 10; got {text!r}")
    return numbers


def told(row: dict[str, Any]) -> str:
    """One point in words."""
    return (
        f"{row['added_ms']:.3f} ms a step ({100 * row['added_share']:.1f}% of a small network's), of which refreshes"
        f" {row['refresh_ms'] / row['steps_between_refreshes']:.3f}; {row['kept_mb']:.0f} MB kept"
    )


def show(result: dict[str, Any]) -> str:
    """One line for every point, then how costs grow."""
    points = [f"{name} {row[name]}: {told(row)}" for name, rows in result["sweeps"].items() for row in rows]
    growth = [
        f"{name}: {cost} grows with slope {found['overall']:.2f}, at the upper end {found['upper']:.2f}"
        for name, costs in result["slopes"].items()
        for cost, found in costs.items()
        if found["overall"] is not None and found["upper"] is not None
    ]
    return "\n".join([*points, *growth])


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run from the command line; returns the exit code."""
    return run_command(program, ScalingSettings, run_scaling, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
