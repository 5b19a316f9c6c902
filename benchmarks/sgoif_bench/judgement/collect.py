"""Train the runs of the corpus, each with the monitor attached, and keep what every run knew about its labels.

    sgoif-bench corpus --data ROOT --evidence DIR --runs '^(digits|mnist)' --workers 2

A run whose file is there already is left out; one that fails is reported, and the others go on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.ledger import Ledger
from sgoif.tasks.labels.evidence import anchor_evidence, training_evidence
from sgoif_bench.command import Device, Say, choose_device, run_command, say, setting
from sgoif_bench.errors import SIGNALS
from sgoif_bench.jobs import Result, free_memory, tried
from sgoif_bench.judgement.archive import save
from sgoif_bench.judgement.data import drawn
from sgoif_bench.judgement.runs import Run, chosen
from sgoif_bench.labels.problem import Problem, Recipe
from sgoif_bench.labels.recipes import NETWORKS
from sgoif_bench.signals import SignalTracker
from sgoif_bench.workers import results_here, results_in_workers

PROGRAM = "python -m sgoif_bench.judgement.collect"
HELD_OUT, HELD_OUT_LEAST, HELD_OUT_PER_CLASS, HELD_OUT_MOST = 0.04, 500, 10, 0.25
"""Share of the examples that is held out; at least so many, or so many a class; never more than this share."""
MIRRORED = ("cifar10", "cifar100", "textures", "photos", "fashion-mnist")
"""Data sets whose images mean the same in a mirror."""
HIDDEN = 128


def _mlp(channels: int, classes: int, *, image: int) -> nn.Module:
    inputs = channels * image * image
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


MODELS: Mapping[str, Callable[..., nn.Module]] = {**NETWORKS, "mlp": _mlp}


@dataclass(frozen=True)
class CollectSettings:
    """Which runs, and where."""

    data: str = setting(help="folder with the data sets as sgoif_bench.judgement.data expects them")
    evidence: str = setting(help="folder for what the runs knew")
    runs: str = setting("ALL", help="regular expression for names of runs, or ALL")
    workers: int = setting(1, help="processes that train at the same time")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")


class Halves:
    """Mean influence of every example over the odd and over the even epochs, which share no observation."""

    def __init__(self, size: int) -> None:
        self._before = np.zeros((2, size))
        self._sums = np.zeros((2, 2, size))

    def note(self, ledger: Ledger, epoch: int) -> None:
        """An epoch has ended."""
        now = torch.stack([ledger.column("score"), ledger.column("weight")]).double().cpu().numpy()
        self._sums[epoch % 2] += now - self._before
        self._before = now

    def means(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, 2]; NaN where a half has no observation."""
        score, weight = self._sums[:, 0, rows], self._sums[:, 1, rows]
        found: NDArray[np.float64] = np.where(weight > 0, score / np.where(weight > 0, weight, 1), np.nan).T
        return found


def held_out(examples: int, classes: int) -> int:
    """How many examples are held out."""
    wanted = max(round(HELD_OUT * examples), HELD_OUT_LEAST, HELD_OUT_PER_CLASS * classes)
    return min(wanted, int(HELD_OUT_MOST * examples))


