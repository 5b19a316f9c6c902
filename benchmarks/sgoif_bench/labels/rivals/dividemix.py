"""DivideMix: two networks divide the data by their losses for one another, and mix what is left of the labels.

Junnan Li, Richard Socher, Steven Hoi: DivideMix: Learning with Noisy Labels as Semi-supervised Learning. ICLR 2020.

After a warm-up on all given labels, in every epoch and for each of the two networks:

1. Divide. The losses of all examples in evaluation mode, brought to [0, 1], are fitted by a mixture of two Gaussians;
   w_i is the posterior of the one with the smaller mean. The *other* network trains with w: labelled are the examples
   with w > ½, the labels of the rest are dropped.
2. Guess. With two random views of each image and p̄ the mean answer to them, the target of a labelled example is
   w y + (1 − w) p̄ (own answers), of an unlabelled one p̄ over both networks; both sharpened, p^(1/T) normalised, T = ½.
3. Mix. λ ~ Beta(4, 4), λ ← max(λ, 1 − λ); every view and target is mixed with that of a random other one, and

       L = CE(labelled) + λ_u ‖p − q‖² (unlabelled, mean over classes) + Σ_k π_k log(π_k / p̂_k)

   with λ_u rising to 25 over 16 epochs, π uniform and p̂ the batch's mean answer.

Numbers are those of the authors' code for CIFAR-10, of 300 epochs: warm-up of 10, here at most half of the epochs. They
choose λ_u by the noise rate (0 to 150); 25 is their default. Where wrong labels are known to depend on the class
(`problem.known`) the warm-up punishes sureness by its negative entropy, as theirs. The recipe's learning rate and
batches take the place of 0.02 and 64; the schedule runs by epochs, since divided ones have fewer steps.

Score. The paper's detector is the mixture: suspicion is 1 − w, mean of the two networks and the last quarter of the
epochs, as log odds before the mean (near 0 and 1 a posterior has no digits left to rank by). Flagged is mean w ≤ ½.
Cost: examples seen in training over those of a plain one (four views of a labelled and an unlabelled example a step).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.batches import Batches, crop_and_flip
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Rows
from sgoif_bench.labels.rivals.common import MeanPerExample, example_losses, is_late, numpy_stream, torch_stream

WARM_UP_EPOCHS = 10
RAMP_EPOCHS = 16
UNLABELLED_WEIGHT = 25.0
SHARPENING = 0.5
"""T."""
BETA = 4.0
LEAST_VARIANCE = 5e-4
MIXTURE_STEPS = 10
MIXTURE_TOLERANCE = 1e-2
"""What the mean log-likelihood must gain in a step of the mixture's fit."""
_NETWORKS = (0, 1)
_MIX_STREAM, _VIEWS_STREAM = 601, 602


def log_odds_of_clean(losses: Tensor) -> Tensor:
    """log w / (1 − w), float64 [N], of a mixture of two Gaussians fitted to the losses brought to [0, 1]."""
    values = losses.double()
    values = (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)
    # Begun, as by two-means in one dimension, from the halves below and above the middle of the two means.
    middle = values.mean()
    for _ in range(MIXTURE_STEPS):
        upper = values > middle
        if not upper.any() or upper.all():
            return torch.zeros_like(values)
        middle = (values[upper].mean() + values[~upper].mean()) / 2
    share = torch.stack([~upper, upper]).double()
    before = -math.inf
    for _ in range(MIXTURE_STEPS):
        size = share.sum(dim=1).clamp_min(1e-12)
        mean = (share @ values) / size
        variance = (share * (values - mean[:, None]).square()).sum(dim=1) / size + LEAST_VARIANCE
        weighed = _log_density(values, size / len(values), mean, variance)
        likelihood = float(weighed.logsumexp(dim=0).mean())
        if likelihood - before < MIXTURE_TOLERANCE:
            break
        share, before = weighed.softmax(dim=0), likelihood
    clean = int(mean.argmin())
    return weighed[clean] - weighed[1 - clean]


