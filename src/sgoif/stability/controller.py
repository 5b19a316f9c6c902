"""The stability controller: how large a residual may be, and how hard the solver should work.

    β̃_t = γ₁ η_t Ḡ_t / n + γ₂ λ_w / n          learning rate η, mean gradient norm Ḡ, weight decay λ_w, data size n
    τ_t = κ_t β̃_t Γ_t                            Γ: condition number proxy of the damped curvature

κ is fixed, or tracks: it is solved for so that τ is the smoothed `pass_quantile` of the anchors' residuals, never far
from the newest one. With a `memory` it does so in the first epoch alone, and ln κ follows it over so many epochs
afterwards: between, τ moves with β̃ and Γ. Three further signals (`stability.probes`) steer the solver: the gap of
iterates its depth, the variance of probes step and depth, the energy in the kept subspace its rank.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sgoif.core.serialization import nest, unnest
from sgoif.solvers.base import Control
from sgoif.stability.probes import ProbeVariance
from sgoif.stability.running_mean import fold_mean

NORM_DECAY = 0.98
TINY = torch.finfo(torch.float32).tiny
SMOOTHING = 0.5
"""Weight of the newest observation in the residual and the signals; a refresh is rare, so it counts for much."""
LAG = 1.25
"""Largest factor between the smoothed residual and the newest: while residuals grow fast, as they do in the first
epochs, a smoothed tolerance that lags far behind them would close the gate."""


@dataclass
class Tolerance:
    """One evaluation of τ and its parts."""

    tau: float
    kappa: float
    beta: float
    condition: float


@dataclass
class Signals:
    """Smoothed signals in [0, ∞), [0, ∞) and [0, 1]; nan until first seen."""

    gap: float = float("nan")
    variance: float = float("nan")
    energy: float = float("nan")


class StabilityController:
    """State of the tolerance and of the solver's steering."""

    def __init__(
        self,
        *,
        kappa: float | None,
        pass_quantile: float,
        gamma: tuple[float, float],
        device: torch.device,
        memory: float = 0.0,
        residual_budget: float | None = None,
        steer: bool = True,
    ):
        self.fixed_kappa = kappa
        self.memory, self.residual_budget, self.steer = memory, residual_budget, steer
        self.pass_quantile = pass_quantile
        self.gamma = gamma
        self.sign = 1
        """τ = κ (β̃ Γ)^sign: −1 is what a remark of the paper says in words, against its equations."""
        self.kappa = kappa
        self.epochs = 0.0
        """Of training, when κ last moved."""
        self.target: float | None = None
        """Smoothed residual norm that τ should have when κ is tracked."""
        self.gradient_norm = torch.zeros(2, device=device)  # weighted sum and weight
        self.signals = Signals()
        self.probes = ProbeVariance()

    def observe(self, norms: Tensor) -> None:
        """Fold in the per-example gradient norms of one batch; stays on the device."""
        fold_mean(self.gradient_norm, norms, NORM_DECAY)

    def proxy(self, learning_rate: float, weight_decay: float, size: int) -> float:
        """β̃ at this moment."""
        first, second = self.gamma
        total, weight = self.gradient_norm.tolist()
        mean_norm = total / weight if weight > 0 else 0.0
        beta = (first * learning_rate * mean_norm + second * weight_decay) / max(size, 1)
        return max(beta, TINY)  # a zero learning rate must not close the gate

    def tolerance(self, residual: Tensor, beta: float, condition: float, epochs: float = 0.0) -> Tolerance:
        """τ for these residual norms [K] after so many epochs; moves κ when it tracks."""
        scale = (beta * condition) ** self.sign
        if self.fixed_kappa is None:
            finite = residual[torch.isfinite(residual)]
            if len(finite):
                wanted = float(torch.quantile(finite.double(), self.pass_quantile))
                # The residual is smoothed, not κ: β̃ follows the learning rate, which may fall by orders of magnitude
                # between two refreshes, and a κ that lags behind it would close the gate.
                smoothed = wanted if not self.target else (1 - SMOOTHING) * self.target + SMOOTHING * wanted
                self.target = min(max(smoothed, wanted / LAG), wanted * LAG)
                self._move(self.target / scale, epochs)
        kappa = self.kappa if self.kappa else 1.0
        tau = max(kappa * scale, TINY)
        return Tolerance(tau=tau, kappa=kappa, beta=beta, condition=condition)

    def _move(self, kappa: float, epochs: float) -> None:
        """Have κ follow the one by which the wanted share of anchors passes now."""
        if self.kappa and self.memory and epochs >= 1:
            old = math.exp(-max(0.0, epochs - max(self.epochs, 1.0)) / self.memory)
            kappa = math.exp(old * math.log(self.kappa) + (1 - old) * math.log(max(kappa, TINY)))
        self.kappa, self.epochs = kappa, epochs

    def observe_signals(self, *, gap: float, probe: float, energy: float) -> None:
        """Fold in the signals of one refresh; values that are not finite are left out."""
        self.probes.update(probe)
        for name, value in (("gap", gap), ("variance", self.probes.value), ("energy", energy)):
            if value == value and value < float("inf"):
                old = getattr(self.signals, name)
                setattr(self.signals, name, value if old != old else (1 - SMOOTHING) * old + SMOOTHING * value)

    def control(self, beta: float | None = None, condition: float = 1.0) -> Control:
        """Depth, step and rank for the next call of the solver, and its residual budget where β̃ is told."""
        found = self._steering() if self.steer else Control()
        if self.residual_budget is None or beta is None or not self.kappa:
            return found
        cancelling = self.fixed_kappa is None and not self.memory and self.target
        tau = self.target if cancelling else self.kappa * (beta * condition) ** self.sign
        return replace(found, budget=self.residual_budget * (tau or 0.0))

    def _steering(self) -> Control:
        s = self.signals
        gap = s.gap if s.gap == s.gap else 0.0
        variance = s.variance if s.variance == s.variance else 0.0
        energy = s.energy if s.energy == s.energy else 1.0
        steady = 1 / (1 + variance)
        return Control(
            depth=min(2.0, 1 + gap) * max(0.5, steady),
            step=max(0.5, steady),
            rank=max(0.5, 1.5 - energy),
        )

    def state_dict(self) -> dict[str, Any]:
        known = [float("nan") if value is None else value for value in (self.kappa, self.target)] + [self.epochs]
        numbers = [*known, *asdict(self.signals).values()]
        return {
            "gradient_norm": self.gradient_norm,
            "numbers": torch.tensor(numbers, dtype=torch.float64),
            **nest("probes", self.probes.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gradient_norm.copy_(state["gradient_norm"])
        kappa, target, self.epochs, *signals = state["numbers"].tolist()
        self.kappa = None if kappa != kappa else kappa
        self.target = None if target != target else target
        self.signals = Signals(*signals)
        self.probes.load_state_dict(unnest("probes", state))