def train(run: Run, root: Path, device: torch.device) -> dict[str, Any]:
    """What a run knew, and the truth."""
    data, noisy = drawn(run, root)
    side, classes = data.images.shape[-1], len(data.classes)
    recipe = Recipe(
        model=partial(MODELS[run.model], image=side),
        epochs=run.epochs,
        batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        mirror=run.set in MIRRORED,
        padding=max(1, side // 10),
        anchors=held_out(len(data), classes),
    )
    problem = Problem(data.images, noisy.labels, classes, recipe, device, run.seed)
    part, anchors = problem.split()
    rows = np.asarray(part.indices)
    model, batches = problem.new_model(), problem.batches(rows, noisy.labels)
    optimizer, schedule = problem.optimizer(model, run.epochs * len(batches))
    tracker, halves = SignalTracker(len(data), device), Halves(len(data))
    with InfluenceMonitor(model, optimizer, anchors=anchors, size=len(data), seed=run.seed) as monitor:

        def watching(index: Tensor) -> AbstractContextManager[None]:
            return monitor.step(index)

        def on_epoch(epoch: int) -> None:
            monitor.flush()
            halves.note(monitor.record(), epoch)

        problem.fit(
            model,
            batches,
            optimizer=(optimizer, schedule),
            watching=watching,
            on_step=tracker.update,
            on_epoch=on_epoch,
        )
        training, apart = training_evidence(monitor), anchor_evidence(monitor)
    logits = problem.predict(model, training.index)
    loss = F.cross_entropy(logits, torch.from_numpy(training.given).to(device), reduction="none")
    signals = tracker.suspicion()
    return {
        "training": training,
        "anchors": apart,
        "true": data.labels,
        "given": noisy.labels,
        "rows": rows,
        "halves": halves.means(training.index),
        "final_loss": loss.cpu().numpy(),
        **{f"signal_{name}": signals[name][training.index] for name in SIGNALS},
    }


def about(run: Run, known: Mapping[str, Any]) -> dict[str, Any]:
    """Which run it was, and how it went."""
    true, given = known["true"], known["given"]
    return {
        **dataclasses.asdict(run),
        "name": run.name,
        "examples": len(true),
        "classes": int(max(true.max(), given.max())) + 1,
        "rate": float((true != given).mean()),
        "agreement": known["anchors"].agreement(),
    }


@dataclass(frozen=True)
class Collector:
    """Does runs, one after the other, on one device."""

    root: Path
    out: Path
    device: torch.device
    tell: Say = say

    def check(self, jobs: Sequence[Run]) -> None:
        """Every network has to be known."""
        for run in jobs:
            if run.model not in MODELS:
                raise SettingError(f"there is no model {run.model!r}; choose from {', '.join(MODELS)}")

    def do(self, job: Run) -> Result:
        """Train, and keep what was known."""
        result = tried(job, self._collect)
        free_memory(self.device)
        return result

    def _collect(self, run: Run) -> tuple[list[dict[str, Any]], dict[str, str]]:
        start = time.perf_counter()
        known = train(run, self.root, self.device)
        line = {**about(run, known), "seconds": time.perf_counter() - start}
        save(self.out / f"{run.name}.npz", known, line)
        return [line], {}

    def moved(self, device: torch.device) -> Self:
        """The same for another process."""
        return replace(self, device=device)

    def forget(self) -> None:
        """Nothing is kept between runs but the data set that was read last."""


def collect(settings: CollectSettings, tell: Say = say) -> dict[str, Any]:
    """Train the runs of the corpus and keep what each knew."""
    out = Path(settings.evidence)
    out.mkdir(parents=True, exist_ok=True)
    wanted = [run for run in chosen(settings.runs) if not (out / f"{run.name}.npz").exists()]
    runner = Collector(Path(settings.data), out, choose_device(settings.device), tell)
    runner.check(wanted)
    alone = settings.workers == 1
    results = results_here(wanted, runner) if alone else results_in_workers(wanted, runner, settings.workers)
    done, failures = list[dict[str, Any]](), dict[str, str]()
    for _, result in results:
        failures |= result.failures
        for line in result.lines:
            done.append(line)
            tell(f"{line['name']}: agreement {100 * line['agreement']:.0f}%, {line['seconds']:.0f} s")
        for name, reason in result.failures.items():
            tell(f"{name} failed: {reason}")
    return {"runs": done, "failures": failures}


def _shown(result: Mapping[str, Any]) -> str:
    return f"{len(result['runs'])} runs kept, {len(result['failures'])} failed"


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Collect from the command line; returns the exit code."""
    return run_command(program, CollectSettings, collect, _shown, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
