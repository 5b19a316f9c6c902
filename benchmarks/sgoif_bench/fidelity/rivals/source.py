"""SOURCE: influence of an example on the whole run, unrolled in a few segments in which curvature stands still.

Juhan Bae, Wu Lin, Jonathan Lorraine, Roger Grosse: "Training Data Attribution via Approximate Unrolling", NeurIPS 2024.
The run is cut into L segments. In segment l of K_l steps with mean learning rate η_l the Hessian and the gradients of
examples are taken to be their means H_l and g_l(i) over the checkpoints of the segment. A small weight on the loss of
example i then moves the last weights along −Σ_l (Π_{m=L..l+1} S_m) r_l(i), up to 1/N,

    S_l = exp(−η_l K_l H_l) ,        r_l(i) = F_l g_l(i) ,        F_l = (1 − exp(−η_l K_l H_l)) H_l⁻¹ ,

and the score is s(q, i) = Σ_l (F_l S_{l+1} … S_L g_q)ᵀ g_l(i) with g_q = ∇(−f(q)) at the last weights. Both functions
act on the eigenvalues σ of H_l alone; the second tends to η_l K_l where σ → 0, so that nothing has to be damped.

H_l is EK-FAC's, as theirs: the factors of K-FAC are averaged over the checkpoints of a segment and decomposed, and the
eigenvalues are means, over checkpoints and examples with labels drawn from the model, of squared gradients in these
bases. Three segments with two checkpoints each, evenly spread, as in their experiments. η_l K_l is the sum of the
rates of the segment over 1 − β, which is what momentum β comes to in the long run (their appendix); weight decay, of
which their formula says nothing, is left out. The run is trained once more, with these checkpoints kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sgoif.core.parameter_layout import Layout
from sgoif.curvature.base import Factors
from sgoif.curvature.kfac import DELTA, INPUTS, SQUARE, eigh, statistics
from sgoif_bench.fidelity.answer import Answer, Cost, State, Trained
from sgoif_bench.fidelity.online import cross_entropy
from sgoif_bench.fidelity.peers.common import label_changes
from sgoif_bench.fidelity.rivals.whole import WholeWatch
from sgoif_bench.labels.problem import Problem

SEGMENTS, CHECKPOINTS = 3, 2
"""Segments, and checkpoints in each."""
BATCH = 256

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Segment:
    """A part of the run: its checkpoints, and η K."""

    states: tuple[State, ...]
    span: float

    def backward(self, values: Tensor) -> Tensor:
        """exp(−ηKσ)."""
        return torch.exp(-self.span * values)

    def inside(self, values: Tensor) -> Tensor:
        """(1 − exp(−ηKσ)) / σ, which is ηK at zero."""
        tiny = values * self.span < torch.finfo(values.dtype).eps
        safe = torch.where(tiny, torch.ones_like(values), values)
        return torch.where(tiny, torch.full_like(values, self.span), -torch.expm1(-self.span * safe) / safe)


@dataclass(frozen=True)
class Basis:
    """Eigenvalues of one layer's block, [rows, cols] in float64, and its eigenbases; none where it is diagonal."""

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def into(self, x: Tensor) -> Tensor:
        """Blocks [K, rows, cols] seen in the eigenbases."""
        return x if self.left is None or self.right is None else self.left.T @ x @ self.right

    def back(self, x: Tensor) -> Tensor:
        """The way back."""
        return x if self.left is None or self.right is None else self.left @ x @ self.right.T


def source(trained: Trained) -> Answer:
    """Train once more, keep checkpoints, and score; what that takes beyond the plain run is the cost."""
    study = trained.study
    cost = Cost(study.problem.device)
    with cost.counted():
        model, segments = train_in_segments(study.problem)
        watch = WholeWatch(study, model)
        x, y = study.train_tensors()
        directions = walk_back(watch, segments, x)
        scores = scored(watch, segments, directions, x, y)
    found = scores.cpu().numpy()
    changes = None
    if trained.relabelled is not None:
        new = scored(watch, segments, directions, *trained.relabelled.tensors(study))
        changes = label_changes(found, new.cpu().numpy(), trained.relabelled)
    watch.close()
    details = {"weights": watch.layout.size}
    return Answer(found, max(0.0, cost.seconds - trained.seconds), cost.memory, relabelled=changes, details=details)


