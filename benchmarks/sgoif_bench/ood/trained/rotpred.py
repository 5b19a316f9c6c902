"""RotPred: learn the class of an image and how far it was turned; who can tell neither does not belong.

Hendrycks, Mazeika, Kadavath, Song: Using Self-Supervised Learning Can Improve Model Robustness and Uncertainty.
NeurIPS 2019.

A body has two linear heads, one for the K classes (probabilities p) and one for the four quarter turns (q). Of every
batch all turns are taken, and

    L = CE(p(x), y) + mean over s = 0 … 3 of CE(q(turn_s x), s)

    score = mean over s of −log q_s(turn_s x)  −  KL(u ‖ p(x)),    u the uniform distribution over the classes

as OpenOOD v1.5 trains and scores it, after the authors' code for many classes: the turns are asked of the test image
too, and an input whose classes are all alike likely counts against it. (There the logarithms are to the base 2, which
gives the same order.) Both parts weigh the same; there is nothing to set.

With PixMix the images are mixed before they are turned, which is where OpenOOD's preprocessor of that name would stand
(`trained.pixmix`, with its numbers).

Cost: four trainings, as every image is seen in four turns. Evaluation takes four forward passes.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood.trained.common import headless
from sgoif_bench.ood.trained.method import Scorer
from sgoif_bench.ood.trained.pixmix import PixMix, mixed_inputs, mixing_of
from sgoif_bench.ood.trained.views import TURNS, fresh, quarter_turns, side_of

_HEADS = 341


class Turned(nn.Module):
    """From images to the class logits of each as it is and, behind them, the four turn logits of each of its turns.

    [n, K + 16], first those of the image as it is, last those of the image turned three times.
    """

    def __init__(self, body: nn.Module, label: nn.Linear, turn: nn.Linear) -> None:
        super().__init__()
        self.body, self.label, self.turn = body, label, turn

    def forward(self, images: Tensor) -> Tensor:
        last = images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        features = self.body(quarter_turns(images).contiguous(memory_format=layout))
        turns = self.turn(features).unflatten(0, (TURNS, len(images))).transpose(0, 1)
        return torch.cat((self.label(features[: len(images)]), turns.flatten(1)), dim=1)


def turn_losses(turns: Tensor) -> Tensor:
    """Cross entropy of each of the four turns of an image, [n, 4], from turn logits [n, 16]."""
    logits: Tensor = turns.unflatten(1, (TURNS, TURNS))
    return -logits.log_softmax(dim=2).diagonal(dim1=1, dim2=2)


def rotpred_loss(answers: Tensor, labels: Tensor) -> Tensor:
    """L of the module docstring."""
    classes = answers.shape[1] - TURNS**2
    return F.cross_entropy(answers[:, :classes], labels) + turn_losses(answers[:, classes:]).mean()


def rotpred_score(answers: Tensor) -> Tensor:
    """How poorly the turns are told, less how far the classes are from being alike, [n]."""
    classes = answers.shape[1] - TURNS**2
    apart = -answers[:, :classes].log_softmax(dim=1).mean(dim=1) - math.log(classes)
    return turn_losses(answers[:, classes:]).mean(dim=1) - apart


def rotpred(problem: Problem, outliers: Tensor | None, tell: Say, *, mixing: PixMix | None = None) -> Scorer:
    """Train both heads, on mixed images where something is given to mix them; the score is that of the docstring."""
    del outliers
    side_of(problem)
    name = "rotpred" if mixing is None else "rotpred-pixmix"
    body, width = headless(problem.new_model())
    heads = fresh(problem, _HEADS, lambda: nn.ModuleList((nn.Linear(width, problem.classes), nn.Linear(width, TURNS))))
    label, turn = heads
    assert isinstance(label, nn.Linear)
    assert isinstance(turn, nn.Linear)
    model = Turned(body, label, turn)
    during: AbstractContextManager[None] = nullcontext() if mixing is None else mixed_inputs(model, mixing)
    with during:
        problem.fit(
            model,
            problem.batches(),
            loss=lambda answers, labels, index: rotpred_loss(answers, labels),
            on_epoch=lambda epoch: tell(f"{name}: epoch {epoch} of {problem.recipe.epochs}"),
        )

    @torch.no_grad()
    def score(images: Tensor) -> Tensor:
        return rotpred_score(model.eval()(images).float())

    return Scorer(score, nn.Sequential(body, label).eval(), trainings=float(TURNS))


def rotpred_pixmix(problem: Problem, outliers: Tensor | None, tell: Say) -> Scorer:
    """The same on images mixed by PixMix."""
    mixing, details = mixing_of(problem, tell)
    return replace(rotpred(problem, outliers, tell, mixing=mixing), details=details)
