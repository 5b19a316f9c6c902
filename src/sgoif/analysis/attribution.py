"""Reading a monitor: the table of scores, the error budget, the misranking estimate and the top-K certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.data import Part, isolated_random_state
from sgoif.core.losses import negative_margin
from sgoif.core.score_table import ScoreTable
from sgoif.curvature.base import full_precision
from sgoif.curvature.exact import ExactGGN
from sgoif.errors import IndexingError, SettingError, SgoifError
from sgoif.scoring.influence import held_out_scores, remember
from sgoif.scoring.ledger import Ledger
from sgoif.solvers.base import row_norm
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.stability.bounds import (
    TopKCertificate,
    averaging_width,
    conf_error,
    empirical_bernstein,
    misranking_bound,
    solver_error_bound,
    top_k_certificate,
)
from sgoif.tracking.capture import Capture
from sgoif.tracking.functional_model import watched_output
from sgoif.tracking.validation import Flags, check_target

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

Certificate = TopKCertificate
SHRINKAGE = 4.0
"""How many observations the common variance counts for in the variance of one example."""


@dataclass(frozen=True)
class ErrorBudget:
    """Mean absolute error of a raw influence by cause, measured on the anchors' own gradients.

    All parts are in units of `monitor.last.influence`, averaged over the anchors as queries g:

    - `solver`: |(ψ − ψ*)ᵀg|, ψ* being the exact solution under the same curvature surrogate;
    - `curvature`: |(ψ* − ψ_GGN)ᵀg|, ψ_GGN solved with the exact Gauss–Newton matrix of a batch of anchors (nan where
      the loss has no second derivative);
    - `projection`: |ψᵀg| times the share of gradient norm that projected layers do not see (0 without projection);
    - `linearisation`: gᵀH⁻¹g / 2n, the second-order term of adding one example to n;
    - `confidence`: Σ_v w_v (1 − c_v)|φ_vᵀg|, what the gate takes away;
    - `bound`: ‖r_ψ‖/λ_min · ‖g‖, which `solver` can never exceed.
    """

    solver: float
    curvature: float
    projection: float
    linearisation: float
    confidence: float
    bound: float

    @property
    def total(self) -> float:
        """Sum of the five parts: a bound on the mean error where each part is right."""
        return self.solver + self.curvature + self.projection + self.linearisation + self.confidence


def half_width(monitor: InfluenceMonitor, ledger: Ledger | None = None) -> Tensor:
    """Empirical-Bernstein half-width of every example's mean score, for decisions: it misses far less than it says.

    Twice the common deviation takes the place of the bound on a single deviation. The bound that can never be wrong,
    the squashing limit, would say nothing before an example has been seen a hundred times.
    """
    ledger = ledger or monitor.record()
    variance, common = _variances(monitor, ledger)
    return empirical_bernstein(variance, ledger.effective_count(), 2 * common.sqrt(), 1 - monitor.settings.level)


def interval_width(monitor: InfluenceMonitor, ledger: Ledger, ratio: float = 1.0) -> Tensor:
    """Half-width of the intervals of the table, made to cover at about their level; `bench.intervals` measures it.

    `ratio` is by how much observations of one example depend on each other (`halves`).
    """
    variance, common = _variances(monitor, ledger)
    count = ledger.effective_count()
    width = averaging_width(ratio * variance, count, 1 - monitor.settings.level)
    return torch.where(count < 2, 2 * (ratio * common).sqrt(), width)


def _variances(monitor: InfluenceMonitor, ledger: Ledger) -> tuple[Tensor, Tensor]:
    """Of every example, shrunk towards that of all since it rests on few observations; and that of all."""
    count, variance = ledger.effective_count(), ledger.variance()
    known = count > 1
    common = variance[known].mean() if bool(known.any()) else variance.new_tensor(monitor.squash.bound**2)
    own = torch.where(known, torch.nan_to_num(variance), common)
    behind = (count - 1).clamp_min(0)
    return (behind * own + SHRINKAGE * common) / (behind + SHRINKAGE), common


def scores(monitor: InfluenceMonitor, anchors: bool | None) -> ScoreTable:
    """The table over training examples, and over the anchors where their original indices are known."""
    ledger, dataset = monitor.record(), monitor.anchors.dataset
    if anchors and not isinstance(dataset, Part):
        raise SgoifError(
            "anchors can only join the table when training set and hold-out share one numbering: make them with"
            " split_holdout(dataset), or read monitor.anchor_scores()"
        )
    ratio = ledger.halves.ratio(ledger)
    rows = _columns(monitor, ledger, np.arange(ledger.used), ratio)
    # With a known size, examples that were never drawn keep a row; held-out ones are not training examples.
    listed = (rows["n_observations"] > 0) | (ledger.fixed_size is not None)
    if isinstance(dataset, Part):
        held = np.asarray(dataset.indices)
        listed[held[held < len(listed)]] = False
    table = ScoreTable(rows).take(np.flatnonzero(listed))
    if not isinstance(dataset, Part) or anchors is False:
        return table
    own = _columns(monitor, anchor_record(monitor), np.asarray(dataset.indices), ratio)
    whole = ScoreTable({name: np.concatenate([table[name], own[name]]) for name in rows})
    return whole.take(np.argsort(whole["index"], kind="stable"))


def anchor_scores(monitor: InfluenceMonitor) -> ScoreTable:
    """Scores of the hold-out by position; anchors that were never in the bank are scored now."""
    monitor.flush()
    ledger = anchor_record(monitor)
    ratio = monitor.ledger.halves.ratio(monitor.ledger)
    return ScoreTable(_columns(monitor, ledger, np.arange(ledger.used), ratio))


def _columns(monitor: InfluenceMonitor, ledger: Ledger, index: np.ndarray[Any, Any], ratio: float) -> dict[str, Any]:
    mean, width = ledger.mean("score"), interval_width(monitor, ledger, ratio)
    bound = monitor.squash.bound
    noise = torch.nan_to_num(ledger.variance()) / ledger.effective_count().clamp_min(1)
    steady = mean * mean / (mean * mean + noise).clamp_min(torch.finfo(mean.dtype).tiny)
    group, _ = ledger.worst_group()
    names = np.array([*monitor.group_names, None], dtype=object)
    named: np.ndarray[Any, Any] = names[group.cpu().numpy()]
    if all(isinstance(name, int) for name in monitor.group_names):
        named = np.array([-1 if name is None else name for name in named], dtype=np.int64)
    else:
        named = np.array(["" if name is None else str(name) for name in named], dtype=object)

    def array(tensor: Tensor) -> np.ndarray[Any, Any]:
        return tensor.float().cpu().numpy()

    return {
        "index": index.astype(np.int64),
        "influence": array(mean),
        "interval_low": array((mean - width).clamp_min(-bound)),
        "interval_high": array((mean + width).clamp_max(bound)),
        "confidence": array(ledger.mean("support") * steady),
        "n_observations": ledger.column("count").cpu().numpy().astype(np.int64),
        "margin": array(ledger.mean("margin")),
        "group": named,
        "logit_margin": array(ledger.mean("logit_margin")),
        "loss": array(ledger.mean("loss")),
    }


def held_out_indices(monitor: InfluenceMonitor) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Indices of the held-out examples in the data set they were split off; None where they are numbered apart."""
    dataset = monitor.anchors.dataset
    return np.asarray(dataset.indices, dtype=np.int64) if isinstance(dataset, Part) else None


