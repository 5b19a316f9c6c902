"""What every method that finds wrong labels costs, as ratios to a plain training of the same network.

    sgoif-bench labels-costs --set digits --epochs 10 --out FILE.json

Each method trains alone, and they take turns, so that other work on the machine meets all of them; a ratio is taken
within a turn, and the median over the turns is told.

    time      processor seconds of one thread on a CPU, seconds until the device is done on a GPU
    memory    the most that the process holds on a CPU, interpreter and libraries included, each turn being one of its
              own; on a GPU the most of its tensors
    FLOPs     of products and convolutions, as PyTorch counts them in a turn before the others; decompositions,
              sorting and whatever is done in numpy count nothing
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sgoif.errors import SettingError, SgoifError
from sgoif_bench.command import Device, Say, choose_device, run_command, setting
from sgoif_bench.jobs import free_memory, reason_of
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Known, Problem
from sgoif_bench.labels.recipes import training_for
from sgoif_bench.labels.registry import METHODS, choose, in_order, method_of, solver, title_of
from sgoif_bench.memory import Peak

PROGRAM = "python -m sgoif_bench.labels.costs"
DEFAULT_OUT = "runs/labels-costs.json"
PLAIN = "training"
"""A training that nobody looks at."""
COSTS = ("seconds", "peak_bytes", "flops")


@dataclass(frozen=True)
class CostSettings:
    """What is compared, and on what."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    set: str = setting("digits", help="the data set, as in bench labels")
    noise: str = setting("symmetric-20", help="the kind of wrong labels, as in bench labels")
    methods: str = setting("all", help="all, simple, heavy, or names, as in bench labels")
    epochs: int | None = setting(None, help="epochs of a training; unset: by data set")
    model: str | None = setting(None, help="network, as in bench labels; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples; unset: by data set")
    limit: int | None = setting(None, help="use only so many examples")
    repeats: int = setting(3, help="turns in which each method is timed")
    seed: int = setting(0, help="seed of noise, split, initial weights and batches")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise SettingError(f"repeats = {self.repeats} must be at least 1")
        if alone := [name for name in choose(self.methods) if not method_of(name).run]:
            raise SettingError(f"{alone[0]} comes only with others from one training, so it has no cost of its own")


def run_costs(settings: CostSettings, tell: Say) -> dict[str, Any]:
    """Time, memory and FLOPs of every method as ratios to a plain training."""
    device = choose_device(settings.device)
    changes = {name: getattr(settings, name) for name in ("epochs", "model", "anchors", "limit")}
    training = training_for(settings.set, **changes)
    data = KeptSets(settings.data, tell).get(settings.set, training)
    noise = make_noise(settings.noise, data, settings.seed)

    def problem() -> Problem:
        recipe = training.recipe(int(data.images.shape[-1]))
        made = Problem(data.images, noise.labels, len(data.classes), recipe, device, settings.seed)
        made.known = Known(float(noise.is_wrong.mean()), flips=not settings.noise.startswith("symmetric"))
        torch.manual_seed(settings.seed)
        return made

    names = [PLAIN, *choose(settings.methods)]
    works = {name: work_of(name) for name in names}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with one_thread(device):
        # Products are counted first, since what is done once in a process is no part of a turn.
        flops = {}
        for name, work in works.items():
            flops[name] = products(name, work, problem())
            tell(f"{name}: {flops[name]:.3g} FLOPs")
        for turn in range(1, settings.repeats + 1):
            for name in names:
                turns[name].append({**cost(works[name], problem(), device), "flops": flops[name]})
                tell(f"{turn} of {settings.repeats}: {name} {turns[name][-1]['seconds']:.1f} s")
    return {"examples": len(data), "recipe": training.described(), "ratios": ratios(turns), "turns": turns}


def work_of(name: str) -> Callable[[Problem], object]:
    """What a method does alone."""
    if name == PLAIN:
        return lambda problem: problem.fit(problem.new_model(), problem.batches())
    solve = solver([name], solo=True)
    return lambda problem: solve(problem, lambda message: None)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU one thread for every method; the others of a process would not outlive a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def products(name: str, work: Callable[[Problem], object], problem: Problem) -> float:
    """FLOPs of some work."""
    try:
        with FlopCounterMode(display=False) as counter:
            work(problem)
    except Exception as error:
        raise SgoifError(f"{name} failed, leave it out with --methods: {reason_of(error)}") from error
    free_memory(problem.device)
    return float(counter.get_total_flops())


def cost(work: Callable[[Problem], object], problem: Problem, device: torch.device) -> dict[str, float]:
    """Seconds and peak memory of some work, on a CPU in a process that holds nothing of other work."""
    if problem.on_gpu:
        return measured(work, problem, device)
    processes = get_context("fork")
    answer, told = processes.Pipe(duplex=False)

    child = processes.Process(target=lambda: told.send(measured(work, problem, device)), daemon=True)
    child.start()
    told.close()
    try:
        found: dict[str, float] = answer.recv()
    except EOFError:
        raise SgoifError("a method ended its process; what it said stands above") from None
    finally:
        child.join()
    return found


def measured(work: Callable[[Problem], object], problem: Problem, device: torch.device) -> dict[str, float]:
    """The same in this process."""
    clock = time.perf_counter if problem.on_gpu else time.process_time
    free_memory(device)
    peak, start = Peak(device), clock()
    work(problem)
    if problem.on_gpu:
        torch.cuda.synchronize(device)
    return {"seconds": clock() - start, "peak_bytes": float(peak.read()["peak_bytes"] or 0)}


def ratios(turns: Mapping[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of every method, the medians over the turns of its costs beside those of a plain training."""
    return {
        name: {
            key: median(mine[key] / plain[key] for mine, plain in zip(found, turns[PLAIN], strict=True))
            for key in COSTS
        }
        for name, found in turns.items()
        if name != PLAIN
    }


def rows(whole: Mapping[str, Any], left_out: Collection[str] = ()) -> list[list[str]]:
    """A row for every method but these: its name, and time, memory and FLOPs as ratios."""
    found = whole["ratios"]
    return [
        [title_of(name), *(f"{found[name][key]:.2f}" for key in COSTS)]
        for name in in_order(name for name in found if name in METHODS and name not in left_out)
    ]


def show(whole: Mapping[str, Any]) -> str:
    """The ratios as a table."""
    head = [["method", "time", "memory", "FLOPs"], ["---", "---:", "---:", "---:"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows(whole)])


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_command(program, CostSettings, run_costs, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
