"""The runs of the corpus by name: data set, noise, size, network, epochs and seed; the cheap ones come first.

Noises are those of `sgoif_bench.labels.noises`, and `next-RATE`: so many percent of all labels become the next class.
Class-dependent noise flips five classes of CIFAR-10 and of the digits, which beyond 25% would exchange their names; 40%
are therefore flips to the next class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sgoif.errors import SettingError


@dataclass(frozen=True)
class Run:
    """One training."""

    set: str
    noise: str
    size: int | None = None
    """Images drawn at random; None: all."""
    model: str = "small-cnn"
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 0.2
    seed: int = 0

    @property
    def name(self) -> str:
        """What its file is called."""
        size = "all" if self.size is None else self.size
        return f"{self.set}-{size}-{self.noise}-{self.model}-{self.epochs}-seed{self.seed}"

    @property
    def family(self) -> str:
        return self.model

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def place(self) -> dict[str, Any]:
        return {"set": self.set, "noise": self.noise, "seed": self.seed}

    def called(self, name: str) -> str:
        return name


def _runs(noises: str, **shared: Any) -> Iterator[Run]:
    return (Run(noise=noise, **shared) for noise in noises.split())


def _all() -> Iterator[Run]:
    small: dict[str, Any] = {"batch_size": 64, "learning_rate": 0.1}
    yield from _runs(
        "none symmetric-5 symmetric-20 symmetric-40 symmetric-70 class-dependent-10 class-dependent-20 next-40"
        " matrix-20-sparsity-0.6 matrix-40-sparsity-0.6 instance-20 instance-40",
        **{"set": "digits", "model": "digits-net", "epochs": 20, **small},
    )
    yield from _runs("none symmetric-20 class-dependent-20", set="digits", model="mlp", epochs=12, **small)
    yield from _runs(
        "none symmetric-20 symmetric-40 class-dependent-20 instance-20",
        set="textures",
        model="resnet9",
        epochs=25,
        batch_size=64,
        learning_rate=0.1,
    )
    yield from _runs("none symmetric-40 next-40", set="mnist", size=3000, model="mlp", epochs=10, **small)
    yield from _runs("none symmetric-20 human-worst", set="cifar10", size=5000, epochs=10)
    yield from _runs("none symmetric-20 symmetric-40 class-dependent-20 instance-20", set="svhn", epochs=12)
    yield from _runs("symmetric-20 class-dependent-10 matrix-40-sparsity-0.6", set="svhn", model="resnet9", epochs=15)
    yield from _runs(
        "none symmetric-5 symmetric-20 symmetric-60 class-dependent-20 matrix-40-sparsity-0.6 instance-20",
        set="mnist",
        size=10_000,
        epochs=10,
    )
    yield from _runs(
        "none symmetric-20 symmetric-70 class-dependent-20 matrix-40-sparsity-0.6 instance-20 instance-40",
        set="fashion-mnist",
        size=10_000,
        epochs=10,
    )
    yield from _runs(
        "none symmetric-20 symmetric-40 class-dependent-10 class-dependent-20 matrix-40-sparsity-0.6 instance-20",
        set="photos",
        model="resnet9",
        epochs=20,
        batch_size=64,
        learning_rate=0.1,
    )
    yield from _runs(
        "none symmetric-20 class-dependent-10 class-dependent-20 human-worst human-aggregate",
        set="cifar10",
        size=10_000,
        model="resnet9",
        epochs=15,
        batch_size=256,
    )
    large: dict[str, Any] = {"model": "resnet9", "batch_size": 512, "learning_rate": 0.4}
    yield from _runs("symmetric-40 class-dependent-20 instance-20", set="fashion-mnist", epochs=10, **large)
    yield from _runs(
        "none symmetric-20 symmetric-40 symmetric-70 class-dependent-20 next-40 matrix-20-sparsity-0.6"
        " matrix-40-sparsity-0.6 matrix-70-sparsity-0.6 instance-20 human-aggregate human-random1 human-worst",
        **{"set": "cifar10", "epochs": 15, **large},
    )
    yield Run("cifar100", "none", epochs=20, **large)
    for seed in range(3):
        yield from _runs(
            "symmetric-20 symmetric-40 class-dependent-20 human-noisy",
            **{"set": "cifar100", "epochs": 20, "seed": seed, **large},
        )


def _seventeen() -> Iterator[Run]:
    matrices = " ".join(f"matrix-{rate}-sparsity-{zeros}" for rate in (20, 40, 70) for zeros in (0, 0.2, 0.4, 0.6))
    noises = f"symmetric-20 symmetric-40 class-dependent-20 human-aggregate human-random1 {matrices}"
    large: dict[str, Any] = {"model": "resnet9", "batch_size": 512, "learning_rate": 0.4}
    for seed in (3, 4, 5):
        yield from _runs(noises, set="cifar10", epochs=20, seed=seed, **large)


RUNS = tuple(_all())
"""Every run of the corpus."""
RANKED = tuple(_seventeen())
"""Runs by which a ranking is judged, as `sgoif-bench labels` trains them on CIFAR-10: no part of the corpus."""


def expression(option: str, text: str) -> re.Pattern[str]:
    """The regular expression that an option holds; an error says what is wrong with it."""
    try:
        return re.compile(text)
    except re.error as error:
        raise SettingError(f"{option} = {text!r} is no regular expression ({error})") from error


def chosen(pattern: str) -> list[Run]:
    """The runs whose names a regular expression finds, those beside the corpus included, or ALL of the corpus."""
    if pattern == "ALL":
        return list(RUNS)
    wanted = expression("runs", pattern)
    found = [run for run in (*RUNS, *RANKED) if wanted.search(run.name)]
    if not found:
        raise SettingError(f"runs = {pattern!r} names none of the {len(RUNS)} runs, {RUNS[0].name} for instance")
    return found