def train_in_segments(problem: Problem) -> tuple[nn.Module, list[Segment]]:
    """The trained network, and its run in segments; a run of few steps has fewer checkpoints."""
    model, batches = problem.new_model(), problem.batches()
    total = problem.recipe.epochs * len(batches)
    optimizer, schedule = problem.optimizer(model, total)
    count = SEGMENTS * CHECKPOINTS
    wanted = [max(1, round((place + 1) * total / count)) for place in range(count)]
    rates: list[float] = []
    states: dict[int, State] = {}

    def on_step(*_: Tensor) -> None:
        # The schedule has moved on to the rate of the next step.
        rates.append(used[0])
        used[0] = float(optimizer.param_groups[0]["lr"])
        if len(rates) in wanted:
            states[len(rates)] = {name: value.detach().clone() for name, value in model.state_dict().items()}

    used = [float(optimizer.param_groups[0]["lr"])]
    problem.fit(model, batches, optimizer=(optimizer, schedule), on_step=on_step)
    momentum = float(optimizer.param_groups[0]["momentum"])
    segments, start = [], 0
    for place in range(SEGMENTS):
        own = wanted[place * CHECKPOINTS : (place + 1) * CHECKPOINTS]
        span = sum(rates[start : own[-1]]) / (1 - momentum)
        segments.append(Segment(tuple(states[step] for step in own), span))
        start = own[-1]
    return model.eval(), segments


def walk_back(watch: WholeWatch, segments: Sequence[Segment], x: Tensor) -> list[Tensor]:
    """F_l S_{l+1} … S_L g_q of every segment, [Q, P] each; the network is left at its last weights."""
    last = {name: value.detach().clone() for name, value in watch.model.state_dict().items()}
    arrived = watch.query_gradients()
    found: list[Tensor] = []
    for segment in reversed(segments):
        bases = decomposed(watch, segment, x)
        found.append(applied(watch.layout, bases, arrived, segment.inside))
        arrived = applied(watch.layout, bases, arrived, segment.backward)
    watch.model.load_state_dict(last)
    return found[::-1]


def scored(
    watch: WholeWatch, segments: Sequence[Segment], directions: Sequence[Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """Σ_l of the directions times the mean gradients of these examples, [Q, N]."""
    total = torch.zeros(len(directions[0]), len(x), device=x.device)
    last = {name: value.detach().clone() for name, value in watch.model.state_dict().items()}
    for segment, direction in zip(segments, directions, strict=True):
        for state in segment.states:
            watch.model.load_state_dict(state)
            for start in range(0, len(x), BATCH):
                rows = slice(start, start + BATCH)
                factors = watch.looked(x[rows], partial(cross_entropy, labels=y[rows]))
                total[:, rows] += watch.respond(direction, factors) / len(segment.states)
    watch.model.load_state_dict(last)
    return total


@torch.no_grad()
def decomposed(watch: WholeWatch, segment: Segment, x: Tensor) -> list[Basis]:
    """EK-FAC of a segment, layer by layer: two passes over the examples at every checkpoint."""
    weight = 1 / len(segment.states)
    averages: list[dict[str, Tensor]] = [{} for _ in watch.layers]
    for factors, share in sampled(watch, segment, x):
        for average, factor in zip(averages, factors, strict=True):
            for key, value in statistics(factor).items():
                average[key] = average.get(key, torch.zeros_like(value)) + share * weight * value
    bases = []
    for block in averages:
        if SQUARE in block:
            bases.append(Basis(block[SQUARE].double()))
        else:
            left, right = eigh(block[DELTA])[1], eigh(block[INPUTS])[1]
            bases.append(Basis(torch.zeros(len(left), len(right), dtype=torch.float64, device=x.device), left, right))
    for factors, share in sampled(watch, segment, x):
        for basis, factor in zip(bases, factors, strict=True):
            if basis.left is not None:
                basis.values.add_(basis.into(factor.gradient()).square().mean(0).double(), alpha=share * weight)
    return bases


def sampled(watch: WholeWatch, segment: Segment, x: Tensor) -> Iterator[tuple[list[Factors], float]]:
    """Factors of some examples at a time with labels drawn from the model, and their share of all examples."""
    for state in segment.states:
        watch.model.load_state_dict(state)
        for some in x.split(BATCH):
            yield watch.drawn(some), len(some) / len(x)


@torch.no_grad()
def applied(layout: Layout, bases: Sequence[Basis], vectors: Tensor, function: Function) -> Tensor:
    """A function of H applied to vectors [K, P]."""
    parts = [
        basis.back(function(basis.values).to(x) * basis.into(x))
        for x, basis in zip(layout.split(vectors), bases, strict=True)
    ]
    return layout.join(parts)
