"""Do the intervals of the table cover what they speak of?

An interval is about the mean of an example's score, of which a run shows a few noisy observations. A network is trained
on digits at a constant learning rate until its scores no longer drift, and then for long. Every m epochs of that are
taken for a run of their own, with its observations, its mean and its interval as the table would have them; the mean
over all *other* epochs is what the interval should cover. Scores of one example in successive epochs are not
independent, which is what an interval has to survive.

    covered(m) = share of examples and windows of m epochs with |mean − long-run mean| ≤ half-width
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif.analysis.intervals import half_width, interval_width
from sgoif.commands.demo.digits import CLASSES, load_digits
from sgoif.core.data import indexed, split_holdout
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.autocorrelation import COLUMNS, dependence_ratio
from sgoif.scoring.ledger import SUMS, Ledger
from sgoif_bench.batches import crop_and_flip
from sgoif_bench.command import Device, Say, choose_device, run_command, seeds_of, setting
from sgoif_bench.models import digits_net
from sgoif_bench.noise import symmetric

PROGRAM = "python -m sgoif_bench.intervals"
WINDOWS = (3, 5, 10, 20, 40)
WIDTH = 64
NOTED = [SUMS.index(name) for name in COLUMNS]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {"digits-net": lambda: digits_net(CLASSES, width=8), "mlp": _mlp}


@dataclass(frozen=True)
class IntervalSettings:
    """The long run."""

    model: str = setting("digits-net", help=f"network: {' or '.join(NETWORKS)}")
    noise_rate: float = setting(0.1, help="share of labels that are made wrong")
    learning_rate: float = setting(0.05, help="of SGD with momentum, constant")
    augment: bool = setting(True, help="move every image by up to a pixel, anew in every epoch")
    warm_up: int = setting(100, help="epochs before the run is looked at")
    epochs: int = setting(400, help="epochs that are looked at")
    seeds: str = setting("0", help="seeds, separated by commas")
    device: Device = setting("cpu", help="where to train")

    def __post_init__(self) -> None:
        if self.model not in NETWORKS:
            raise SettingError(f"model = {self.model!r} must be {' or '.join(NETWORKS)}")
        if self.epochs < 2 * max(WINDOWS):
            raise SettingError(f"epochs = {self.epochs}: at least {2 * max(WINDOWS)} are needed")
        if not 0 <= self.noise_rate < 1:
            raise SettingError(f"noise rate = {self.noise_rate} must be at least 0 and below 1")


def run_intervals(settings: IntervalSettings, tell: Say) -> dict[str, Any]:
    """Measure how often the intervals of scores cover the mean of a much longer run."""
    runs = []
    for seed in seeds_of(settings.seeds):
        monitor, sums = long_run(settings, seed, tell)
        runs.append(
            {"seed": seed, "level": monitor.settings.level, "windows": [judged(monitor, sums, m) for m in WINDOWS]}
        )
    return {"runs": runs}


def long_run(settings: IntervalSettings, seed: int, tell: Say) -> tuple[InfluenceMonitor, Tensor]:
    """The monitor of a long run, and the sums of its ledger after every epoch that is looked at, [epochs + 1, N, S]."""
    pixels, labels = load_digits()
    noisy = symmetric(labels, CLASSES, settings.noise_rate, seed).labels
    device = choose_device(settings.device)
    training, held_out = split_holdout(
        TensorDataset(torch.from_numpy(pixels), torch.from_numpy(noisy)), share=0.2, seed=seed
    )
    torch.manual_seed(seed)
    model = NETWORKS[settings.model]().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9, weight_decay=5e-4)
    shuffle = torch.Generator().manual_seed(seed)
    loader = DataLoader(indexed(training), batch_size=64, shuffle=True, generator=shuffle)
    kept = []
    # A network that has learned its images by heart would hardly count any more; here every epoch is to count alike.
    with InfluenceMonitor(model, optimizer, anchors=held_out, weigh_steps=False, seed=seed) as monitor:
        for epoch in range(settings.warm_up + settings.epochs):
            for x, y, index in loader:
                x = crop_and_flip(x, shuffle, padding=1, mirror=False) if settings.augment else x
                with monitor.step(index):
                    nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
                optimizer.zero_grad()
            monitor.flush()
            if epoch + 1 >= settings.warm_up:
                kept.append(monitor.ledger.sums[: monitor.ledger.used].double().cpu())
            if (epoch + 1) % 50 == 0:
                tell(f"seed {seed}: epoch {epoch + 1} of {settings.warm_up + settings.epochs}")
    seen = kept[-1][:, SUMS.index("count")] > 0
    return monitor, torch.stack(kept)[:, seen]


def judged(monitor: InfluenceMonitor, sums: Tensor, length: int) -> dict[str, Any]:
    """How often intervals of windows of so many epochs cover the mean over the other epochs."""
    whole = sums[-1] - sums[0]
    weight, score = SUMS.index("weight"), SUMS.index("score")
    level, bound = monitor.settings.level, monitor.scaling.bound
    found: dict[str, list[float]] = {"covered": [], "covered_bernstein": [], "covered_normal": [], "width": []}
    spread = []
    for start in range(0, len(sums) - length, length):
        window = sums[start + length] - sums[start]
        rest = whole - window
        truth = rest[:, score] / rest[:, weight]
        ledger = _ledger(window)
        missed = (ledger.mean("score").double() - truth).abs()
        error = (ledger.variance() / ledger.effective_count()).sqrt().double()
        middle = sums[start + length // 2] - sums[start]
        ratio = dependence_ratio(middle[:, NOTED], (window - middle)[:, NOTED], ledger.variance())
        width = interval_width(ledger, level, bound, ratio).double()
        found["covered"].append(float((missed <= width).double().mean()))
        found["covered_bernstein"].append(float((missed <= half_width(ledger, level, bound).double()).double().mean()))
        found["covered_normal"].append(float((missed <= normal_quantile(monitor) * error).double().mean()))
        found["width"].append(float(width.mean()))
        spread.append(float(missed.square().mean() / error.square().mean()))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    return {"epochs": length, "windows": len(found["width"]), **means, "variance_ratio": float(np.mean(spread))}


def normal_quantile(monitor: InfluenceMonitor) -> float:
    """Half-width, in standard errors, of an interval for independent and normal observations."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(monitor.settings.level, dtype=torch.float64)))


def _ledger(sums: Tensor) -> Ledger:
    """A ledger that knows these sums and nothing else."""
    ledger = Ledger(1, 1, sums.device, len(sums))
    ledger.sums = sums
    return ledger


def show(result: dict[str, Any]) -> str:
    """One line for every window of every seed."""
    head = (
        f"{'seed':>4} {'epochs':>7} {'covered':>8} {'Bernstein':>10} {'normal':>7} {'width':>6} {'variance ratio':>15}"
    )
    lines = [head]
    for run in result["runs"]:
        for row in run["windows"]:
            shares = [100 * row[name] for name in ("covered", "covered_bernstein", "covered_normal")]
            lines.append(
                f"{run['seed']:>4} {row['epochs']:>7} {shares[0]:>8.1f} {shares[1]:>10.1f} {shares[2]:>7.1f}"
                f" {row['width']:>6.2f} {row['variance_ratio']:>15.2f}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run from the command line; returns the exit code."""
    return run_command(program, IntervalSettings, run_intervals, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
