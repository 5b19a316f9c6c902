"""CutPaste: tell images from images with a piece of themselves in the wrong place, then ask how usual the features are.

Li, Sohn, Yoon, Pfister: CutPaste: Self-Supervised Learning for Anomaly Detection and Localization. CVPR 2021.

The main variant of the paper has three classes: the image as it is, CutPaste (a rectangle cut out of the image and
pasted somewhere else in it) and CutPaste-Scar (the same with a long thin rectangle, turned before it is pasted). A
network g with body f learns to tell them apart,

    L = CE(g(x), 0) + CE(g(CP(x)), 1) + CE(g(Scar(x)), 2)      divided by 3

and the score is the Mahalanobis distance of f(x) under one Gaussian fitted to f of the training images,

    score(x) = √((f(x) − μ)ᵀ Σ⁻¹ (f(x) − μ)),

the order of the paper's log density. Σ is shrunk by the rule of Ledoit and Wolf (Journal of Multivariate Analysis 2004,
as Rippel et al., ICPR 2020, whose estimator the paper takes): some features may never fire on training images, and the
plain covariance would be singular.

Numbers of the paper, for 256×256 images, which we keep in proportion to the side: rectangles of 2 to 15% of the area
with width : height from (0.3, 1) ∪ (1, 3.3); scars 2 to 16 pixels wide and 10 to 25 long (here at least 1 and 2),
turned by −45° to 45°; jitter of brightness, contrast, saturation and hue of the piece by up to 0.1. Every image is
first moved at random as the recipe says and its colours are jittered as much. The paper does not give the sizes of the
multilayer perceptron between f and the last layer; here it has one layer as wide as f and one of 128.

The method knows no classes; labels are not used. Cost: three trainings, as every image is seen three times an epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import headless
from sgoif_bench.ood.trained.method import Scorer
from sgoif_bench.ood.trained.views import Jitter, chosen, fresh, pixel_batches, side_of, to_network, uniform

AREA = (0.02, 0.15)
"""Share of the image that a rectangle covers."""
ASPECT = (0.3, 1.0, 3.3)
"""Width : height of a rectangle, with equal chance from the lower or the upper range."""
SCAR_WIDTH, SCAR_LENGTH = (2 / 256, 16 / 256), (10 / 256, 25 / 256)
"""Shares of the side."""
SCAR_ANGLE = math.radians(45)
JITTER = Jitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.1)
EMBEDDING = 128
TASKS = 3
_AUGMENTATION_STREAM, _HEAD = 311, 312


@dataclass(frozen=True)
class Pieces:
    """One rectangle to cut out of each image and paste; all [n, 1, 1, 1], in pixels with the first pixel's middle at 0.

    Sources and targets are middles of rectangles.
    """

    height: Tensor
    width: Tensor
    source: tuple[Tensor, Tensor]
    target: tuple[Tensor, Tensor]
    angle: Tensor
    """By which the piece is turned before it is pasted, in radians."""


def draw_rectangles(count: int, side: int, generator: torch.Generator) -> Pieces:
    """The pieces of CutPaste."""
    area = side**2 * uniform(count, *AREA, generator)
    low, high = uniform(count, *ASPECT[:2], generator), uniform(count, *ASPECT[1:], generator)
    aspect = torch.where(chosen(count, 0.5, generator), low, high)
    height, width = ((part.sqrt().round()).clamp(1, side) for part in (area / aspect, area * aspect))
    return _placed(height, width, torch.zeros_like(height), side, generator)


def draw_scars(count: int, side: int, generator: torch.Generator) -> Pieces:
    """The pieces of CutPaste-Scar."""
    width = (side * uniform(count, *SCAR_WIDTH, generator)).round().clamp(1, side)
    length = (side * uniform(count, *SCAR_LENGTH, generator)).round().clamp(2, side)
    return _placed(length, width, uniform(count, -SCAR_ANGLE, SCAR_ANGLE, generator), side, generator)


def _placed(height: Tensor, width: Tensor, angle: Tensor, side: int, generator: torch.Generator) -> Pieces:
    def middle(size: Tensor) -> Tensor:
        first = (uniform(len(size), 0, 1, generator) * (side - size + 1)).floor()
        return first + (size - 1) / 2

    return Pieces(height, width, (middle(height), middle(width)), (middle(height), middle(width)), angle)


def paste(pixels: Tensor, pieces: Pieces, generator: torch.Generator, jitter: Jitter | None = JITTER) -> Tensor:
    """Every image with its piece, colours jittered, over what was there; what of it falls outside is lost."""
    height, width = pixels.shape[2:]
    row = torch.arange(height, device=pixels.device).view(1, 1, -1, 1) - pieces.target[0]
    column = torch.arange(width, device=pixels.device).view(1, 1, 1, -1) - pieces.target[1]
    cosine, sine = pieces.angle.cos(), pieces.angle.sin()
    down, right = cosine * row + sine * column, cosine * column - sine * row
    within = (down.abs() < pieces.height / 2) & (right.abs() < pieces.width / 2)
    source = (pieces.source[1] + right, pieces.source[0] + down)
    grid = [(2 * place + 1) / size - 1 for place, size in zip(source, (width, height), strict=True)]
    moved = F.grid_sample(
        pixels, torch.stack(grid, dim=-1).squeeze(1), mode="bilinear", padding_mode="border", align_corners=False
    )
    if jitter is not None:
        moved = jitter(moved, generator, within.to(moved.dtype))
    return torch.where(within, moved, pixels)


def three_ways(pixels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All images as they are, with a rectangle pasted and with a scar, [3n, C, H, W], and which is which, [3n]."""
    count, side = len(pixels), pixels.shape[2]
    pixels = JITTER(pixels, generator)
    rectangles = paste(pixels, draw_rectangles(count, side, generator), generator)
    scars = paste(pixels, draw_scars(count, side, generator), generator)
    tasks = torch.arange(TASKS, device=pixels.device).repeat_interleave(count)
    return torch.cat((pixels, rectangles, scars)), tasks


