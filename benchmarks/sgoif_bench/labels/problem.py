"""What every method of the comparison is given, and what it must return.

A method sees images, labels of which some are wrong, and a recipe for training. Which labels are wrong is never within
its reach: the judge keeps that. It returns a suspicion for every example, higher = more likely wrong.

All of them train through the same few calls (`new_model`, `batches`, `optimizer`, `fit`), so that a difference between
two methods is none of initial weights, augmentation, schedule or precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.core.data import Part, split_holdout
from sgoif.errors import SettingError
from sgoif_bench.batches import Batches, Channels, LabelledImages, normalise
from sgoif_bench.optimizers import OneCycle, make_optimizer

Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
Scores = NDArray[np.float64]
StepLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, labels, index) of a batch to the loss of the step."""
Observe = Callable[[Tensor, Tensor, Tensor], None]
"""Told (logits, labels, index) of every training batch."""

STATISTICS_FROM = 10_000
PREDICT_BATCH = 1000
KEEP_ON_DEVICE = 2**31
"""Bytes of images up to which a training keeps its own on the device; larger sets are read batch by batch."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and on what a network is trained, whatever the network."""

    epochs: int = 20
    batch_size: int = 512
    learning_rate: float = 0.4
    """Peak of the one-cycle schedule of SGD with Nesterov momentum."""
    augment: bool = True
    mirror: bool = True
    padding: int = 4
    anchors: int = 2000
    """Examples that methods with a hold-out leave out of training; their labels are as noisy as the others."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How a network is trained; the same for every method."""

    model: Callable[[int, int], nn.Module]
    """Called with (channels, classes)."""


@dataclass(frozen=True)
class Outcome:
    """What a method says."""

    suspicion: Scores
    """For every example, higher = more likely wrong."""
    flagged: NDArray[np.bool_] | None = None
    """The examples that the method itself calls wrong; None where it has no threshold of its own."""
    trainings: float = 1.0
    """Training passes over the data, in units of one plain training of the recipe."""
    probability: Scores | None = None
    """The method's own probability that each label is wrong; None where it states none."""
    suggested: Labels | None = None
    """The label that the method would give instead; None where it names none."""
    noise_rate: tuple[float, float, float] | None = None
    """The method's estimate of the share of wrong labels, with the ends of its interval."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures for the result file."""


@dataclass(frozen=True)
class Known:
    """What the authors of some rivals take as known of the wrong labels; told only to methods that say so."""

    rate: float
    """Their share."""
    flips: bool
    """Whether they depend on the class, where symmetric ones are drawn alike for all."""