def held_out_flags(monitor: InfluenceMonitor) -> Flags | None:
    """The same as one flag per index, up to the one after the largest, which stands for all beyond."""
    held = held_out_indices(monitor)
    if held is None:
        return None
    flags = np.zeros(int(held.max()) + 2, dtype=np.bool_)
    flags[held] = True
    return flags


def anchor_record(monitor: InfluenceMonitor) -> Ledger:
    """The anchors' ledger with one score for every held-out example that was never an anchor; the run is unchanged."""
    ledger = monitor.anchor_ledger.blank()
    ledger.load_state_dict(monitor.anchor_ledger.state_dict())
    missing = (ledger.column("count") == 0).nonzero().squeeze(1).cpu()
    score_now(monitor, ledger, missing, monitor.anchors.read)
    return ledger


@full_precision
def score_now(
    monitor: InfluenceMonitor, ledger: Ledger, positions: Tensor, read: Callable[[Tensor], tuple[Any, Tensor]]
) -> None:
    """Score examples with the model and the directions of this moment, out of training, into rows of a ledger.

    `read` gives inputs and labels of some positions, on the monitor's device.
    """
    if not len(positions) or monitor.directions is None:
        return
    squash, capture = copy(monitor.anchor_squash), Capture(monitor.model, monitor.layers)
    try:
        with isolated_random_state(monitor.device):
            for some in positions.split(monitor.anchor_batch):
                inputs, labels = read(some)
                gradient, losses, logits = monitor.anchor_pass(inputs, labels, capture)
                groups = -(gradient @ monitor.directions.T)
                found = held_out_scores(some.to(groups.device), groups, losses, logits, labels, monitor.loss)
                remember(ledger, squash, found, monitor.support, 1.0, monitor.settings.help_weight)
    finally:
        capture.close()


