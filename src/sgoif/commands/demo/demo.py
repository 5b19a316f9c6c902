"""The demonstration: wrong labels in scikit-learn's handwritten digits, found while a small network trains.

A fifth of all labels, in the held-out anchors too, is wrong: digits are taken for others that look alike. Two monitors
watch the same run, one with the stability gate and one without, beside the mean loss and the margin z_y − max_{k≠y} z_k
of what the training batches themselves say about a label. At the end a page shows the most suspicious digits.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif.audit.interruption import Interruption
from sgoif.audit.progress import Progress
from sgoif.commands.demo.digits import CLASSES, FLIPS, digits_net, flip_labels, load_digits
from sgoif.core.data import indexed, split_holdout
from sgoif.core.provenance import machine, versions, write_json
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.reports import write_label_report
from sgoif.tasks import LabelErrors

MOST_NOISE = 0.24
HOLDOUT, BATCH_SIZE, LEARNING_RATE = 0.25, 64, 2e-3
SHARE = 0.01
"""Of the examples, that precision is taken of."""
LEAST = float(np.finfo(np.float64).min)
GATES = {"influence": "stability", "influence_no_gate": "none"}
"""The monitors of the run, and their gates."""


@dataclass(frozen=True)
class DemoSettings:
    """What can be changed about the demonstration."""

    epochs: int = 30
    noise_rate: float = 0.2
    """Share of all labels that are wrong."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise SettingError(f"epochs = {self.epochs}: at least one epoch is needed")
        if not 0.01 <= self.noise_rate <= MOST_NOISE:
            raise SettingError(
                f"noise rate = {self.noise_rate} must lie between 0.01 and {MOST_NOISE}: with fewer wrong labels there "
                "is nothing to find, with more they would outnumber the right ones in the classes concerned"
            )
        if self.seed < 0:
            raise SettingError(f"seed = {self.seed} must not be negative")


def run_demo(settings: DemoSettings, page: Path, progress: Progress, interruption: Interruption) -> dict[str, Any]:
    """Train, score, judge, and write a page; returns final metrics, a record per epoch and the monitors' histories."""
    start = time.perf_counter()
    progress.stage("training", settings.epochs)
    pixels, labels = load_digits()
    noisy, is_wrong = flip_labels(labels, FLIPS, round(settings.noise_rate * len(labels)), settings.seed)
    everything = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(noisy))
    training, held_out = split_holdout(everything, share=HOLDOUT, seed=settings.seed)

    torch.manual_seed(settings.seed)
    model = digits_net(CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    shuffle = torch.Generator().manual_seed(settings.seed)
    batches = DataLoader(indexed(training), batch_size=BATCH_SIZE, shuffle=True, generator=shuffle)
    with ExitStack() as watching:
        monitors = {
            name: watching.enter_context(
                InfluenceMonitor(model, optimizer, anchors=held_out, size=len(labels), seed=settings.seed, gate=gate)
            )
            for name, gate in GATES.items()
        }
        rows, signals = np.asarray(training.indices), torch.zeros(2, len(labels), dtype=torch.float64)
        epochs = []
        for epoch in range(1, settings.epochs + 1):
            loss = _train(model, optimizer, batches, monitors, signals) / len(rows)
            suspicion = {name: _influence(monitor, len(labels)) for name, monitor in monitors.items()}
            suspicion |= dict(zip(("loss", "margin"), signals.numpy(), strict=True))
            found = {name: found_wrong(is_wrong[rows], values[rows]) for name, values in suspicion.items()}
            epochs.append({"epoch": epoch, "steps": epoch * len(batches), "train_loss": loss, "methods": found})
            if interruption.asked is not None:  # compiled packages can swallow an interrupt while they are imported
                raise KeyboardInterrupt
            progress.advance(epoch, settings.epochs, f"loss {loss:.3f}  AUPR {100 * found['influence']['aupr']:.1f}")
        names = [str(digit) for digit in range(CLASSES)]
        errors = LabelErrors(monitors["influence"], dataset=everything, class_names=names)
        write_label_report(errors, page, title="Handwritten digits")
        judged = _judged(errors, is_wrong)
    return {
        "seconds": time.perf_counter() - start,
        "methods": epochs[-1]["methods"],
        "examples": len(labels),
        "anchor_examples": len(held_out),
        "wrong_labels": int(is_wrong.sum()),
        "wrong_anchors": int(is_wrong[held_out.indices].sum()),
        "label_errors": judged,
        "seed": settings.seed,
        "noise_rate": settings.noise_rate,
        "epochs": epochs,
        "monitors": {name: {"history": list(monitor.history)} for name, monitor in monitors.items()},
    }


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: DataLoader[Any],
    monitors: dict[str, InfluenceMonitor],
    signals: Tensor,
) -> float:
    """One epoch; adds loss and minus the margin of every example to `signals`, and returns the sum of all losses."""
    model.train()
    total = 0.0
    for x, y, index in batches:
        with ExitStack() as steps:
            for monitor in monitors.values():
                steps.enter_context(monitor.step(index))
            logits = model(x)
            losses = nn.functional.cross_entropy(logits, y, reduction="none")
            losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
            margins = logits.gather(1, y[:, None]).squeeze(1) - others
            signals[:, index] += torch.stack([losses, -margins]).double()
        total += float(losses.detach().sum())
    return total


def _influence(monitor: InfluenceMonitor, size: int) -> NDArray[np.float64]:
    """Influence by index; the least there is where there is none yet."""
    table, influence = monitor.scores(anchors=False), np.full(size, LEAST)
    influence[table["index"]] = np.nan_to_num(table["influence"].astype(np.float64), nan=LEAST)
    return influence


def found_wrong(is_wrong: NDArray[np.bool_], score: NDArray[np.float64]) -> dict[str, float]:
    """Precision in the most suspicious hundredth, and areas under two curves; higher score = more suspicious."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    first = np.argsort(-score, kind="stable")[: max(1, round(SHARE * len(score)))]
    return {
        "p_at_1": float(is_wrong[first].mean()),
        "aupr": float(average_precision_score(is_wrong, score)),
        "auroc": float(roc_auc_score(is_wrong, score)),
    }


def _judged(errors: LabelErrors, is_wrong: NDArray[np.bool_]) -> dict[str, Any]:
    """What `LabelErrors` says about all digits, held-out ones too, and what is true."""
    table, chosen, rate = errors.table(), errors.select(), errors.noise_rate()
    return {
        "noise_rate": rate.estimate,
        "noise_rate_low": rate.low,
        "noise_rate_high": rate.high,
        "selected": len(chosen),
        "notes": errors.notes(),
        "aupr": found_wrong(is_wrong[table["index"]], table["probability_wrong"])["aupr"],
        "selected_wrong": int(is_wrong[chosen].sum()),
        "noise_rate_true": float(is_wrong.mean()),
    }


def save(result: dict[str, Any], folder: Path, command: str) -> Path:
    """Write demo.json into the folder, which is made where it does not exist."""
    origin = {"command": command, "versions": versions(), "machine": machine(torch.device("cpu"))}
    path = folder / "demo.json"
    write_json(path, {**origin, **result})
    return path
