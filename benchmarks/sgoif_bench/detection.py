"""Finding wrong labels in CIFAR-10 while a network trains from scratch.

    python -m sgoif_bench.detection --data ROOT --noise class-dependent --rate 0.2 --epochs 40 --out FILE.json

Labels are wrong everywhere, in the held-out anchors as well. Several monitors can watch the same run:

    --variants '{"influence": {}, "influence_no_gate": {"gate": "none"}}'

names each one and gives the settings in which it differs from the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from sgoif.core.data import split_holdout
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif_bench.batches import Batches, LabelledImages, normalise
from sgoif_bench.cifar import CLASSES, read_cifar10
from sgoif_bench.command import Device, Say, choose_device, run_command, say, setting
from sgoif_bench.models import MODELS
from sgoif_bench.noise import CIFAR10_FLIPS, NoisyLabels, class_dependent, next_class, symmetric
from sgoif_bench.optimizers import make_optimizer
from sgoif_bench.signals import SIGNALS, SignalTracker
from sgoif_bench.watched_training import Epoch, Judge, train

PROGRAM = "python -m sgoif_bench.detection"


@dataclass(frozen=True)
class DetectionSettings:
    """One run of the protocol."""

    data: str = setting(help="folder that holds cifar-10-batches-bin/")
    noise: Literal["class-dependent", "next-class", "symmetric"] = setting(
        "class-dependent", help="kind of wrong labels"
    )
    rate: float = setting(0.2, help="share of all labels that are wrong")
    model: Literal["resnet9", "resnet18", "small-cnn", "tiny-vit"] = setting("resnet9", help="network")
    epochs: int = setting(40, help="epochs of training")
    batch_size: int = setting(512, help="examples in a batch")
    optimizer: Literal["sgd", "adamw"] = setting("sgd", help="SGD with Nesterov momentum, or AdamW")
    lr: float | None = setting(None, help="peak of the one-cycle schedule; unset: 0.4 for sgd, 0.004 for adamw")
    augment: bool = setting(True, help="random crops and mirroring")
    anchors: int = setting(1000, help="held-out examples, split off before training with their noisy labels")
    gate: Literal["stability", "moving-average", "none"] = setting("stability", help="gate of variants that name none")
    layers: str = setting("head", help="watched layers of variants that name none")
    variants: str = setting('{"influence": {}}', help="JSON: name of each monitor and its own settings")
    limit: int | None = setting(None, help="use only the first so many training images")
    device: Device = setting("auto", help="where to train")
    seed: int = setting(0, help="seed of noise, split, initial weights and batches")
    plot: str | None = setting(None, help="FILE.png for a picture of the run")

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.anchors < CLASSES:
            raise SettingError(
                f"epochs = {self.epochs} must be at least 1 and anchors = {self.anchors} at least {CLASSES}"
            )
        if not 0 < self.rate < 1:
            raise SettingError(f"rate = {self.rate} must lie strictly between 0 and 1")
        self.monitor_settings()

    def monitor_settings(self) -> dict[str, dict[str, Any]]:
        """The complete settings of every monitor, by name."""
        try:
            named = json.loads(self.variants)
        except json.JSONDecodeError as error:
            raise SettingError(
                f"--variants is not valid JSON ({error}); an example: {{'none': {{}}}} in double quotes"
            ) from error
        if not isinstance(named, dict) or not named or not all(isinstance(own, dict) for own in named.values()):
            raise SettingError("--variants must be a JSON object that gives every monitor's name an object of settings")
        if taken := sorted(set(named) & set(SIGNALS)):
            raise SettingError(f"--variants cannot use the names {', '.join(taken)}: the signals beside it have them")
        shared = {"gate": self.gate, "layers": self.layers, "max_anchors": self.anchors, "seed": self.seed}
        return {name: {**shared, **own} for name, own in named.items()}


def run_detection(settings: DetectionSettings, tell: Say = say) -> dict[str, Any]:
    """Train from scratch on noisy CIFAR-10 and measure how well each score finds the wrong labels."""
    start = time.perf_counter()
    device = choose_device(settings.device)
    torch.manual_seed(settings.seed)
    images, labels = read_cifar10(settings.data)
    images, labels = images[: settings.limit], labels[: settings.limit]
    if settings.anchors >= len(labels):
        raise SettingError(f"anchors = {settings.anchors} leaves nothing to train on: there are {len(labels)} images")
    noisy, is_wrong = make_noise(labels.numpy(), settings)
    everything = LabelledImages(images, torch.from_numpy(noisy))
    share = settings.anchors / len(labels)
    training, held_out = split_holdout(everything, share=share, seed=settings.seed, labels=everything.labels)
    train_index = torch.tensor(training.indices)

    on_gpu = device.type == "cuda"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = MODELS[settings.model](3, CLASSES).to(device, memory_format=layout)  # type: ignore[call-overload]
    batches = Batches(
        images[train_index].to(device),
        everything.labels[train_index].to(device),
        train_index,
        settings.batch_size,
        seed=settings.seed,
        augment=settings.augment,
        channels_last=on_gpu,
    )
    optimizer, scheduler = make_optimizer(model, settings.epochs * len(batches), settings.optimizer, settings.lr)

    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext()

    with ExitStack() as open_monitors:
        monitors = {
            name: open_monitors.enter_context(
                InfluenceMonitor(model, optimizer, anchors=held_out, size=len(labels), **own)
            )
            for name, own in settings.monitor_settings().items()
        }
        judge = Judge(monitors, SignalTracker(len(labels), device), labels.numpy(), is_wrong, train_index.numpy())
        epochs = train(
            model,
            optimizer,
            batches,
            judge,
            settings.epochs,
            scheduler=scheduler,
            autocast=autocast,
            on_epoch=lambda record: tell(_line(record, settings.epochs)),
        )
        report = judge.report()
    result = {
        "wrong_labels": int(is_wrong.sum()),
        "examples": len(labels),
        "anchor_examples": len(held_out),
        "wrong_anchors": int(is_wrong[held_out.indices].sum()),
        "methods": epochs[-1]["methods"],
        "test_accuracy": _test_accuracy(model, settings, device),
        "train_seconds": sum(record["seconds"] for record in epochs),
        "seconds": time.perf_counter() - start,
        "epochs": epochs,
        "monitors": report,
    }
    if settings.plot:
        from sgoif_bench.run_plot import plot_run

        plot_run(result, Path(settings.plot), title=f"CIFAR-10, {settings.noise} noise, {settings.model}")
        tell(f"picture written to {settings.plot}")
    return result


def make_noise(labels: np.ndarray[Any, np.dtype[np.int64]], settings: DetectionSettings) -> NoisyLabels:
    """Wrong labels of the kind and at the overall rate that the settings ask for."""
    if settings.noise == "symmetric":
        return symmetric(labels, CLASSES, settings.rate, settings.seed)
    mapping = CIFAR10_FLIPS if settings.noise == "class-dependent" else next_class(CLASSES)
    return class_dependent(labels, mapping, seed=settings.seed, overall=settings.rate)


@torch.no_grad()
def _test_accuracy(model: nn.Module, settings: DetectionSettings, device: torch.device) -> float | None:
    """Accuracy on clean test labels; None where the test file is not there."""
    try:
        images, labels = read_cifar10(settings.data, train=False)
    except SettingError:
        return None
    model.eval()
    right = 0
    for x, y in zip(images.split(1000), labels.split(1000), strict=True):
        right += int((model(normalise(x.to(device))).argmax(dim=1).cpu() == y).sum())
    return right / len(labels)


def _line(record: Epoch, epochs: int) -> str:
    found = "  ".join(f"{name} {100 * metrics['aupr']:.1f}" for name, metrics in record["methods"].items())
    return (
        f"epoch {record['epoch']:>3}/{epochs}  loss {record['train_loss']:.3f}  accuracy "
        f"{100 * record['train_accuracy']:.1f}  {record['seconds']:.1f} s  AUPR: {found}"
    )


def _table(result: Mapping[str, Any]) -> str:
    lines = [f"{'score':<24}{'P@1%':>8}{'AUPR':>8}{'AUROC':>8}{'R@1%':>8}{'R@5%':>8}{'R@10%':>8}"]
    columns = ("p_at_1", "aupr", "auroc", "recall_at_1", "recall_at_5", "recall_at_10")
    for name, metrics in result["methods"].items():
        lines.append(f"{name:<24}" + "".join(f"{100 * metrics[column]:>8.1f}" for column in columns))
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the protocol from the command line; returns the exit code."""
    return run_command(program, DetectionSettings, run_detection, _table, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
