"""GROOD: how unusual the pull of an input is on a prototype of outliers that stands beside those of the classes.

ElAraby, Sahoo, Pequignot, Novello, Paull: GROOD: Gradient-Aware Out-of-Distribution Detection. TMLR 2025.

With the mean features P_1 … P_K of the classes and a prototype P_o of outliers, the distances −‖φ − P‖ are logits of a
classifier, of whose cross entropy for the predicted class the gradient by P_o is

    g(φ)  = p_o (φ − P_o) / ‖φ − P_o‖,    p = softmax(−‖φ − P_1‖, …, −‖φ − P_K‖, −‖φ − P_o‖)
    score = min_i ‖g(φ) − g(φ_i)‖         over the training examples that are classified rightly

P_o comes from the training data: the map of an image before the last stage is mixed with the mean map μ_c of its
second most likely class c, goes through the rest of the network as λ h + (1 − λ) μ_c, and P_o is the mean of the
features of n such mixtures. This is the authors' prototype of synthetic samples, with λ = ½ as their code has it,
n = 100 random images and the nearest neighbour alone; the stage is that of OpenOOD's configuration for ResNet-18
(`layer3`), and in other networks the last whose mean is not the features themselves. OpenOOD's configuration makes P_o
of outliers for validation instead and sweeps the other numbers on them; there are none here.

The authors search an approximate index of the gradients; here the search is exact. A network without stages mixes the
features. Where no training example is classified rightly, all of them count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import Neighbours, layers, random_part, unit

MIXTURES = 100
"""n of the authors' configuration."""
SHARE = 0.5
"""λ of the authors' code."""
CHUNK = 8192
"""Examples that are in double precision at a time."""


def class_means(parts: Iterable[Tensor], group: Tensor, classes: int) -> Tensor:
    """Mean of the values of every class's examples, which come in parts in the order of `group`; float64."""
    total, start = None, 0
    for values in parts:
        if total is None:
            total = values.new_zeros(classes, *values.shape[1:], dtype=torch.float64)
        total.index_add_(0, group[start : start + len(values)], values.double())
        start += len(values)
    assert total is not None
    sizes = group.bincount(minlength=classes)
    return total / sizes.view(-1, *(1,) * (total.dim() - 1))


def as_they_came(stage: Tensor, output: Tensor) -> Tensor:
    """A stage, whose positions are last, with its axes as the network's own output has them."""
    if stage.dim() == 4:
        return stage if stage.shape[1:] == output.shape[1:] else stage.movedim(1, 3)
    return stage.transpose(1, 2)


class GROOD(Detector):
    """Distance from the gradients of training examples by the outliers' prototype."""

    name = "grood"
    title = "GROOD"
    paper = "ElAraby, Sahoo, Pequignot, Novello, Paull: GROOD: Gradient-Aware Out-of-Distribution Detection. TMLR 2025"

    def __init__(self, *, mixtures: int = MIXTURES, share: float = SHARE, seed: int = 0) -> None:
        if mixtures < 1:
            raise SettingError(f"mixtures = {mixtures} of GROOD must be at least 1")
        if not 0 <= share <= 1:
            raise SettingError(f"share = {share} of GROOD, that of the image in a mixture, must lie between 0 and 1")
        self.mixtures, self.share, self.seed = mixtures, share, seed
        self.prototypes: Tensor | None = None
        """P_1 … P_K of the classes that occur and P_o, [K + 1, D] float64."""

    def fit(self, bank: Bank) -> Self:
        classes, group = bank.labels.unique(return_inverse=True)
        means = class_means([bank.features], group, len(classes))
        outlier = self._mixed_features(bank, classes, group).double().mean(dim=0, keepdim=True)
        self.prototypes = torch.cat((means, outlier))
        right = bank.logits.argmax(dim=1) == bank.labels
        counted = bank.features[right] if bool(right.any()) else bank.features
        self._bank = Neighbours(self.gradients(counted))
        return self

    def score(self, seen: Seen) -> Tensor:
        mine = self.gradients(seen.features)
        return self._bank.nearest(mine, 1).values.squeeze(1).float()

    def gradients(self, features: Tensor) -> Tensor:
        """g of every row, float64 [n, D]."""
        if self.prototypes is None:
            raise SettingError("GROOD has no prototypes to compare with: call fit(bank) before score(seen)")
        found = []
        for part in features.split(CHUNK):
            exact = part.double()
            chance = (-torch.cdist(exact, self.prototypes)).softmax(dim=1)[:, -1:]
            found.append(chance * unit(exact - self.prototypes[-1]))
        return torch.cat(found)

    def _mixed_features(self, bank: Bank, classes: Tensor, group: Tensor) -> Tensor:
        """Features of the mixtures, [n, D]."""
        part = random_part(len(bank), self.mixtures, self.seed).to(bank.labels.device)
        likely = bank.logits[part][:, classes].topk(min(2, len(classes)), dim=1).indices[:, -1]
        stage = len(layers(bank.pooled, bank.features)) - 2
        if stage < 0:
            partners = class_means([bank.features], group, len(classes))[likely].float()
            return self.share * bank.features[part] + (1 - self.share) * partners
        partners = class_means((seen.stages[stage] for seen, _ in bank.batches()), group, len(classes))[likely].float()
        name, mixed, start, done = bank.network.stages[stage], [], 0, 0
        for seen, _ in bank.batches():
            images = seen.images[part[start : start + len(seen)]]
            start += len(seen)
            if len(images):
                mixed.append(self._through(bank.network, name, images, partners[done : done + len(images)]))
                done += len(images)
        return torch.cat(mixed)

    def _through(self, network: Network, stage: str, images: Tensor, partners: Tensor) -> Tensor:
        """Features of images whose maps at a stage are mixed with others, [n, D]."""

        def mix(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return self.share * output + (1 - self.share) * as_they_came(partners, output)

        with dict(network.model.named_modules())[stage].register_forward_hook(mix):
            return network.see(images, stages=False).features
