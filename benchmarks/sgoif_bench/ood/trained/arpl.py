"""ARPL: a class is what lies far from its reciprocal point, the stand-in for everything that the class is not.

Chen, Peng, Wang, Tian: Adversarial Reciprocal Points Learning for Open Set Recognition. TPAMI 2021.

With features φ ∈ ℝᴰ, a learned point P_k for each of the K classes and a learned radius R,

    d_e(φ, P_k) = ‖φ − P_k‖² / D         d_d(φ, P_k) = φ · P_k
    z_k = d_e(φ, P_k) − d_d(φ, P_k)
    L   = CE(z, y) + λ max(0, d_e(φ, P_y) − R + 1)

The second term keeps every class within the margin of its point, so that what is unknown cannot lie further away than
what is known; λ = 0.1. (The paper writes max(0, d_e − R). The 1 is from the authors' code, and as R is learned it only
sets where R starts.)

ARPL+CS, the main variant, adds confusing samples: a generator G learns to fool a discriminator D and at the same time
to make images that are at the same distance from all points; the classifier learns, beside L, to find them so. With
q = softmax(d_e(φ(G(u)), P)) and H its entropy, u ~ N(0, I),

    D:  −log D(x) − log(1 − D(G(u)))
    G:  −log D(G(u)) + β exp(−mean H(q))
    φ:  L + β exp(−mean H(q)),      β = 0.1

Generated images pass through batch norms of their own, so that they do not spoil the statistics of real ones. Generator
and discriminator are the authors' DCGAN for 32×32 images, with more or fewer doublings for other sizes; both learn by
Adam at 0.0002 with betas 0.5 and 0.999. Everything else learns by the recipe. OpenOOD's configuration has the same
numbers; as there, an epoch is one pass with confusing samples (the authors add a second one without).

`confusing=False` is ARPL alone, which OpenOOD's scripts for CIFAR train.

Score: −max_k z_k, how near the input is to all the points. Cost: one training alone, and three with confusing samples,
since the classifier also sees a batch of them when G learns and one when it learns itself; G and D come on top.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import ceil, floor, log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import headless, scored
from sgoif_bench.ood.trained.method import Scorer
from sgoif_bench.ood.trained.views import fresh, side_of

MARGIN_WEIGHT = 0.1
"""λ"""
MARGIN = 1.0
CONFUSION_WEIGHT = 0.1
"""β"""
POINT_SPREAD = 0.1
"""Standard deviation of the initial points."""
NOISE = 100
"""Numbers that an image is generated from."""
GAN_WIDTH = 64
GAN_RATE, GAN_BETAS = 2e-4, (0.5, 0.999)
INITIAL_SPREAD = 0.02
_POINTS, _GENERATOR, _DISCRIMINATOR, _NOISE_STREAM = 341, 342, 343, 344


# The classifier


class TwinNorm(nn.Module):
    """Two batch norms with the same start, one for real images and one for generated ones."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.real = norm
        self.generated = copy.deepcopy(norm)
        self.sees_generated = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.generated(x) if self.sees_generated else self.real(x)
        return out


def with_twin_norms(model: nn.Module) -> nn.Module:
    """The model with every batch norm over images replaced by two."""
    for name, module in list(model.named_modules()):
        if name and isinstance(module, nn.BatchNorm2d):
            model.set_submodule(name, TwinNorm(module))
    return model


@contextmanager
def generated_images(model: nn.Module) -> Iterator[None]:
    """Within it, images pass through the norms for generated ones."""
    twins = [module for module in model.modules() if isinstance(module, TwinNorm)]
    for twin in twins:
        twin.sees_generated = True
    try:
        yield
    finally:
        for twin in twins:
            twin.sees_generated = False


