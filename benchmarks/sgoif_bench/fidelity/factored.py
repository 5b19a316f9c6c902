"""Per-query influence at the cost of vectors instead of matrices, on the layers that allow it.

Where a linear layer sees one position per example, a gradient is an outer product, g = δ ⊗ a, and with each of K-FAC's
factors damped by itself so is a direction:

    φ_q = (S + √λ s̄ I)⁻¹ δ_q  ⊗  (A + √λ ā I)⁻¹ a_q ,        s̄, ā the mean diagonals of S and A,

    φ_qᵀ g_i = (δ_qᵀ (S + √λ s̄ I)⁻¹ δ_i) · (a_qᵀ (A + √λ ā I)⁻¹ a_i) .

A pair then costs rows + cols products for every layer instead of rows · cols, and nothing has to be projected. "All"
layers are all of that kind: every layer of an MLP, those behind the convolutions of a CNN, the head of a ResNet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sgoif.core.parameter_layout import Layout
from sgoif.curvature.base import RIDGE_FLOOR, Factors
from sgoif.errors import SettingError
from sgoif.tracking.evaluation import evaluation, forward
from sgoif.tracking.layer_selection import trace
from sgoif_bench.fidelity.answer import Relabelled
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch
from sgoif_bench.fidelity.study import Study


def outer_products(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Layers whose gradient of one example is one outer product: linear, used once, one position of every example."""
    with evaluation(model), torch.no_grad():
        calls, _ = trace(model, lambda: forward(model, x))
    times = Counter(call.name for call in calls)
    linear = [call for call in calls if isinstance(call.module, nn.Linear) and times[call.name] == 1]
    return tuple(call.name for call in linear if call.shape[0] == len(x) == call.shape[:-1].numel())


class FactoredWatch(QueryWatch):
    """Keeps φ_q as its two sides of every layer, one after the other: `phi` is [Q, Σ_l rows_l + cols_l]."""

    def __init__(
        self,
        study: Study,
        model: nn.Module,
        settings: OnlineSettings | None = None,
        relabelled: Relabelled | None = None,
    ) -> None:
        settings = replace(settings or OnlineSettings(), principal=False)
        if settings.corrected:
            raise SettingError("corrected eigenvalues are no product of two sides: a factored watch cannot have them")
        super().__init__(study, model, settings, relabelled)
        odd = [layer.name for layer in self.layers if not isinstance(layer.module, nn.Linear)]
        if odd:
            raise SettingError(
                f"layers {', '.join(odd)} are not linear, so that their gradients are no outer products: watch the head"
                " alone, or use projected directions"
            )
        for layer in self.layers:
            layer.projection = None
        self.layout = Layout(tuple(layer.block for layer in self.layers))

    def watched(self) -> str | tuple[str, ...]:
        """The layers that are asked for; where that is all, those whose gradients are outer products."""
        if self.settings.layers != "all":
            return self.settings.layers
        able = outer_products(self.model, self.queries[:2])
        if not able:
            raise SettingError(
                "no linear layer of this network sees one position of every example, so that no gradients are outer"
                " products: use projected directions"
            )
        return able

    def directions(self) -> Tensor:
        """Both sides of φ_q with the weights of this moment, [Q, Σ_l rows_l + cols_l]."""
        solved: list[Tensor] = []
        self._leverage = torch.zeros_like(self._length)
        with torch.random.fork_rng(devices=[self.queries.device] if self.study.problem.on_gpu else []):
            examples, parts = self._curvature_factors(), list(self.query_factors())
        for place, some in enumerate(examples):
            if some.delta.shape[1] > 1:
                raise SettingError(
                    f"layer {self.layers[place].name} sees {some.delta.shape[1]} positions of every example: its"
                    " gradients are no outer products. Watch the head alone, or use projected directions"
                )
            delta = torch.cat([part[place].delta[:, 0] for part in parts])
            inputs = torch.cat([part[place].inputs[:, 0] for part in parts])
            left, right = self._solved(delta, some.delta[:, 0]), self._solved(inputs, some.inputs[:, 0])
            self._leverage += (left * delta).sum(1) * (right * inputs).sum(1)
            solved += [left, right]
        return torch.cat(solved, dim=1)

    def respond(self, phi: Tensor, factors: Sequence[Factors]) -> Tensor:
        """φ_qᵀ g_i of a batch, [Q, B]."""
        sides = phi.split([size for layer in self.layers for size in (layer.rows, layer.cols)], dim=1)
        scores = torch.zeros((), device=phi.device)
        for left, right, factor in zip(sides[::2], sides[1::2], factors, strict=True):
            scores = scores + (left @ factor.delta[:, 0].T) * (right @ factor.inputs[:, 0].T)
        return scores

    def _solved(self, vectors: Tensor, examples: Tensor) -> Tensor:
        """(C + √λ c̄ I)⁻¹ applied to vectors [Q, D], with C the second moment of examples [B, D]."""
        moment = (examples.T @ examples).double() / len(examples)
        ridge = self.settings.damping**0.5 * moment.diagonal().mean() + RIDGE_FLOOR
        damped = moment + ridge * torch.eye(len(moment), dtype=moment.dtype, device=moment.device)
        return torch.cholesky_solve(vectors.double().T, torch.linalg.cholesky(damped)).T.float()