class Gaussian:
    """A normal distribution with shrunk covariance (1 − ρ) S + ρ tr(S)/D I, after Ledoit and Wolf.

    ρ is the mean squared error of S over its squared distance from the multiple of I, both estimated from the data.
    """

    def __init__(self, features: Tensor) -> None:
        if features.dim() != 2 or len(features) < 2:
            raise SettingError(f"a Gaussian needs features [n, D] of at least 2 examples, not {list(features.shape)}")
        exact = features.double()
        self.mean = exact.mean(dim=0)
        centred = exact - self.mean
        count, width = centred.shape
        covariance = centred.T @ centred / count
        level = covariance.trace() / width
        squares = covariance.square().sum()
        error = (centred.square().sum(dim=1).square().sum() / count - squares) / count
        distance = squares - width * level**2
        # Features that are all the same, or as spread as a sphere, leave nothing to shrink towards.
        self.shrinkage = float((error.clamp_min(0) / distance).clamp(max=1)) if distance > 0 else 1.0
        diagonal = torch.eye(width, dtype=exact.dtype, device=exact.device)
        shrunk = (1 - self.shrinkage) * covariance + self.shrinkage * level * diagonal
        self._root = torch.linalg.cholesky(shrunk + 1e-12 * level.clamp_min(1e-12) * diagonal)

    def distance(self, features: Tensor) -> Tensor:
        """Mahalanobis distance from the mean, [n]."""
        centred = (features.double() - self.mean).T
        whitened: Tensor = torch.linalg.solve_triangular(self._root, centred, upper=False)
        return whitened.square().sum(dim=0).sqrt().float()


def _head(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, EMBEDDING, bias=False),
        nn.BatchNorm1d(EMBEDDING),
        nn.ReLU(),
        nn.Linear(EMBEDDING, TASKS),
    )


def cutpaste(problem: Problem, outliers: Tensor | None, tell: Say) -> Scorer:
    """Train on the three classes; the score is the Mahalanobis distance of the features."""
    del outliers
    side_of(problem)
    body, width = headless(problem.new_model())
    model = nn.Sequential(body, fresh(problem, _HEAD, lambda: _head(width)))
    batches, epochs = pixel_batches(problem), problem.recipe.epochs
    optimizer, schedule = problem.optimizer(model, epochs * len(batches))
    generator = torch_stream(problem, _AUGMENTATION_STREAM)
    right = 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        correct = torch.zeros((), device=problem.device)
        for pixels, _, _ in batches:
            views, tasks = three_ways(pixels, generator)
            with problem.autocast():
                logits = model(to_network(problem, views))
            F.cross_entropy(logits.float(), tasks).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            correct += (logits.detach().argmax(dim=1) == tasks).sum()
        right = float(correct) / (TASKS * len(problem))
        tell(f"cutpaste: epoch {epoch} of {epochs}, {right:.3f} of the pieces told apart")

    body.eval()
    with torch.no_grad():
        gaussian = Gaussian(torch.cat([body(x).float() for x, _, _ in problem.plain_batches()]))

    @torch.no_grad()
    def score(images: Tensor) -> Tensor:
        return gaussian.distance(body.eval()(images).float())

    details = {"shrinkage": gaussian.shrinkage, "task_accuracy": right}
    return Scorer(score, trainings=float(TASKS), details=details)
