"""TracIn: how much the loss of one example moved whenever another one was trained on.

Garima Pruthi, Frederick Liu, Satyen Kale, Mukund Sundararajan: "Estimating Training Data Influence by Tracing Gradient
Descent", NeurIPS 2020. From checkpoints w_1 … w_k (their TracInCP), with η_t the step size between checkpoint t − 1
and t,

    TracIn(z, z') = Σ_t η_t ∇ℓ(w_t, z) · ∇ℓ(w_t, z')

`tracin_self`      suspicion = TracIn(z, z) = Σ_t η_t ‖∇ℓ(w_t, z)‖², the authors' score for wrong labels, which are
                   strong proponents of themselves. Trains on everything.
`tracin_anchors`   suspicion = −mean_v TracIn(z, v) over held-out anchors v: who opposes the anchors is harmful. Trains
                   on what is not held out; an anchor is scored against the other anchors, and by its place among
                   them.

`tracin_voices`    the same with one voice for each anchor, as `fastif` gives it: the mean over anchors of
                   −TracIn(z, v) / ‖TracIn(·, v)‖, the norm being over all z but v itself. An anchor whose own label is
                   wrong has a far larger gradient than the others and would else shout them all down.

Gradients are those of the last linear layer, in closed form; the authors take last layers too where the whole network
is too large. Checkpoints are epochs at even distances. Under a schedule, η_t is the mean learning rate since the
checkpoint before. There is no threshold of its own.

The anchors' labels are as noisy as the others. Near the end of training their mean gradient is then close to zero and
made of the wrong ones, so that little is to be expected of `tracin_anchors` unless somebody has checked the anchors.
(`fastif_sum` is FastIF without voices: the two are compared with `fastif` and `tracin_voices`, not crosswise.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import (
    HeadGradients,
    head_gradients,
    on_one_scale,
    to_scores,
    train,
)

CHECKPOINTS = 8

Measure = Callable[[HeadGradients], Tensor]
"""From the gradients of all examples at one checkpoint to what each adds to its score."""


class Trace:
    """Adds up Σ_t η_t measure(gradients at checkpoint t) while a model trains; `look` goes to the end of each epoch."""

    def __init__(self, problem: Problem, measure: Measure, trained_on: int) -> None:
        self._problem = problem
        self._measure = measure
        self._share = trained_on / len(problem)
        self._rates = checkpoint_rates(problem, -(-trained_on // problem.recipe.batch_size))
        self._total = torch.zeros(len(problem), dtype=torch.float64, device=problem.device)

    @classmethod
    def of_itself(cls, problem: Problem) -> Trace:
        """Self-influence, for a training on everything."""
        return cls(problem, HeadGradients.squared_norms, len(problem))

    def look(self, model: nn.Module, epoch: int) -> None:
        """Take in the model at the end of an epoch; only checkpoints cost anything."""
        if epoch in self._rates:
            added = self._measure(head_gradients(self._problem, model)).double()
            self._total.add_(added, alpha=self._rates[epoch])

    def outcome(self) -> Outcome:
        """The sum over the checkpoints seen."""
        return Outcome(to_scores(self._total), trainings=self._share, details={"checkpoints": self._rates})


def tracin_self(problem: Problem, tell: Say) -> Outcome:
    """Self-influence along the run."""
    trace = Trace.of_itself(problem)
    train(problem, tell, "TracIn", on_epoch=trace.look)
    return trace.outcome()


def tracin_anchors(problem: Problem, tell: Say) -> Outcome:
    """Minus the influence on the mean loss of the held-out anchors along the run."""
    training, held_out = problem.split()
    anchors = torch.tensor(held_out.indices, device=problem.device)
    trace = Trace(problem, lambda gradients: -on_anchors(gradients, anchors), len(training))
    train(problem, tell, "TracIn", batches=problem.batches(np.asarray(training.indices)), on_epoch=trace.look)
    found = trace.outcome()
    return replace(found, suspicion=on_one_scale(found.suspicion, np.asarray(held_out.indices)))


def tracin_voices(problem: Problem, tell: Say) -> Outcome:
    """Minus the influence on the losses of the held-out anchors along the run, each anchor having one voice."""
    training, held_out = problem.split()
    anchors = torch.tensor(held_out.indices, device=problem.device)
    harm = torch.zeros(len(problem), len(anchors), device=problem.device)
    rates = checkpoint_rates(problem, -(-len(training) // problem.recipe.batch_size))

    def look(model: nn.Module, epoch: int) -> None:
        if epoch in rates:
            harm.sub_(products(head_gradients(problem, model), anchors), alpha=rates[epoch])

    train(problem, tell, "TracIn", batches=problem.batches(np.asarray(training.indices)), on_epoch=look)
    suspicion = to_scores(mean_voice(harm, anchors))
    details = {"checkpoints": rates}
    return Outcome(
        on_one_scale(suspicion, np.asarray(held_out.indices)), trainings=len(training) / len(problem), details=details
    )


def products(gradients: HeadGradients, anchors: Tensor) -> Tensor:
    """⟨g_z, g_v⟩ of every example and every anchor, [N, A]: ⟨δ_z, δ_v⟩ ⟨ã_z, ã_v⟩."""
    held_out = gradients.take(anchors)
    return (gradients.delta @ held_out.delta.T).mul_(gradients.inputs @ held_out.inputs.T)


def mean_voice(harm: Tensor, anchors: Tensor) -> Tensor:
    """Mean over anchors of their harm [N, A] divided by its norm; what an anchor says of itself does not count."""
    others = torch.ones_like(harm)
    others[anchors, torch.arange(len(anchors), device=harm.device)] = 0
    said = harm * others
    voices = said / said.norm(dim=0).clamp_min(torch.finfo(said.dtype).tiny)
    mean: Tensor = voices.sum(dim=1) / others.sum(dim=1).clamp_min(1)
    return mean


def on_anchors(gradients: HeadGradients, anchors: Tensor) -> Tensor:
    """∇ℓ(z) · mean_v ∇ℓ(v) for every example; for an anchor the mean is over the others."""
    held_out = gradients.take(anchors)
    mean, count = held_out.mean(), len(anchors)
    products = gradients.dot(mean)
    if count > 1:
        products[anchors] = (count * held_out.dot(mean) - held_out.squared_norms()) / (count - 1)
    return products


def checkpoint_rates(problem: Problem, steps: int, count: int = CHECKPOINTS) -> dict[int, float]:
    """For each epoch with a checkpoint, the mean learning rate since the one before; `steps` of them in an epoch."""
    epochs = problem.recipe.epochs
    chosen = sorted({round(epochs * part / count) for part in range(1, count + 1)} - {0})
    optimizer, schedule = problem.optimizer(nn.Linear(1, 1), epochs * steps)
    rates = []
    for _ in range(epochs * steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
    starts = [0, *chosen[:-1]]
    return {end: float(np.mean(rates[start * steps : end * steps])) for start, end in zip(starts, chosen, strict=True)}