def _log_density(values: Tensor, weight: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Logarithms of the two weighted densities, [2, N]."""
    squared = (values - mean[:, None]).square() / variance[:, None]
    return weight.log()[:, None] - 0.5 * (squared + (2 * math.pi * variance).log()[:, None])


def sharpened(probabilities: Tensor) -> Tensor:
    """p^(1/T), normalised."""
    raised = probabilities ** (1 / SHARPENING)
    return raised / raised.sum(dim=1, keepdim=True)


def mixed_loss(logits: Tensor, targets: Tensor, labelled: int, weight: float) -> Tensor:
    """L of a mixed batch, whose first `labelled` rows are of labelled examples."""
    probabilities = logits.softmax(dim=1)
    by_label = -(logits[:labelled].log_softmax(dim=1) * targets[:labelled]).sum(dim=1).mean()
    mean_answer = probabilities.mean(dim=0)
    even = 1 / logits.shape[1]
    penalty = (even * (even / mean_answer).log()).sum()
    if labelled == len(logits):
        return by_label + penalty
    return by_label + weight * (probabilities - targets)[labelled:].square().mean() + penalty


class Views(NamedTuple):
    """Two random views of some images, [n, C, H, W] each."""

    first: Tensor
    second: Tensor


class _Study:
    """The two networks with all that their training needs."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.models = [problem.new_model(number) for number in _NETWORKS]
        self.epochs, self.steps = problem.recipe.epochs, len(problem.batches())
        self.optimizers = [problem.optimizer(model, self.epochs * self.steps) for model in self.models]
        self.everything = [problem.batches(number=number) for number in _NETWORKS]
        self.mix = numpy_stream(problem, _MIX_STREAM)
        self.generator = torch_stream(problem, _VIEWS_STREAM)
        self.flips = problem.known is not None and problem.known.flips
        self.seen = 0

    def logits(self, model: nn.Module, x: Tensor) -> Tensor:
        with self.problem.autocast():
            found: Tensor = model(x)
        return found.float()

    def views(self, x: Tensor) -> Views:
        recipe = self.problem.recipe
        if not recipe.augment:
            return Views(x, x)
        first, second = (crop_and_flip(x, self.generator, recipe.padding, recipe.mirror) for _ in range(2))
        return Views(first, second)

    def _step(self, number: int, loss: Tensor, epoch: int, step: int, count: int) -> None:
        loss.backward()
        optimizer, schedule = self.optimizers[number]
        optimizer.step()
        optimizer.zero_grad()
        # As far along as a plain training would be after this share of the epoch.
        while schedule.last_epoch < ((epoch - 1) + (step + 1) / count) * self.steps:
            schedule.step()

    def warm_up(self, number: int, epoch: int) -> None:
        model = self.models[number].train()
        for step, (x, y, _) in enumerate(self.everything[number]):
            logits = self.logits(model, x)
            loss = F.cross_entropy(logits, y)
            if self.flips:
                loss = loss + (logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1).mean()
            self._step(number, loss, epoch, step, self.steps)
            self.seen += len(y)

    def _plain(self, rows: Rows, number: int) -> Batches:
        batches = self.problem.batches(rows, number=number)
        batches.augment = False  # `views` changes images, each twice
        return batches

    def train(self, number: int, epoch: int, clean: Tensor) -> None:
        """An epoch of one network on what the other divided; `clean` is w [N] of that other."""
        is_labelled = (clean > 0.5).cpu().numpy()
        if not is_labelled.any():
            self.warm_up(number, epoch)
            return
        model, peer = self.models[number].train(), self.models[1 - number].eval()
        stream = 2 * epoch + number  # another order of examples in every epoch
        labelled = self._plain(np.flatnonzero(is_labelled), 10 + stream)
        rest = np.flatnonzero(~is_labelled)
        others = endless(self._plain(rest, 10_000 + stream)) if len(rest) else None
        for step, (x, y, index) in enumerate(labelled):
            mine = self.views(x)
            weight = clean[index.to(clean.device)].float()[:, None]
            with torch.no_grad():
                own = torch.stack([self.logits(model, view).softmax(dim=1) for view in mine]).mean(dim=0)
                given = F.one_hot(y, self.problem.classes).to(own)
                targets = [sharpened(weight * given + (1 - weight) * own)] * 2
            images = [*mine]
            if others is not None:
                theirs = self.views(next(others)[0][: len(y)])
                with torch.no_grad():
                    answers = [self.logits(each, view).softmax(dim=1) for each in (model, peer) for view in theirs]
                targets += [sharpened(torch.stack(answers).mean(dim=0))] * 2
                images += [*theirs]
            inputs, wanted = torch.cat(images), torch.cat(targets)
            share = float(self.mix.beta(BETA, BETA))
            share = max(share, 1 - share)
            partner = torch.from_numpy(self.mix.permutation(len(inputs))).to(inputs.device)
            logits = self.logits(model, share * inputs + (1 - share) * inputs[partner])
            wanted = share * wanted + (1 - share) * wanted[partner]
            weighed = UNLABELLED_WEIGHT * ramp(epoch - 1 + step / len(labelled), warm_up_epochs(self.epochs))
            self._step(number, mixed_loss(logits, wanted, 2 * len(y), weighed), epoch, step, len(labelled))
            self.seen += len(inputs)


def endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Epoch after epoch of the same examples."""
    while True:
        yield from batches


def warm_up_epochs(epochs: int) -> int:
    """How many epochs of so many are warm-up."""
    return max(1, min(WARM_UP_EPOCHS, epochs // 2))


def ramp(completed: float, warm_up: int) -> float:
    """What share of λ_u counts after so many epochs."""
    return min(max((completed - warm_up) / RAMP_EPOCHS, 0.0), 1.0)


def dividemix(problem: Problem, tell: Say) -> Outcome:
    """Train two networks that divide the data for each other; suspicion is the late posterior of the larger losses."""
    study = _Study(problem)
    odds, clean_share = (MeanPerExample(len(problem), problem.device) for _ in range(2))
    everything = torch.arange(len(problem), device=problem.device)
    for epoch in range(1, study.epochs + 1):
        if epoch <= warm_up_epochs(study.epochs):
            for number in _NETWORKS:
                study.warm_up(number, epoch)
        else:
            clean = [log_odds_of_clean(example_losses(problem, model)).sigmoid() for model in study.models]
            for number in _NETWORKS:
                study.train(number, epoch, clean[1 - number])
        if is_late(epoch, study.epochs):
            for model in study.models:
                found = log_odds_of_clean(example_losses(problem, model))
                odds.add(everything, -found)
                clean_share.add(everything, found.sigmoid())
        tell(f"dividemix: epoch {epoch} of {study.epochs}")
    details = {"warm_up_epochs": warm_up_epochs(study.epochs), "unlabelled_weight": UNLABELLED_WEIGHT}
    return Outcome(
        odds.result(),
        flagged=clean_share.result() <= 0.5,
        trainings=study.seen / (study.epochs * len(problem)),
        details=details,
    )
