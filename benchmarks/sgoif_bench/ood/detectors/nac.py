"""Neuron activation coverage: how often training data brought the neurons to the states that an input brings them to.

Liu, Tian, Li, Ma, Wang: Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization.
ICLR 2024.

A neuron is a feature before the head or a channel of a stage, its output z the sum over the positions. With u the
uniform distribution over the classes and p the softmax of the logits,

    state     s = sigmoid(α z g),    g = ∂ KL(u ‖ p) / ∂z, summed over the positions as well
    coverage  Φ_m = min(1, n_m / r),    n_m = training examples whose state lies in the m-th interval
    score     = − mean over layers of ( mean over neurons of Φ in the interval of s )

The intervals lie between M thresholds that are closest about s = ½, where z g = 0: with t at M/2 even steps from 1 to
√1000, log t / log 1000 and its mirror image 1 − log t / log 1000. The uppermost interval includes 1. (The last of the
authors' M thresholds is above that and bounds nothing.)

Layers and numbers are the authors' (their code for OpenOOD): the features of a ResNet in place of its last stage, and
the three stages before; α, r and M for each layer of ResNet-18 on CIFAR-10 and CIFAR-100 and of ResNet-50 on ImageNet,
and 1,000 training examples, equally many of every class. They come from a sweep by outliers for validation, which their
configurations list; there are none here, so the published numbers are taken and nothing is searched.
Sets of other sizes take those of the authors' largest set with no more classes. Networks with fewer stages leave out
the lowest layers, those with more are looked at by the three next to the features. The states of a batch take a second
forward pass and a backward pass, in which the network's parameters get no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import layers
from sgoif_bench.ood.detectors.published import of_classes

EXAMPLES = 1000
BASE = 1000.0
BEYOND_ONE = 1e-2
"""How far the uppermost threshold lies above 1."""
GRADIENTS_AT_ONCE = 256
"""Images whose activations are held for a backward pass at the same time."""


@dataclass(frozen=True)
class Coverage:
    """How the states of one layer are made and counted."""

    steepness: float
    """α"""
    enough: float
    """r, the number of examples from which on an interval is fully covered."""
    thresholds: int
    """M"""

    def __post_init__(self) -> None:
        for name in ("steepness", "enough"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError(f"{name} = {getattr(self, name)} of a layer must be a positive number")
        if self.thresholds < 4 or self.thresholds % 2:
            raise SettingError(f"thresholds = {self.thresholds} of a layer must be an even number of at least 4")

    def edges(self) -> Tensor:
        """Ends of the intervals in rising order, float32 [M − 1]."""
        steps = torch.linspace(1, math.sqrt(BASE), self.thresholds // 2, dtype=torch.float64)
        lower = steps.log() / math.log(BASE)
        edges = torch.cat((lower[:-1], (1 - lower).flip(0)))
        edges[len(lower) - 1] = 0.5  # exactly, as many neurons have z = 0
        edges[-1] += BEYOND_ONE
        return edges.float()

    def interval(self, states: Tensor) -> Tensor:
        """In which interval every state lies, long [n, neurons]."""
        return torch.bucketize(states, self.edges().to(states.device), right=True) - 1


PUBLISHED: dict[int, tuple[Coverage, ...]] = {
    10: (Coverage(100, 50, 50), Coverage(1000, 100, 500), Coverage(0.001, 5, 50), Coverage(0.001, 100, 500)),
    100: (Coverage(50, 50, 50), Coverage(10, 500, 1000), Coverage(1, 500, 50), Coverage(0.005, 5, 50)),
    1000: (Coverage(3000, 10, 50), Coverage(300, 500, 50), Coverage(0.01, 50, 500), Coverage(1, 5000, 1000)),
}
"""By the number of classes; the features first, then stages from the last to the first."""


def balanced_part(labels: Tensor, count: int, seed: int) -> Tensor:
    """About `count` random examples, equally many of every class that occurs, as a mask where the labels are."""
    group, sizes = labels.unique(return_inverse=True, return_counts=True)[1:]
    each = max(1, min(count // len(sizes), int(sizes.min())))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    part = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    for number in range(len(sizes)):
        part[order[group[order] == number][:each]] = True
    return part


class Outputs:
    """Within its context, keeps with their graph what goes into the head and what comes out of some stages."""

    def __init__(self, network: Network, stages: Sequence[str]) -> None:
        self._head, known = network.head, dict(network.model.named_modules())
        self._modules = [known[name] for name in stages]
        self._kept: dict[nn.Module, Tensor] = {}

    @property
    def kept(self) -> list[Tensor]:
        """The features, then the stages in the order given."""
        return [self._kept[module] for module in (self._head, *self._modules)]

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._kept[module] = inputs[0] if module is self._head else output

    def __enter__(self) -> Self:
        self._hooks = ExitStack()
        for module in (self._head, *self._modules):
            self._hooks.enter_context(module.register_forward_hook(self._keep))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()


def over_positions(values: Tensor, channels: int) -> Tensor:
    """Sum over the positions of a layer with so many channels, whichever axis they are on: [n, channels]."""
    if values.dim() == 4 and values.shape[1] == channels:
        return values.sum(dim=(2, 3))
    return values.flatten(1, -2).sum(dim=1) if values.dim() > 2 else values


class NAC(Detector):
    """The negative mean coverage of the neurons' states."""

    name = "nac"
    title = "NAC"
    paper = (
        "Liu, Tian, Li, Ma, Wang: Neuron Activation Coverage: Rethinking Out-of-distribution Detection and"
        " Generalization. ICLR 2024"
    )

    def __init__(self, *, coverages: Sequence[Coverage] | None = None, examples: int = EXAMPLES, seed: int = 0) -> None:
        if coverages is not None and not coverages:
            raise SettingError(
                "coverages of NAC are empty: give one for the features and one for each stage to look at"
            )
        if examples < 1:
            raise SettingError(f"examples = {examples} of NAC must be at least 1")
        self.coverages, self.examples, self.seed = coverages, examples, seed
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = network = bank.network
        coverages = of_classes(PUBLISHED, bank.classes) if self.coverages is None else self.coverages
        # Where the last stage averages to the features, they stand in its place.
        distinct = len(layers(bank.pooled, bank.features)) - 1
        pooled = reversed(bank.pooled[:distinct])
        self._stages = network.stages[:distinct][::-1][: len(coverages) - 1]
        self._channels = [wide.shape[1] for wide, _ in zip(pooled, self._stages, strict=False)]
        self._used = coverages[: 1 + len(self._stages)]
        counts = [
            torch.zeros(coverage.thresholds - 1, wide, device=bank.features.device)
            for coverage, wide in zip(self._used, (bank.features.shape[1], *self._channels), strict=True)
        ]
        for intervals in self._intervals(_images(bank, balanced_part(bank.labels, self.examples, self.seed))):
            for count, interval in zip(counts, intervals, strict=True):
                count.scatter_add_(0, interval, torch.ones_like(interval, dtype=count.dtype))
        self._covered = [(n / each.enough).clamp_max(1) for n, each in zip(counts, self._used, strict=True)]
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError("NAC has no network to pass the images through: call fit(bank) before score(seen)")
        parts = []
        for intervals in self._intervals(seen.images):
            found = [table.gather(0, at).mean(dim=1) for table, at in zip(self._covered, intervals, strict=True)]
            parts.append(-torch.stack(found).mean(dim=0))
        return torch.cat(parts)

    def _intervals(self, images: Tensor) -> Iterator[list[Tensor]]:
        """Of some images at a time, for each layer, where the states of its neurons lie."""
        for some in images.split(GRADIENTS_AT_ONCE):
            yield [each.interval(s) for each, s in zip(self._used, self._states(some), strict=True)]

    def _states(self, images: Tensor) -> list[Tensor]:
        assert self._network is not None
        with torch.inference_mode(False), torch.enable_grad():
            leaf = images.detach().clone().requires_grad_()
            with Outputs(self._network, self._stages) as outputs:
                logits = self._network.model(leaf).float()
            # KL(u ‖ p) but for a constant; a sum, as the state of an image must not depend on its batch.
            gradients = torch.autograd.grad(-logits.log_softmax(dim=1).mean(dim=1).sum(), outputs.kept)
        states = []
        wide = (outputs.kept[0].shape[1], *self._channels)
        for output, gradient, channels, each in zip(outputs.kept, gradients, wide, self._used, strict=True):
            z, g = (over_positions(values.detach().float(), channels) for values in (output, gradient))
            states.append((each.steepness * z * g).sigmoid())
        return states


def _images(bank: Bank, part: Tensor) -> Tensor:
    """The images of the bank that a mask names."""
    chosen, start = [], 0
    for seen, _ in bank.batches():
        chosen.append(seen.images[part[start : start + len(seen)]])
        start += len(seen)
    return torch.cat(chosen)