@contextmanager
def _captured(monitor: InfluenceMonitor) -> Iterator[Capture]:
    """Hooks for a look at examples that are not trained on; a monitor that is closed has none of its own."""
    capture = Capture(monitor.model, monitor.layers)
    try:
        with isolated_random_state(monitor.device):
            yield capture
    finally:
        capture.close()


def _labels(monitor: InfluenceMonitor, inputs: Any, labels: Any) -> Tensor:
    """One class number for every input."""
    count = _size(inputs)
    if not count:
        raise SettingError("there are no examples; give at least one")
    found = check_target(labels, count, monitor.classes, monitor.device)
    assert found is not None
    return found


@full_precision
def most_harmed(monitor: InfluenceMonitor, inputs: Any, labels: Tensor, count: int) -> Tensor:
    """Positions in the hold-out of the anchors that training on each example hurts most, [B, count]; −1: no more."""
    if not isinstance(count, int) or count < 1:
        raise SettingError(f"count={count!r} is not valid: expected a whole number of at least 1")
    monitor.settle()
    bank = monitor.anchors
    with _captured(monitor) as capture:
        gradient, _, _ = monitor.anchor_pass(inputs, _labels(monitor, inputs, labels), capture)
    harm = -(gradient @ (bank.confidence.unsqueeze(1) * bank.ranks.gathered(bank.phi)).T)
    value, member = harm.topk(min(count, harm.shape[1]), dim=1)
    positions = bank.positions().to(member.device)[member]
    found = torch.where(value > 0, positions, -1)
    missing = count - found.shape[1]
    return found if missing <= 0 else torch.nn.functional.pad(found, (0, missing), value=-1)


@full_precision
def expected_error(monitor: InfluenceMonitor, inputs: Any, labels: Tensor) -> Tensor:
    """√(gᵀH⁻¹g), g being the gradient of the margin: how far chance moves it from one training to another, [B].

    The margin, since of the loss of an example that the model is sure of next to no gradient is left; solved in closed
    form with the curvature of this moment, since no direction is kept for examples that are not anchors.
    """
    monitor.settle()
    if not monitor.curvature.ready:
        raise SgoifError("there is no curvature yet, so no error can be foretold; run at least one step first")
    with _captured(monitor) as capture:
        gradient, _, _ = monitor.anchor_pass(inputs, _labels(monitor, inputs, labels), capture, negative_margin)
    return (gradient * monitor.curvature.solve(gradient)).sum(1).clamp_min(0).sqrt()


@full_precision
def error_budget(monitor: InfluenceMonitor, examples: int = 128) -> ErrorBudget:
    """Measure the parts of `ErrorBudget` at the current weights."""
    monitor.flush()
    if monitor.directions is None:
        raise SgoifError("there is no score yet, so there is no error to measure; run at least one step first")
    bank = monitor.anchors
    with _captured(monitor) as capture:
        g, _, _ = monitor.anchor_gradients(capture)
    g, phi = monitor.ranks.gathered(g), monitor.ranks.gathered(bank.phi)
    weights = bank.weights()
    psi = (weights.unsqueeze(1) * phi).sum(0)
    wanted = (weights.unsqueeze(1) * g).sum(0, keepdim=True)
    exact = monitor.curvature.solve(wanted)[0]
    smallest = monitor.curvature.spectrum().smallest

    rows = torch.arange(min(examples, len(bank)))
    inputs, labels = bank.batch(bank.members[rows])
    output, point = watched_output(monitor.model, monitor.layers, monitor.layout, inputs)
    ggn = ExactGGN(output, lambda z: monitor.loss(z, labels).mean(), point, damping=smallest)
    try:
        ggn_psi = ConjugateGradient(iterations=50, tolerance=1e-4).solve(ggn, wanted, exact.unsqueeze(0)).phi[0]
    except RuntimeError:  # a loss or layer without the second derivative this needs
        ggn_psi = torch.full_like(exact, torch.nan)

    c = bank.confidence
    mixing = weights / c.clamp_min(torch.finfo(c.dtype).tiny)  # w_v alone
    lost = conf_error(c.unsqueeze(1), phi @ g.T)
    residual = wanted[0] - monitor.curvature.matvec(psi.unsqueeze(0))[0]
    bound = solver_error_bound(row_norm(residual), residual.new_tensor(smallest))
    return ErrorBudget(
        solver=float((g @ (psi - exact)).abs().mean()),
        curvature=float((g @ (exact - ggn_psi)).abs().mean()),
        projection=float((g @ psi).abs().mean()) * _unseen_share(monitor, inputs, labels),
        linearisation=float((g * monitor.curvature.solve(g)).sum(1).mean()) / (2 * max(monitor.ledger.used, 1)),
        confidence=float((mixing.unsqueeze(1) * lost).sum(0).mean()),
        bound=float(bound * row_norm(g).mean()),
    )


