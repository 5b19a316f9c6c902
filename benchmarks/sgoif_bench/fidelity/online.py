"""Per-query influence while a network trains: SG-OIF with every query an anchor of its own.

At the start of every scored epoch e, with the weights of that moment,

    g_q ← gradients of −f(q)                              anchors.gradients, evaluation mode
    H   ← K-FAC of `curvature_examples` examples          curvature.KFAC, labels drawn from the model (true Fisher)
    φ_q ← (H + λI)⁻¹ g_q                                  in closed form, K-FAC's eigenbases

and at every step of the epoch, from inputs a and output gradients δ that training computes anyway,

    s_e(q, i) = φ_qᵀ g_i                                  g_i = Σ_positions δ_i ⊗ a_i, projected for large layers .

An example that lowers the loss along φ_q raises the margin of q, hence the sign. Epochs see a query from different
sides and at very different scales (gradients fall by orders of magnitude), so each is brought to unit length first:

    s(q, ·) = σ_q Σ_e u_e ,    u_e = s_e(q, ·) / ‖s_e(q, ·)‖ ,    σ_q = mean_e ‖s_e(q, ·)‖ .

No second pass over the training data and no stored gradients: memory is two tables [Q, N] and the directions [Q, P].
The first epoch is never scored: nothing is known about a query then.

What a new label of example j would do is asked at the start of a scored epoch, of that moment's weights:
φ_qᵀ (g(x_j, new) − g(x_j, given)), brought to the scale of s(q, ·) in the same way.

Confidence of a query. Retrained on other examples, its margin moves for two reasons: by what the examples do, which
scores can predict, and by chance, since no two trainings end at the same weights, which they cannot. To first order
the variance of the first is ‖s_e(q, ·)‖² up to a factor (the infinitesimal jackknife); that of the second, with weights
spread as H⁻¹, is g_qᵀ φ_q up to another (the Laplace approximation). Their ratio

    signal(q) = exp mean_e log ( ‖s_e(q, ·)‖ / √(g_qᵀ φ_q) )

says how much there is to be predicted. How well it is predicted shows in the scores: ‖s‖₂ / ‖s‖₁, the sparsity, is high
where few examples carry them and low where noise lies on all; ‖Σ_e u_e‖ / E, the coherence, is one where all epochs say
the same and 1/√E where they have nothing in common. The confidence is the product of the three. It takes one run, and
nothing but this query. Σs⁴ / (Σs²)², the concentration, is sparsity seen from the largest scores, kept for comparison.

Confidence is about the share of a margin's changes that is predicted. How far predictions are off, in units of the
margin, is mostly what chance does, hence the expected error, up to a factor that all queries have in common:

    error(q) = exp mean_e log √(g_qᵀ φ_q) .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif.curvature.base import Factors
from sgoif.curvature.kfac import DELTA, INPUTS, KFAC, eigh
from sgoif.engine.setup import probe
from sgoif.errors import SettingError
from sgoif.settings import Settings
from sgoif.tracking.capture import Capture
from sgoif.tracking.evaluation import evaluation, forward
from sgoif.tracking.layers.projection import Projection
from sgoif.tracking.pass_record import PassRecord
from sgoif_bench.fidelity.answer import Relabelled, clock
from sgoif_bench.fidelity.study import Study

QUERY_BATCH = 256
PRINCIPAL_EXAMPLES, MOST_ROWS, SMALL_SIDE = 128, 16384, 1024
OVERSAMPLING, POWER_STEPS = 16, 3
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class OnlineSettings:
    """How queries are watched."""

    layers: str = "all"
    projection: int = 64
    """Layers with many weights are projected to so many dimensions a side."""
    principal: bool = True
    """Project to the directions in which inputs and output gradients vary most, found once, instead of random ones."""
    damping: float = 0.003
    """λ as a share of the mean diagonal, per layer."""
    epochs: int | None = 10
    """Epochs that are scored, evenly spread and the last among them; None: all but the first."""
    corrected: bool = False
    """K-FAC's eigenvalues measured in its eigenbasis (EK-FAC) instead of products."""
    curvature_examples: int = 512

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise SettingError(f"damping = {self.damping} must be positive")
        if self.epochs is not None and self.epochs < 1:
            raise SettingError(f"epochs = {self.epochs} must be at least 1")

    def scored(self, total: int) -> list[int]:
        """The epochs, from 1, that are scored in a run of so many."""
        last = max(1, total - 1)
        count = last if self.epochs is None else min(self.epochs, last)
        return sorted({total - round(place * last / count) for place in range(count)})


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of every example."""
    return F.cross_entropy(logits, labels, reduction="none")


def principal(vectors: Tensor, rank: int) -> Tensor:
    """Orthonormal rows [rank, D]: the directions in which vectors [..., D] have most energy; all where rank = D."""
    rows = vectors.flatten(0, -2).float()
    size = rows.shape[1]
    if rank >= size:
        return torch.eye(size, device=rows.device)
    rows = rows[:: max(1, len(rows) // MOST_ROWS)]
    if size <= SMALL_SIDE:
        vectors = torch.linalg.eigh((rows.T @ rows).double())[1]
        return vectors[:, -rank:].float().T.contiguous()
    # Subspace iteration: a covariance of several thousand inputs is never decomposed.
    start = torch.randn(size, rank + OVERSAMPLING, generator=torch.Generator().manual_seed(0)).to(rows)
    basis: Tensor = torch.linalg.qr(start)[0]
    for _ in range(POWER_STEPS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis))[0]
    return basis[:, :rank].T.contiguous()


class QueryWatch:
    """Watches one training run on behalf of a study's queries."""

    def __init__(
        self,
        study: Study,
        model: nn.Module,
        settings: OnlineSettings | None = None,
        relabelled: Relabelled | None = None,
    ) -> None:
        self.study, self.model, self.asked = study, model, relabelled
        self.aside = 0.0
        """Seconds spent on new labels, which are no part of the scores."""
        self.settings = settings or OnlineSettings()
        self.queries, self.labels = study.query_tensors()
        device = self.queries.device
        if study.problem.on_gpu:
            self.queries = self.queries.contiguous(memory_format=torch.channels_last)
        found = probe(
            model,
            (self.queries[:2].cpu(), self.labels[:2].cpu()),
            Settings(layers=self.watched(), projection=self.settings.projection),
        )
        self.layers, self.layout = found.layers, found.layout
        self.capture = Capture(model, self.layers)
        self.names = frozenset(layer.name for layer in self.layers)
        self.autocast = torch.bfloat16 if study.problem.on_gpu else None
        self.phi: Tensor | None = None
        self.wanted = self.settings.scored(study.problem.recipe.epochs)
        self.epochs = 0
        """Epochs scored so far."""
        self._now, self._units = (torch.zeros(len(self.labels), len(study), device=device) for _ in range(2))
        self._length = torch.zeros(len(self.labels), device=device)
        self._leverage, self._chance = (torch.zeros(len(self.labels), device=device) for _ in range(2))
        self._lengths = torch.zeros(len(self.labels), device=device)
        self._changes, self._changes_now = (
            torch.zeros(len(self.labels), len(relabelled or ()), device=device) for _ in range(2)
        )
        self._generator = torch.Generator().manual_seed(study.problem.seed)

    def watched(self) -> str | tuple[str, ...]:
        """The layers that are asked for, as a monitor takes them."""
        return self.settings.layers

    def close(self) -> None:
        """Remove the hooks."""
        self.capture.close()

    def begin(self, epoch: int) -> None:
        """An epoch begins, counted from 1: refresh where it is scored, and watch nothing where it is not."""
        self.end()
        if epoch in self.wanted:
            if self.settings.principal and not self.epochs:
                self.find_principal()
            self.phi = self.directions()
            if self.asked is not None:
                start = clock(self.queries.device)
                self._changes_now = self.changes(self.phi)
                self.aside += clock(self.queries.device) - start

    def end(self) -> None:
        """An epoch is over: take its scores to unit length and add them."""
        if self.phi is None:
            return
        length = torch.linalg.vector_norm(self._now, dim=1)
        unit = length.clamp_min(TINY).unsqueeze(1)
        self._units += self._now / unit
        self._changes += self._changes_now / unit
        self._length += length
        self._lengths += length.clamp_min(TINY).log()
        self._chance += self._leverage.clamp_min(TINY).sqrt().log()
        self._now.zero_()
        self.epochs += 1
        self.phi = None

    @contextmanager
    def step(self, index: Tensor) -> Iterator[None]:
        """Around the forward and backward pass of one batch of training, its loss a mean over examples."""
        if self.phi is None:
            yield
            return
        record = PassRecord(keep=self.names)
        with self.capture.open(record):
            yield
        with torch.no_grad():
            scale = torch.tensor(1 / len(index), device=self.queries.device)
            factors = [record.factors(layer, scale, len(index)) for layer in self.layers]
            self._now.index_add_(1, index.to(self.phi.device), self.respond(self.phi, factors))

    def respond(self, phi: Tensor, factors: Sequence[Factors]) -> Tensor:
        """φ_qᵀ g_i of a batch, [Q, B]."""
        return phi @ self.joined(factors).T

    def joined(self, factors: Sequence[Factors]) -> Tensor:
        """Gradients [B, P]."""
        return self.layout.join([factor.gradient() for factor in factors])

    def find_principal(self) -> None:
        """Turn the projections of large layers to where their inputs and output gradients vary most."""
        projected = [layer for layer in self.layers if layer.projection is not None]
        if not projected:
            return
        sizes = {layer.name: layer.block for layer in projected}
        for layer in projected:
            layer.projection = None
        rows = torch.randperm(len(self.study), generator=self._generator)[:PRINCIPAL_EXAMPLES]
        factors = {
            layer.name: found for layer, found in zip(self.layers, self._sampled(self._images(rows)), strict=True)
        }
        for layer in projected:
            found, block = factors[layer.name], sizes[layer.name]
            out, inp = principal(found.delta, block.rows), principal(found.inputs, block.cols)
            layer.projection = Projection(out, inp)

    def _images(self, rows: Tensor) -> Tensor:
        x, _ = self.study.train_tensors(rows.numpy())
        return x.contiguous(memory_format=torch.channels_last) if self.study.problem.on_gpu else x

    def directions(self) -> Tensor:
        """φ_q with the weights of this moment, [Q, P]."""
        with torch.random.fork_rng(devices=[self.queries.device] if self.study.problem.on_gpu else []):
            gradients = self.query_gradients()
            phi = self._inverse()(gradients)
            self._leverage = (gradients * phi).sum(1)
            return phi

    def query_gradients(self) -> Tensor:
        """∇(−f) of every query, [Q, P]."""
        return torch.cat([self.joined(factors) for factors in self.query_factors()])

    def query_factors(self) -> Iterator[list[Factors]]:
        """What ∇(−f) is made of, some queries at a time."""
        for x, y in zip(self.queries.split(QUERY_BATCH), self.labels.split(QUERY_BATCH), strict=True):
            yield self.looked(x, partial(negative_margin, labels=y))

    def looked(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> list[Factors]:
        """Factors of the gradients of a loss of the logits, in evaluation mode; the model is left as it was."""
        record = PassRecord(differentiate=False)
        with evaluation(self.model), self.capture.open(record), torch.no_grad():
            enabled = self.autocast is not None
            with torch.autocast(x.device.type, dtype=self.autocast, enabled=enabled, cache_enabled=False):
                logits = forward(self.model, x)
            with torch.enable_grad():
                losses = loss(logits.float())
            deltas = record.output_gradients(losses.sum(), [layer.name for layer in self.layers])
            return [
                layer.factors(record.inputs[layer.name], delta)
                for layer, delta in zip(self.layers, deltas, strict=True)
            ]

    def asked_of(self, phi: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """φ_qᵀ g of images with these labels, [Q, B], in evaluation mode."""
        return self.respond(phi, self.looked(x, partial(cross_entropy, labels=y)))

    def changes(self, phi: Tensor) -> Tensor:
        """φ_qᵀ (g(x, new) − g(x, given)) of the examples whose labels are asked about, [Q, J]."""
        assert self.asked is not None
        parts = []
        for start in range(0, len(self.asked), QUERY_BATCH):
            rows = slice(start, start + QUERY_BATCH)
            some = Relabelled(self.asked.rows[rows], self.asked.labels[rows])
            (x, new), (_, given) = some.tensors(self.study), self.study.train_tensors(some.rows)
            if self.study.problem.on_gpu:
                x = x.contiguous(memory_format=torch.channels_last)
            parts.append(self.asked_of(phi, x, new) - self.asked_of(phi, x, given))
        return torch.cat(parts, dim=1)

    def _inverse(self) -> Callable[[Tensor], Tensor]:
        factors = self._curvature_factors()
        kfac = self._kfac(factors)
        return self._corrected(kfac, factors) if self.settings.corrected else kfac.solve

    def _kfac(self, factors: Sequence[Factors]) -> KFAC:
        kfac = KFAC(self.layout, damping=self.settings.damping, decay=0.0, device=self.queries.device)
        kfac.update(factors)
        return kfac

    def _curvature_images(self) -> Tensor:
        rows = torch.randperm(len(self.study), generator=self._generator)[: self.settings.curvature_examples]
        return self._images(rows)

    def _curvature_factors(self) -> list[Factors]:
        return self._sampled(self._curvature_images())

    def _sampled(self, x: Tensor) -> list[Factors]:
        """Factors of examples whose labels are drawn from the model, as the Fisher information asks for."""

        def loss(logits: Tensor) -> Tensor:
            drawn = torch.multinomial(logits.detach().cpu().softmax(1), 1, generator=self._generator)
            return cross_entropy(logits, drawn.squeeze(1).to(x.device))

        return self.looked(x, loss)

    def _corrected(self, kfac: KFAC, factors: Sequence[Factors]) -> Callable[[Tensor], Tensor]:
        """(H + λI)⁻¹ with H's eigenvalues E[(Uᵀ g W)²] in K-FAC's eigenbases; elementwise layers stay diagonal."""
        averages = kfac.state_dict()
        bases: list[tuple[Tensor, Tensor, Tensor] | Tensor] = []
        for index, factor in enumerate(factors):
            gradient = factor.gradient()
            if factor.elementwise:
                values = gradient.square().mean(0)
                bases.append(values + self.settings.damping * values.mean())
                continue
            left, right = (eigh(averages[f"{index}.{key}"])[1] for key in (DELTA, INPUTS))
            values = (left.T @ gradient @ right).square().mean(0)
            bases.append((left, right, values + self.settings.damping * values.mean()))

        def solve(vectors: Tensor) -> Tensor:
            parts = []
            for x, basis in zip(self.layout.split(vectors), bases, strict=True):
                if isinstance(basis, Tensor):
                    parts.append(x / basis)
                else:
                    left, right, values = basis
                    parts.append(left @ ((left.T @ x @ right) / values) @ right.T)
            return self.layout.join(parts)

        return solve

    def scores(self) -> Tensor:
        """s(q, i), [Q, N]."""
        self.end()
        return self._units * (self._length / max(1, self.epochs)).unsqueeze(1)

    def relabelled(self) -> Tensor | None:
        """What new labels would do to every query, [Q, J], at the scale of scores; None where none is asked about."""
        self.end()
        return None if self.asked is None else self._changes * (self._length / max(1, self.epochs)).unsqueeze(1)

    def trust(self) -> dict[str, NDArray[np.float64]]:
        """How far the scores of every query can be trusted."""
        self.end()
        return trust_of(self._units, self._lengths, self._chance, max(1, self.epochs))


def trust_of(units: Tensor, lengths: Tensor, chance: Tensor, epochs: int) -> dict[str, NDArray[np.float64]]:
    """Signal, sparsity and coherence of every query, the confidence made of them, concentration, expected error.

    `units` [Q, N] is the sum over epochs of scores at unit length, `lengths` [Q] that of the logarithms of the lengths
    they had, `chance` [Q] that of the logarithms of √(gᵀH⁻¹g).
    """
    tiny, units = torch.finfo(torch.float64).tiny, units.double()
    squares = units.square().sum(1).clamp_min(tiny)
    found = {
        "signal": ((lengths - chance).double() / epochs).exp(),
        "sparsity": squares.sqrt() / units.abs().sum(1).clamp_min(tiny),
        "coherence": squares.sqrt() / epochs,
        "concentration": units.pow(4).sum(1) / squares.square(),
        "error": (chance.double() / epochs).exp(),
    }
    found["confidence"] = found["signal"] * found["sparsity"] * found["coherence"]
    return {name: values.cpu().numpy() for name, values in found.items()}
