"""OpenGAN: the discriminator of a generative adversarial network on features, as detector.

Kong, Ramanan: OpenGAN: Open-Set Recognition via Open Data Generation. ICCV 2021.

Generator g and discriminator d are perceptrons on the features φ before the head, trained against each other,

    d:  max  mean log σ(d(φ)) + mean log(1 − σ(d(g(ε))))        ε ~ N(0, 1) of 100 dimensions
    g:  max  mean log σ(d(g(ε)))
    score = −d(φ)

which is their OpenGAN-fea without outliers for training. Layers, initial weights, Adam with β₁ = 0.5 and a learning
rate of 1e-4 (d: 1e-4/1.5), batches of 128 and 100 epochs are the authors' and OpenOOD's.

Which epoch. In the end d may tell little, since g has learnt to deceive it; so the authors take the epoch that is best
on outliers for validation. There are none here. With `select`, the epoch taken is the one whose discriminator tells
best, by AUROC, training features that were held out (a tenth) from generated ones. These are generated at the end of
every epoch and pooled, so that no discriminator is judged by its own adversary alone; the earlier of equals wins.
Without `select` it is the last epoch, trained on all features.

Batch norm. d scores with the running statistics of its training, as in OpenOOD, so that a score does not depend on the
rest of its batch. (The authors' demonstration leaves d in training mode, and its test batches are all in or all out.)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import held_out

NOISE = 100
WIDTH = 64
INITIAL_SPREAD = 0.02
LEARNING_RATE = 1e-4
DISCRIMINATOR_SLOWER = 1.5
BETAS = (0.5, 0.999)
HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 2000
"""More would make the choice no better, and there is a discriminator to judge for every epoch."""


def generator(features: int) -> nn.Sequential:
    """From noise to features."""
    widths = (NOISE, 8 * WIDTH, 4 * WIDTH, 2 * WIDTH, 4 * WIDTH)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
    return _initialised(nn.Sequential(*layers, nn.Linear(widths[-1], features)))


def discriminator(features: int) -> nn.Sequential:
    """From features to the logit that they are real."""
    widths = (8 * WIDTH, 4 * WIDTH, 2 * WIDTH, WIDTH)
    layers: list[nn.Module] = [nn.Linear(features, widths[0], bias=False), nn.LeakyReLU(0.2)]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.LeakyReLU(0.2)]
    return _initialised(nn.Sequential(*layers, nn.Linear(widths[-1], 1, bias=False), nn.Flatten(0)))


class Adversaries:
    """A generator and a discriminator, and one step of their training."""

    def __init__(self, features: int, device: torch.device, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reach every GPU
            self.generator = generator(features).to(device)
            self.discriminator = discriminator(features).to(device)
        self.random = torch.Generator(device).manual_seed(seed)
        self._step_generator = torch.optim.Adam(self.generator.parameters(), lr=LEARNING_RATE, betas=BETAS)
        self._step_discriminator = torch.optim.Adam(
            self.discriminator.parameters(), lr=LEARNING_RATE / DISCRIMINATOR_SLOWER, betas=BETAS
        )

    def generate(self, count: int) -> Tensor:
        """New features."""
        made: Tensor = self.generator(torch.randn(count, NOISE, generator=self.random, device=self.random.device))
        return made

    def step(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the discriminator on real and generated features, then one of the generator; their losses."""
        fake = self.generate(len(real))
        # Two passes, one each for real and generated: the batch norm of the one must not see the other.
        loss = F.softplus(-self.discriminator(real)).mean() + F.softplus(self.discriminator(fake.detach())).mean()
        self._step_discriminator.zero_grad()
        loss.backward()
        self._step_discriminator.step()
        deceived = F.softplus(-self.discriminator(fake)).mean()
        self._step_generator.zero_grad()
        deceived.backward()
        self._step_generator.step()
        return loss.detach(), deceived.detach()


class OpenGAN(Detector):
    """Discriminator between training features and generated ones."""

    name = "opengan"
    title = "OpenGAN"
    paper = "Kong, Ramanan: OpenGAN: Open-Set Recognition via Open Data Generation. ICCV 2021"

    def __init__(self, *, epochs: int = 100, batch_size: int = 128, select: bool = True, seed: int = 0) -> None:
        if epochs < 1:
            raise SettingError(f"epochs = {epochs}: at least one is needed")
        if batch_size < 2:
            raise SettingError(f"batch_size = {batch_size}: batch normalisation needs at least 2")
        self.epochs, self.batch_size, self.select, self.seed = epochs, batch_size, select, seed

    def fit(self, bank: Bank) -> Self:
        training, validation = self._split(bank.features)
        if len(training) < 2:
            raise SettingError(f"{len(training)} training features are too few for batch normalisation")
        pair = Adversaries(training.shape[1], training.device, self.seed)
        kept: list[nn.Sequential] = []
        pool: list[Tensor] = []
        with torch.enable_grad():
            for _ in range(self.epochs):
                pair.discriminator.train()
                for real in self._batches(training, pair.random):
                    pair.step(real)
                if self.select:
                    kept.append(copy.deepcopy(pair.discriminator).eval())
                    pool.append(pair.generate(self.batch_size).detach())
        if not self.select:
            self.epoch, self._discriminator = self.epochs, pair.discriminator.eval()
            return self
        quality = [_separation(each, validation, torch.cat(pool)) for each in kept]
        best = max(range(self.epochs), key=quality.__getitem__)
        self.epoch, self._discriminator = best + 1, kept[best]
        return self

    @torch.no_grad()
    def score(self, seen: Seen) -> Tensor:
        real: Tensor = self._discriminator(seen.features)
        return -real

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features to train on, and those the epoch is chosen by."""
        if not self.select:
            return features, features[:0]
        share = min(HELD_OUT_SHARE, HELD_OUT_MOST / len(features))
        held = held_out(len(features), share, self.seed).to(features.device)
        return features[~held], features[held]

    def _batches(self, features: Tensor, random: torch.Generator) -> Iterator[Tensor]:
        """All features once in random order; a single one left over is left out, as it has no variance."""
        order = torch.randperm(len(features), generator=random, device=random.device)
        for rows in order.split(self.batch_size):
            if len(rows) > 1:
                yield features[rows]


@torch.no_grad()
def _separation(judge: nn.Sequential, real: Tensor, fake: Tensor) -> float:
    """AUROC with which a discriminator tells generated from real."""
    doubt = -judge(torch.cat([real, fake]))
    is_fake = torch.arange(len(doubt)) >= len(real)
    return auroc(is_fake.numpy(), doubt.double().cpu().numpy())


def _initialised(network: nn.Sequential) -> nn.Sequential:
    for module in network:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, INITIAL_SPREAD)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.weight, 1.0, INITIAL_SPREAD)
    return network
