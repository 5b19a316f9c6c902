"""The demonstration: wrong labels in scikit-learn's handwritten digits, found while a small network trains.

A fifth of all labels, in the held-out anchors too, is wrong: digits are taken for others that look alike. Two monitors
watch the same run, one with the stability gate and one without, beside the mean loss and the margin. At the end a page
shows the most suspicious digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from sgoif.commands.demo.digits import CLASSES, FLIPS, digits_net, flip_labels, load_digits
from sgoif.commands.demo.metrics import detection_metrics
from sgoif.commands.demo.signals import SignalTracker
from sgoif.commands.demo.training import Epoch, Judge, train
from sgoif.core.data import indexed, split_holdout
from sgoif.core.provenance import machine, versions, write_json
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.reports import write_label_report
from sgoif.tasks import LabelErrors

MOST_NOISE = 0.24
METHODS = ("influence", "influence_no_gate", "loss", "margin")


@dataclass(frozen=True)
class DemoSettings:
    """What can be changed about the demonstration."""

    epochs: int = 30
    noise_rate: float = 0.2
    """Share of all labels that are wrong."""
    seed: int = 0
    holdout: float = 0.25
    """Share of the data kept as anchors."""
    batch_size: int = 64
    learning_rate: float = 2e-3

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


def run_demo(
    settings: DemoSettings, on_epoch: Callable[[Epoch], None] | None = None, page: Path | None = None
) -> dict[str, Any]:
    """Train, score and judge; the result has the final metrics, a record per epoch and the monitors' histories.

    With `page` a report of the label errors is written there.
    """
    start = time.perf_counter()
    pixels, labels = load_digits()
    noisy, is_wrong = flip_labels(labels, FLIPS, round(settings.noise_rate * len(labels)), settings.seed)
    everything = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(noisy))
    training, held_out = split_holdout(everything, share=settings.holdout, seed=settings.seed)

    torch.manual_seed(settings.seed)
    model = digits_net(CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    shuffle = torch.Generator().manual_seed(settings.seed)
    batches = DataLoader(indexed(training), batch_size=settings.batch_size, shuffle=True, generator=shuffle)
    with ExitStack() as open_monitors:
        monitors = {
            name: open_monitors.enter_context(
                InfluenceMonitor(model, optimizer, anchors=held_out, size=len(labels), seed=settings.seed, gate=gate)
            )
            for name, gate in (("influence", "stability"), ("influence_no_gate", "none"))
        }
        judge = Judge(monitors, SignalTracker(len(labels)), labels, is_wrong, np.asarray(training.indices))
        epochs = train(model, optimizer, batches, judge, settings.epochs, on_epoch=on_epoch)
        report = judge.report()
        names = [str(digit) for digit in range(CLASSES)]
        errors = LabelErrors(monitors["influence"], dataset=everything, class_names=names)
        if page is not None:
            write_label_report(errors, page, title="Handwritten digits")
        found = _judged(errors, is_wrong)
    return {
        "seconds": time.perf_counter() - start,
        "methods": epochs[-1]["methods"],
        "examples": len(labels),
        "anchor_examples": len(held_out),
        "wrong_labels": int(is_wrong.sum()),
        "wrong_anchors": int(is_wrong[held_out.indices].sum()),
        "label_errors": found,
        "seed": settings.seed,
        "noise_rate": settings.noise_rate,
        "epochs": epochs,
        "monitors": report,
    }


def _judged(errors: LabelErrors, is_wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """What `LabelErrors` says about all digits, held-out ones too, and what is true."""
    table, chosen = errors.table(), errors.select()
    return {
        **errors.summary(),
        "aupr": detection_metrics(is_wrong[table["index"]], table["probability_wrong"])["aupr"],
        "selected_wrong": int(is_wrong[chosen].sum()),
        "noise_rate_true": float(is_wrong.mean()),
    }


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """The object that `sgoif demo --json` prints."""
    names = ("p_at_1", "aupr", "auroc")
    return {
        "seconds": round(result["seconds"], 2),
        "methods": {method: {name: result["methods"][method][name] for name in names} for method in METHODS},
    }


def save(result: dict[str, Any], folder: Path, command: str) -> tuple[Path, Path]:
    """Write demo.json and demo.png into the folder, which is made where it does not exist."""
    from sgoif.reports.plots import plot_run

    origin = {"command": command, "versions": versions(), "machine": machine(torch.device("cpu"))}
    data, picture = folder / "demo.json", folder / "demo.png"
    write_json(data, {**origin, **result})
    title = f"digits, {result['wrong_labels']} of {result['examples']} labels are wrong"
    plot_run(result, picture, title=title)
    return data, picture
