"""Generalized ODIN: logits split into a dividend per class and one divisor, and inputs moved towards higher scores.

Hsu, Shen, Jin, Kira: Generalized ODIN: Detecting Out-of-distribution Image without Learning from Out-of-distribution
Data. CVPR 2020. The variant is DeConf-C, with cosines, the main one of the paper.

For features φ(x) and a weight w_i per class,

    f_i = h_i / g,    h_i = cos(w_i, φ),    g = sigmoid(BN(v·φ + c))

and softmax cross entropy on f trains everything; h stands for p(y, in | x) and g for p(in | x). The w_i, which are
centroids, start by He's rule and have no weight decay. g is at least 1/1,098, which the authors do not ask for: in a
batch of 512 one image may lie up to 22 standard deviations below the others, and with g = e⁻¹³ it alone throws away all
weights in the first step. The score of an input is S(x) = max_i h_i(x), after a step

    x̂ = x + ε sign ∇S(x)

with ε in units of the pixel range [0, 1]. ε is the one of seven magnitudes with the largest mean S(x̂) over held-out
examples of the training distribution: nothing out of distribution is needed to choose it. The held-out examples are
the problem's anchors; they are left out of training. `godin_still` takes no step (ε = 0), `godin_small` that of
OpenOOD's configuration, ε = 0.0025.

Score. −S(x̂). Cost: one training on the part outside the hold-out. A score takes two forward and one backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, Rows
from sgoif_bench.ood.trained.common import headless, without_decay
from sgoif_bench.ood.trained.method import Scorer

MAGNITUDES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
"""ε that are tried: the list of the paper with 0."""
NORM_OFFSET = 1e-4
LEAST_LOG_DIVISOR = -7.0
"""Of u. A network that has learned something stays above it."""
GRADIENTS_AT_ONCE = 250
"""Images whose activations are held for a backward pass at the same time."""
_HEAD_NUMBER = 401


class DividendDivisor(nn.Module):
    """A network whose logits are h / g."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.centroids = nn.Parameter(nn.init.kaiming_normal_(torch.empty(classes, width), nonlinearity="relu"))
        self.divisor = nn.Sequential(nn.Linear(width, 1), nn.BatchNorm1d(1))
        """u, of which g is the sigmoid."""

    def dividends(self, features: Tensor) -> Tensor:
        """h [n, classes]: cosines between features and centroids."""
        return _unit(features) @ _unit(self.centroids).T

    def score(self, images: Tensor) -> Tensor:
        """S = max_i h_i, [n]."""
        features: Tensor = self.body(images)
        return self.dividends(features.float()).max(dim=1).values

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images)
        # Cosines lie close together, and g divides: half precision would blur both.
        with torch.autocast(images.device.type, enabled=False):
            features = features.float()
            logits: Tensor = self.dividends(features) * one_over_sigmoid(self.divisor(features))
        return logits


def one_over_sigmoid(u: Tensor) -> Tensor:
    """1/g = 1 + exp(−u) for g = sigmoid(u); below u = −7 it stays what it is there."""
    return 1 + (-u.clamp_min(LEAST_LOG_DIVISOR)).exp()


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / (rows.norm(dim=1, keepdim=True) + NORM_OFFSET)
    return unit


def new_network(problem: Problem) -> DividendDivisor:
    """The problem's network with the two heads in place of its own."""
    body, width = headless(problem.new_model())
    with torch.random.fork_rng(devices=[problem.device] if problem.on_gpu else []):
        torch.manual_seed(1000 * problem.seed + _HEAD_NUMBER)
        network = DividendDivisor(body, width, problem.classes)
    return network.to(problem.device)


def moved(network: DividendDivisor, images: Tensor, steps: Tensor) -> Tensor:
    """x̂: each pixel a step up or down, whichever raises S; `steps` [1, C, 1, 1] is ε of each normalised channel."""
    with torch.inference_mode(False), torch.enable_grad():
        movable = images.detach().clone().requires_grad_()
        # A sum, so that every image gets the gradient of its own score: in evaluation mode they do not interact.
        (gradient,) = torch.autograd.grad(network.score(movable).sum(), movable)
    return images + steps * torch.where(gradient >= 0, 1.0, -1.0)


def choose_magnitude(network: DividendDivisor, problem: Problem, rows: Rows, magnitudes: Sequence[float]) -> float:
    """The ε with the largest mean score after the step over these rows; the first where several are equal."""
    totals = torch.zeros(len(magnitudes), dtype=torch.float64)
    for images in (part for batch, _, _ in problem.plain_batches(rows) for part in batch.split(GRADIENTS_AT_ONCE)):
        for place, magnitude in enumerate(magnitudes):
            with torch.no_grad():
                score = network.score(moved(network, images, _steps(problem, magnitude)))
            totals[place] += score.double().sum().cpu()
    if not bool(torch.isfinite(totals).all()):
        raise SettingError("training of G-ODIN diverged: its scores are not numbers; take a smaller --learning-rate")
    return magnitudes[int(totals.argmax())]


def _steps(problem: Problem, magnitude: float) -> Tensor:
    return magnitude / torch.tensor(problem.spread, device=problem.device).view(1, -1, 1, 1)


def godin(problem: Problem, outliers: Tensor | None, tell: Say, *, magnitudes: Sequence[float] = MAGNITUDES) -> Scorer:
    """Train the split head, choose ε on the hold-out; the score is minus the largest dividend after the step."""
    del outliers
    if not magnitudes or min(magnitudes) < 0:
        raise SettingError(f"magnitudes = {list(magnitudes)} of G-ODIN must be one or more numbers of at least 0")
    training, held_out = (np.array(part.indices) for part in problem.split())
    network, batches = new_network(problem), problem.batches(training)
    optimizer = problem.optimizer(network, problem.recipe.epochs * len(batches))
    without_decay(optimizer[0], [network.centroids])

    def on_epoch(epoch: int) -> None:
        if not bool(torch.isfinite(network.centroids).all()):
            raise SettingError(f"training of G-ODIN diverged in epoch {epoch}; take a smaller --learning-rate")
        tell(f"godin: epoch {epoch} of {problem.recipe.epochs}")

    problem.fit(network, batches, optimizer=optimizer, on_epoch=on_epoch)
    network.eval().requires_grad_(False)
    magnitude = choose_magnitude(network, problem, held_out, sorted(magnitudes))
    steps = _steps(problem, magnitude)

    def score(images: Tensor) -> Tensor:
        network.eval()
        with torch.no_grad():
            return -network.score(moved(network, images, steps))

    details = {"magnitude": magnitude, "magnitudes": sorted(magnitudes), "held_out": len(held_out)}
    return Scorer(score, network, trainings=len(training) / len(problem), details=details)


def godin_still(problem: Problem, outliers: Tensor | None, tell: Say) -> Scorer:
    """The same without a step."""
    return godin(problem, outliers, tell, magnitudes=(0.0,))


def godin_small(problem: Problem, outliers: Tensor | None, tell: Say) -> Scorer:
    """The same with OpenOOD's step."""
    return godin(problem, outliers, tell, magnitudes=(0.0025,))