class ReciprocalPoints(nn.Module):
    """P and R, and what features are told by them."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.points = nn.Parameter(POINT_SPREAD * torch.randn(classes, width))
        self.radius = nn.Parameter(torch.zeros(()))

    def distances(self, features: Tensor) -> Tensor:
        """d_e from every point, [n, K]."""
        squares = features.square().sum(dim=1, keepdim=True) + self.points.square().sum(dim=1)
        return (squares - 2 * features @ self.points.T) / features.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """z [n, K]."""
        return self.distances(features) - features @ self.points.T

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """CE(z, y) + λ max(0, d_e(φ, P_y) − R + 1), mean over the batch."""
        own = (features - self.points[labels]).square().mean(dim=1)
        outside = F.relu(own - self.radius + MARGIN).mean()
        return F.cross_entropy(self(features), labels) + MARGIN_WEIGHT * outside

    def confusion_loss(self, features: Tensor) -> Tensor:
        """exp(−mean H(q)): least, 1/K, where all points are equally far."""
        log_q = self.distances(features).log_softmax(dim=1)
        return (log_q.exp() * log_q).sum(dim=1).mean().exp()


class Classifier(nn.Module):
    """From images to z."""

    def __init__(self, body: nn.Module, points: ReciprocalPoints) -> None:
        super().__init__()
        self.body, self.points = body, points

    def features(self, images: Tensor) -> Tensor:
        """φ in float32, where squares of features do not lose their last digits."""
        features: Tensor = self.body(images)
        return features.float()

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.points(features)
        return logits


# Confusing samples


class Generator(nn.Module):
    """From noise [n, 100] to images: 4×4 doubled until it covers the side, the middle of it kept."""

    def __init__(self, channels: int, side: int, width: int = GAN_WIDTH) -> None:
        super().__init__()
        doublings = max(1, ceil(log2(side / 4)))
        counts = [max(width, 8 * width >> step) for step in range(doublings)]
        parts: list[nn.Module] = [nn.ConvTranspose2d(NOISE, counts[0], 4, bias=False), *_normed(counts[0])]
        for before, after in pairwise(counts):
            parts += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False), *_normed(after)]
        # No squashing at the end: images are normalised and have no fixed bounds.
        parts.append(nn.ConvTranspose2d(counts[-1], channels, 4, stride=2, padding=1, bias=False))
        self.layers = nn.Sequential(*parts)
        self._edge, self._side = (4 * 2**doublings - side) // 2, side
        self.apply(_start)

    def forward(self, noise: Tensor) -> Tensor:
        whole = self.layers(noise[:, :, None, None])
        within = slice(self._edge, self._edge + self._side)
        images: Tensor = whole[:, :, within, within]
        return images


class Discriminator(nn.Module):
    """From images to the logit of being real: halved until four pixels a side remain, or a few more."""

    def __init__(self, channels: int, side: int, width: int = GAN_WIDTH) -> None:
        super().__init__()
        steps = max(1, floor(log2(side / 4)))
        counts = [min(8 * width, 2 * width << step) for step in range(steps)]
        parts: list[nn.Module] = [nn.Conv2d(channels, counts[0], 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2)]
        for before, after in pairwise(counts):
            parts += [nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(after)]
            parts.append(nn.LeakyReLU(0.2))
        parts += [nn.Conv2d(counts[-1], 16 * width, 4, bias=False), nn.Sigmoid()]
        self.layers = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16 * width, 1))
        self.apply(_start)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits.squeeze(1)


def _normed(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU()


@torch.no_grad()
def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        module.weight.normal_(0.0, INITIAL_SPREAD)
    elif isinstance(module, nn.BatchNorm2d):
        module.weight.normal_(1.0, INITIAL_SPREAD)
        module.bias.zero_()


class Confusion:
    """The generator and the discriminator while they learn."""

    def __init__(self, problem: Problem, width: int = GAN_WIDTH) -> None:
        channels, side = problem.channels, side_of(problem)
        self._problem = problem
        self.generator = fresh(problem, _GENERATOR, lambda: Generator(channels, side, width)).train()
        self.discriminator = fresh(problem, _DISCRIMINATOR, lambda: Discriminator(channels, side, width)).train()
        self._for_generator, self._for_discriminator = (
            torch.optim.Adam(network.parameters(), lr=GAN_RATE, betas=GAN_BETAS)
            for network in (self.generator, self.discriminator)
        )
        self._stream = torch_stream(problem, _NOISE_STREAM)

    def draw(self, count: int) -> Tensor:
        """So many generated images, with a graph if one is being made."""
        noise = torch.randn(count, NOISE, generator=self._stream, device=self._problem.device)
        with self._problem.autocast():
            images: Tensor = self.generator(noise)
        layout = torch.channels_last if self._problem.on_gpu else torch.contiguous_format
        return images.float().contiguous(memory_format=layout)

    def learn(self, real: Tensor, classifier: Classifier) -> None:
        """One step of the discriminator and one of the generator."""
        made = self.draw(len(real))
        verdicts = self._verdict(real, is_real=True) + self._verdict(made.detach(), is_real=False)
        self._step(self._for_discriminator, self.discriminator, verdicts)

        with generated_images(classifier), self._problem.autocast():
            features = classifier.features(made)
        confusion = classifier.points.confusion_loss(features)
        loss = self._verdict(made, is_real=True) + CONFUSION_WEIGHT * confusion
        self._step(self._for_generator, self.generator, loss)

    def _step(self, optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor) -> None:
        # Only this network's own gradients: the generator's loss runs through the other two as well.
        loss.backward(inputs=list(network.parameters()))
        optimizer.step()
        optimizer.zero_grad()

    def _verdict(self, images: Tensor, is_real: bool) -> Tensor:
        with self._problem.autocast():
            logits = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(logits.float(), torch.full_like(logits, is_real, dtype=torch.float))


def arpl(
    problem: Problem, outliers: Tensor | None, tell: Say, *, confusing: bool = True, gan_width: int = GAN_WIDTH
) -> Scorer:
    """Train with reciprocal points, and confusing samples unless told otherwise; the score is −max z."""
    del outliers
    if gan_width < 1:
        raise SettingError(f"gan_width = {gan_width} must be at least 1 channel")
    side_of(problem)
    body, width = headless(problem.new_model())
    points = fresh(problem, _POINTS, lambda: ReciprocalPoints(problem.classes, width))
    confusion = Confusion(problem, gan_width) if confusing else None
    classifier = Classifier(with_twin_norms(body) if confusing else body, points)
    batches, epochs = problem.batches(), problem.recipe.epochs
    optimizer, schedule = problem.optimizer(classifier, epochs * len(batches))
    for epoch in range(1, epochs + 1):
        classifier.train()
        total = torch.zeros((), device=problem.device)
        for x, y, _ in batches:
            if confusion is not None:
                confusion.learn(x, classifier)
            with problem.autocast():
                features = classifier.features(x)
            loss = points.loss(features, y)
            if confusion is not None:
                with torch.no_grad():
                    made = confusion.draw(len(x))
                with generated_images(classifier), problem.autocast():
                    features = classifier.features(made)
                loss = loss + CONFUSION_WEIGHT * points.confusion_loss(features)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            total += loss.detach()
        tell(f"arpl: epoch {epoch} of {epochs}, loss {float(total) / len(batches):.3f}")
    details = {"confusing": confusing, "radius": float(points.radius.detach()), "margin_weight": MARGIN_WEIGHT}
    score = scored(classifier, lambda logits: -logits.amax(dim=1))
    return Scorer(score, classifier.eval(), 3.0 if confusing else 1.0, details)
