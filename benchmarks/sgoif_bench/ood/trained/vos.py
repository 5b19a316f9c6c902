"""VOS: virtual outliers, drawn from the edge of every class in feature space, teach the network where to be unsure.

Du, Wang, Cai, Li: VOS: Learning What You Don't Know by Virtual Outlier Synthesis. ICLR 2022. This is the authors'
procedure for classification.

A queue per class k holds the latest 1000 features φ of that class. From all queues come Gaussians with one covariance,

    μ_k = mean of queue k,    Σ = mean over all queues of (φ − μ_k)(φ − μ_k)ᵀ + 10⁻⁴ I

In every step each class draws 10 000 features from N(μ_k, Σ), of which the least likely one is kept: v. The network's
head gives logits z for v as for the features of the batch, and

    E(z) = log Σ_k max(w_k, 0) exp z_k                     with a learned w, at first uniform in [0, 1]
    L = CE(z, y) + 0.1 · CE(a E + b, [in the batch, virtual])      with a learned a, b ∈ R²

The second term starts after 40% of the epochs (40 of 100) and once every queue is full. A draw is μ_k + C ε with
Σ = C Cᵀ and its log-density −½‖ε‖² + const, so the least likely draw is the one with the longest ε: only that one is
ever transformed, which is exact.

Score. −log Σ_k exp z_k, the energy without w, as in the authors' test for classification. Cost: one training.

A queue holds fewer features than 1000 only where the smallest class would not fill it before the second term starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import scored
from sgoif_bench.ood.trained.method import Scorer

# The authors' values for CIFAR-10 and CIFAR-100.
WEIGHT = 0.1
START_SHARE = 40 / 100
QUEUE = 1000
DRAWS = 10_000
KEPT = 1
RIDGE = 1e-4

CLASSES_AT_ONCE = 64
"""Classes whose queues are held in double precision at the same time."""
_DRAW_STREAM, _INITIAL_STREAM = 411, 412


class Queues:
    """The latest features of every class."""

    def __init__(self, classes: int, length: int, width: int, device: torch.device) -> None:
        self.features = torch.zeros(classes, length, width, device=device)
        self._pushed = torch.zeros(classes, dtype=torch.long, device=device)

    @property
    def full(self) -> bool:
        """Whether every class has filled its queue."""
        return bool((self._pushed >= self.features.shape[1]).all())

    def push(self, features: Tensor, labels: Tensor) -> None:
        """Take in a batch; of each class the oldest features give way."""
        classes, length, _ = self.features.shape
        member = F.one_hot(labels, classes)
        counts = member.sum(dim=0)
        rank = (member.cumsum(dim=0) * member).sum(dim=1) - 1
        place = (self._pushed[labels] + rank) % length
        # Of a class with more features than the queue is long only the latest stay, so that no place is written twice.
        latest = counts[labels] - rank <= length
        self.features[labels[latest], place[latest]] = features[latest].to(self.features)
        self._pushed += counts

    def gaussians(self) -> tuple[Tensor, Tensor]:
        """The means [classes, D] and the factor C [D, D] of the common covariance."""
        classes, length, width = self.features.shape
        means = self.features.mean(dim=1)
        covariance = RIDGE * torch.eye(width, dtype=torch.float64, device=means.device)
        for queues, centres in zip(self.features.split(CLASSES_AT_ONCE), means.split(CLASSES_AT_ONCE), strict=True):
            centred = (queues - centres.unsqueeze(1)).flatten(0, 1).double()
            covariance += centred.T @ centred / (classes * length)
        return means, torch.linalg.cholesky(covariance).to(means)


def virtual_outliers(means: Tensor, factor: Tensor, draws: int, kept: int, generator: torch.Generator) -> Tensor:
    """The `kept` least likely of `draws` features of every class, [classes · kept, D]."""
    found = []
    for mean in means:
        noise = torch.randn(draws, len(mean), generator=generator, device=means.device, dtype=means.dtype)
        longest = noise.square().sum(dim=1).topk(kept).indices
        found.append(mean + noise[longest] @ factor.T)
    return torch.cat(found)


class Uncertainty(nn.Module):
    """The learned weights of the energy and the logistic regression on it."""

    def __init__(self, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        here = generator.device
        self.weight = nn.Parameter(torch.rand(classes, generator=generator, device=here))
        # The default of a linear layer with one input: uniform in [−1, 1].
        self.slope = nn.Parameter(2 * torch.rand(2, generator=generator, device=here) - 1)
        self.offset = nn.Parameter(2 * torch.rand(2, generator=generator, device=here) - 1)

    def energy(self, logits: Tensor) -> Tensor:
        """E = log Σ_k max(w_k, 0) exp z_k, [n]."""
        top = logits.detach().max(dim=1, keepdim=True).values
        total = (self.weight.relu() * (logits - top).exp()).sum(dim=1)
        return top.squeeze(1) + total.clamp_min(1e-12).log()

    def loss(self, logits: Tensor, virtual: Tensor) -> Tensor:
        """Cross entropy of telling the batch (class 1) from virtual outliers (class 0) by their energy."""
        energies = torch.cat([self.energy(logits), self.energy(virtual)])
        real = torch.arange(len(energies), device=logits.device) < len(logits)
        return F.cross_entropy(energies.unsqueeze(1) * self.slope + self.offset, real.long())


class Synthesis:
    """Fills the queues in every forward pass of training and, once on, sends virtual outliers through the head."""

    def __init__(self, problem: Problem, model: nn.Module, length: int, draws: int) -> None:
        self._head = last_linear(model)
        self._labels = torch.from_numpy(problem.labels)
        self._draws = draws
        self._generator = torch_stream(problem, _DRAW_STREAM)
        self.queues = Queues(problem.classes, length, self._head.in_features, problem.device)
        self.on = False

    @contextmanager
    def around(self, index: Tensor) -> Iterator[None]:
        """One step on these examples; the network's logits get a row for every virtual outlier at their end."""
        labels = self._labels[index].to(self.queues.features.device)

        def join(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
            (features,) = inputs
            self.queues.push(features.detach(), labels)
            if not (self.on and self.queues.full):
                return None
            with torch.autocast(features.device.type, enabled=False):
                virtual = virtual_outliers(*self.queues.gaussians(), self._draws, KEPT, self._generator)
            return (torch.cat([features, virtual.to(features.dtype)]),)

        handle = self._head.register_forward_pre_hook(join)
        try:
            yield
        finally:
            handle.remove()


def queue_length(problem: Problem, warm_up: int) -> int:
    """At most 1000, and no more than the smallest class has shown after so many epochs."""
    smallest = int(np.bincount(problem.labels, minlength=problem.classes).min())
    if not smallest:
        raise SettingError(f"VOS fits a Gaussian to each of {problem.classes} classes, and one has no examples")
    return min(QUEUE, smallest * max(1, warm_up))


def vos(
    problem: Problem,
    outliers: Tensor | None,
    tell: Say,
    *,
    weight: float = WEIGHT,
    start_share: float = START_SHARE,
    draws: int = DRAWS,
) -> Scorer:
    """Train with virtual outliers; the score is the energy."""
    del outliers
    if not weight >= 0:
        raise SettingError(f"weight = {weight} of the uncertainty loss of VOS must be at least 0")
    if not 0 <= start_share < 1:
        raise SettingError(f"start_share = {start_share} of VOS must lie in [0, 1)")
    if draws < KEPT:
        raise SettingError(f"draws = {draws} of VOS must be at least {KEPT}")
    epochs = problem.recipe.epochs
    warm_up = round(start_share * epochs)
    model, batches = problem.new_model(), problem.batches()
    uncertainty = Uncertainty(problem.classes, torch_stream(problem, _INITIAL_STREAM))
    synthesis = Synthesis(problem, model, queue_length(problem, warm_up), draws)
    synthesis.on = warm_up == 0
    steps_with_outliers = 0

    def loss(logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        nonlocal steps_with_outliers
        real, virtual = logits[: len(labels)], logits[len(labels) :]
        classification = F.cross_entropy(real, labels)
        if not len(virtual):
            return classification
        steps_with_outliers += 1
        return classification + weight * uncertainty.loss(real, virtual)

    def on_epoch(epoch: int) -> None:
        synthesis.on = epoch >= warm_up
        tell(f"vos: epoch {epoch} of {epochs}")

    problem.fit(
        model,
        batches,
        optimizer=problem.optimizer(nn.ModuleList([model, uncertainty]), epochs * len(batches)),
        loss=loss,
        watching=synthesis.around,
        on_epoch=on_epoch,
    )
    details = {
        "weight": weight,
        "start_epoch": warm_up,
        "queue": synthesis.queues.features.shape[1],
        "draws": draws,
        "steps_with_outliers": steps_with_outliers,
    }
    return Scorer(scored(model, lambda logits: -logits.logsumexp(dim=1)), model, details=details)