@dataclass
class Problem:
    """Images with labels of which some are wrong, and how to train on them."""

    images: Tensor
    """uint8 [N, C, H, W]"""
    labels: Labels
    classes: int
    recipe: Recipe
    device: torch.device
    seed: int = 0
    known: Known | None = None

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise SettingError(f"{len(self.images)} images do not go with {len(self.labels)} labels")
        sample = self.images[:: max(1, len(self.images) // STATISTICS_FROM)].float() / 255
        self.mean: Channels = tuple(sample.mean(dim=(0, 2, 3)).tolist())
        self.spread: Channels = tuple(sample.std(dim=(0, 2, 3)).clamp_min(1e-3).tolist())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        return int(self.images.shape[1])

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def rows(self) -> Rows:
        """All examples."""
        return np.arange(len(self))

    def dataset(self) -> LabelledImages:
        """Every example as (normalised image, given label)."""
        return LabelledImages(self.images, torch.from_numpy(self.labels), self.mean, self.spread)

    def split(self) -> tuple[Part, Part]:
        """Training examples and class-balanced anchors, the same for every method that asks; `.indices` are rows."""
        everything = self.dataset()
        share = self.recipe.anchors / len(self)
        return split_holdout(everything, share=share, seed=self.seed, labels=everything.labels)

    def new_model(self, number: int = 0) -> nn.Module:
        """Fresh weights on the device; another `number` gives other weights."""
        with torch.random.fork_rng(devices=[self.device] if self.on_gpu else []):
            torch.manual_seed(1000 * self.seed + number)
            model = self.recipe.model(self.channels, self.classes)
        layout = torch.channels_last if self.on_gpu else torch.contiguous_format
        return model.to(self.device, memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def batches(self, rows: Rows | None = None, labels: Labels | None = None, number: int = 0) -> Batches:
        """Epochs of (x, y, index) over these rows, by default all; `labels` [N] replaces the given ones."""
        where = torch.from_numpy(self.rows() if rows is None else rows)
        given = torch.from_numpy(self.labels if labels is None else labels)
        r = self.recipe
        small = self.images.numel() <= KEEP_ON_DEVICE
        return Batches(
            self.images[where].to(self.device) if small else self.images,
            given[where].to(self.device),
            where,
            min(r.batch_size, len(where)),
            seed=1000 * self.seed + number,
            augment=r.augment,
            channels_last=self.on_gpu,
            mirror=r.mirror,
            padding=r.padding,
            mean=self.mean,
            spread=self.spread,
            rows=None if small else where,
        )

    def optimizer(self, model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, OneCycle]:
        """SGD and its one-cycle schedule over so many steps."""
        return make_optimizer(model, steps, lr=self.recipe.learning_rate)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of training: bfloat16 on a GPU."""
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.on_gpu else nullcontext()

    def fit(
        self,
        model: nn.Module,
        batches: Batches,
        *,
        epochs: int | None = None,
        optimizer: tuple[torch.optim.Optimizer, OneCycle] | None = None,
        loss: StepLoss = lambda logits, labels, index: F.cross_entropy(logits, labels),
        watching: Callable[[Tensor], AbstractContextManager[Any]] = lambda index: nullcontext(),
        on_step: Observe | None = None,
        on_epoch: Callable[[int], None] | None = None,
    ) -> nn.Module:
        """Train by the recipe.

        `watching` is entered with the indices of each batch around its forward and backward pass, `on_step` sees
        (logits, labels, index) after each step, `on_epoch` the epoch from 1. `optimizer` is one that was made before.
        """
        total = self.recipe.epochs if epochs is None else epochs
        steps, schedule = optimizer or self.optimizer(model, total * len(batches))
        for epoch in range(1, total + 1):
            model.train()
            for x, y, index in batches:
                with watching(index):
                    with self.autocast():
                        logits = model(x)
                    loss(logits.float(), y, index).backward()
                steps.step()
                steps.zero_grad()
                schedule.step()
                if on_step is not None:
                    on_step(logits.detach().float(), y, index)
            if on_epoch is not None:
                on_epoch(epoch)
        return model

    def plain_batches(self, rows: Rows | None = None) -> Iterator[tuple[Tensor, Tensor, Rows]]:
        """(x, y, rows) in order and without augmentation, for looking at a trained model."""
        chosen = self.rows() if rows is None else rows
        for part in np.array_split(chosen, max(1, -(-len(chosen) // PREDICT_BATCH))):
            x = normalise(self.images[torch.from_numpy(part)].to(self.device), self.mean, self.spread)
            yield x, torch.from_numpy(self.labels[part]).to(self.device), part

    @torch.no_grad()
    def predict(self, model: nn.Module, rows: Rows | None = None) -> Tensor:
        """Logits of these rows in evaluation mode, float32 on the device."""
        model.eval()
        parts = []
        for x, _, _ in self.plain_batches(rows):
            with self.autocast():
                parts.append(model(x).float())
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, model: nn.Module, rows: Rows | None = None) -> Tensor:
        """What goes into the last linear layer, [n, D] float32 on the device, in evaluation mode."""
        head = last_linear(model)
        kept: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].detach().float()))
        try:
            self.predict(model, rows)
        finally:
            handle.remove()
        return torch.cat(kept)


def last_linear(model: nn.Module) -> nn.Linear:
    """The classifier's last linear layer, in the order of definition."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise SettingError(f"{type(model).__name__} has no linear layer: this method needs one as its head")
    return layers[-1]