def _first(inputs: Any, most: int) -> Any:
    """The first examples of a batch of inputs: a tensor, several of them, or a list of anything else."""
    if isinstance(inputs, Mapping):
        return {name: _first(value, most) for name, value in inputs.items()}
    if _several(inputs):
        return [_first(value, most) for value in inputs]
    return inputs[:most]


def _size(inputs: Any) -> int:
    """Examples in a batch of inputs."""
    if isinstance(inputs, Mapping):
        return _size(next(iter(inputs.values()), ()))
    return _size(inputs[0]) if _several(inputs) else len(inputs)


def _several(inputs: Any) -> bool:
    """Whether a batch is a list of batches, one for each input of the model."""
    return isinstance(inputs, (list, tuple)) and bool(inputs) and isinstance(inputs[0], (Tensor, Mapping, list, tuple))


def _unseen_share(monitor: InfluenceMonitor, inputs: Any, labels: Tensor, most: int = 16) -> float:
    """Share of the gradient norm outside the projected blocks, over a few anchors."""
    projections = [layer.projection for layer in monitor.layers]
    if not any(projections):
        return 0.0
    few = _first(inputs, most)
    square = []
    try:
        with _captured(monitor) as capture:
            for keep in (True, False):
                for layer, projection in zip(monitor.layers, projections, strict=True):
                    layer.projection = projection if keep else None
                gradient, _, _ = monitor.anchor_pass(few, labels[:most], capture)
                square.append(gradient.double().square().sum(1))
    finally:
        for layer, projection in zip(monitor.layers, projections, strict=True):
            layer.projection = projection
    seen, whole = square
    return float((1 - seen / whole.clamp_min(1e-30)).clamp_min(0).sqrt().mean())


def misranking(monitor: InfluenceMonitor, higher: int, lower: int, bias: float) -> float:
    """exp(−(Δ − b)² m / 2σ²): how likely two examples this far apart are in the wrong order by sampling alone.

    Δ is the difference of the mean scores, σ² the sum of their variances, m the smaller number of observations, and
    `bias` what systematic errors may add (0: sampling error only). 1 means that nothing can be said. All of them are
    measured in the run and observations count as independent, so this is an estimate and not a bound known to hold.
    """
    monitor.flush()
    ledger = monitor.record()
    pair = torch.tensor([higher, lower])
    if int(pair.min()) < 0 or int(pair.max()) >= ledger.used or bool((ledger.column("count")[pair] < 2).any()):
        raise IndexingError(f"examples {higher} and {lower} need at least two observations each to be compared")
    mean, variance, count = ledger.mean("score")[pair], ledger.variance()[pair], ledger.effective_count()[pair]
    return float(misranking_bound(float(mean[0] - mean[1]), bias, float(variance.sum()), float(count.min())))


def certificate(monitor: InfluenceMonitor, k: int) -> Certificate:
    """Are these k the true top k under the surrogate? Needs a watched head and, in practice, a converged solver.

    Every score deviates from the one with exact H⁻¹ by at most Σ_g ‖r_ψg‖/λ_min · ‖g_i‖ in each step (‖Σ_g r_ψg‖ for a
    plain sum over groups); the ledger keeps the mean of that bound. A residual left large on purpose (few solver steps,
    the default for detection) gives a bound larger than the margins, and the answer is then no.
    """
    if len(monitor.layers) > 1:
        raise SgoifError(
            "a certificate needs the norm of every example's gradient, which is formed for layers='head' only"
        )
    monitor.flush()
    ledger = monitor.record()
    seen = ledger.column("count") > 0
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= int(seen.sum()):
        raise IndexingError(f"k={k} is out of range: {int(seen.sum())} examples have a score")
    return top_k_certificate(ledger.mean("score")[seen], ledger.mean("bound")[seen], k)
