"""Every setting of the engine, validated when made, and the base of all classes of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from sgoif.errors import SettingError

Reduction = Literal["auto", "mean", "sum"]
Execution = Literal["auto", "eager", "deferred"]
LEAST_TURNS, LAYERS_A_STEP = 8, 4


@dataclass(frozen=True)
class Options:
    """Base of the settings that a caller may give as keywords."""

    def need(self, ok: bool, name: str, expected: str) -> None:
        """Refuse the value of a setting unless it is as expected."""
        if not ok:
            raise SettingError(f"{name}={getattr(self, name)!r} is not valid: expected {expected}")

    @classmethod
    def make(cls, options: dict[str, Any], settings: Any = None) -> Self:
        """Settings as they are given, or from keyword options; an unknown one is named together with what exists."""
        if settings is None:
            known = sorted(item.name for item in fields(cls))
            if unknown := sorted(options.keys() - set(known)):
                raise SettingError(f"unknown setting {unknown[0]!r}; known are {', '.join(known)}")
            return cls(**options)
        if options:
            raise SettingError(f"give either settings={cls.__name__}(...) or single options, not both")
        if not isinstance(settings, cls):
            raise SettingError(f"settings={settings!r} is not valid: expected {cls.__name__}(...)")
        return settings


@dataclass(frozen=True)
class Settings(Options):
    """Settings of an `InfluenceMonitor`; the defaults are made for finding label errors."""

    layers: str | Sequence[str] = "head"
    """Watched layers: "head", "last-stage", "all", or names and patterns."""
    body_share: float | None = None
    """Share of the layers below the head that one step scores, in random turns and scaled up. None: an eighth, and no
    more than four of them; 1: all."""
    curvature: str = "kfac"
    """Curvature backend: "kfac", "diagonal", "fisher" or "lowrank"."""
    damping: float = 0.01
    """λ as a multiple of the mean diagonal of the curvature; larger ones make directions plainer gradients."""
    decay: float = 0.7
    """Memory of the running curvature, per update."""
    curvature_every: int | None = None
    """Training steps between two curvature updates. None: 1 at first, then ever more, up to 32, or 64 when layers below
    the head are watched."""
    solver: str = "richardson"
    """Solver of H φ = g: "richardson", "neumann", "subspace" or "conjugate"."""
    solver_steps: int | None = None
    """Steps of the solver at every refresh; None keeps the solver's own default (30 for Richardson)."""
    gate: str = "stability"
    """How anchors are trusted: "stability", "hard", "moving-average" or "none" (`stability.gates`)."""
    kappa: float | None = None
    """κ in τ = κ β̃ Γ. None tracks it so that `pass_quantile` of the anchors pass."""
    pass_quantile: float = 0.8
    """Share of anchors whose residual stays below τ when κ is tracked."""
    tolerance_by_group: bool = True
    """Scale τ by the residuals of an anchor's own group, so that no class is left without anchors."""
    gamma: tuple[float, float] = (1.0, 1.0)
    """γ₁ and γ₂ of the stability proxy β̃."""
    max_anchors: int | None = None
    """Most anchors in the bank (the rest of the hold-out stands by). None: 1,000, or 20 a class where that is more."""
    refresh_every: int | None = None
    """Training steps between two refreshes of the bank. None: a quarter of those so far, 2 epochs at
    most."""
    replace_every: int = 4
    """Refreshes between two replacements of the least trusted anchors (0: never)."""
    replace_share: float = 0.05
    """Share of the bank that one replacement may exchange."""
    coverage_floor: float = 0.1
    """λ_min of the Gram matrix of group directions below which the bank is refreshed early; with `refresh_every` or
    `budget`, which set the schedule themselves, it is only recorded."""
    refine: bool = True
    """Refine the anchors behind large but doubtful scores with short conjugate gradients."""
    sketch: int = 16
    """Rank of the randomised preconditioner of that refinement (0: none)."""
    help_weight: float = 0.5
    """What help to a group counts against harm to another in an example's influence. 1: the plain sum; 0: harm only."""
    temperature: float | None = 4.0
    """Each step's scores are squashed at this multiple of their mean size before they are averaged. None: raw."""
    weigh_steps: bool = True
    """Weigh a step by max(0.05, 1 − L/ln C)⁴, L being the anchors' loss: little at first, little once it memorises."""
    level: float = 0.9
    """Level of the confidence interval of a score."""
    projection: int = 64
    """Blocks too large to keep once per anchor are projected to this many dimensions a side."""
    budget: float | None = None
    """Largest share of training time to spend; the monitor then chooses its own schedule."""
    reduction: Reduction = "auto"
    """Reduction of the training loss. "auto" reads the scale off the gradient of the logits."""
    allow_duplicates: bool = False
    """Accept the same index twice in a batch (samplers that draw with replacement)."""
    skip_nonfinite: bool = False
    """Drop steps with a non-finite loss quietly instead of raising."""
    anchor_batch: int | None = None
    """Batch size of the passes over anchors. None: like training, or twice that when only the head is watched."""
    execution: Execution = "auto"
    """When a step is committed. "eager": when it ends; "deferred": with later ones, which saves a GPU's host time and
    changes no score, but a wrong index is named some steps later. "auto": deferred on a GPU, unless several processes
    train the model, under a `budget`, or with `allow_duplicates`."""
    seed: int = 0
    """Seed of everything the monitor draws; the global random state is never touched."""

    def __post_init__(self) -> None:
        need = self.need
        need(self.reduction in get_args(Reduction), "reduction", f"one of {', '.join(get_args(Reduction))}")
        need(self.execution in get_args(Execution), "execution", f"one of {', '.join(get_args(Execution))}")
        need(self.body_share is None or 0 < self.body_share <= 1, "body_share", "a share in (0, 1], or None")
        need(self.damping > 0, "damping", "a positive number")
        need(0 <= self.decay < 1, "decay", "a number in [0, 1)")
        need(self.kappa is None or self.kappa > 0, "kappa", "a positive number, or None to track it")
        need(0 < self.pass_quantile <= 1, "pass_quantile", "a share in (0, 1]")
        need(self.temperature is None or self.temperature > 0, "temperature", "a positive number or None")
        need(0 <= self.help_weight <= 1, "help_weight", "a number in [0, 1]")
        need(0 < self.level < 1, "level", "a number strictly between 0 and 1")
        need(0 <= self.replace_share < 1, "replace_share", "a share in [0, 1)")
        need(self.budget is None or 0 < self.budget < 1, "budget", "a share of training time in (0, 1), or None")
        need(self.refresh_every is None or self.refresh_every >= 1, "refresh_every", "at least 1 step, or None")
        need(self.solver_steps is None or self.solver_steps >= 1, "solver_steps", "at least 1, or None")
        need(len(self.gamma) == 2 and min(self.gamma) >= 0 < max(self.gamma), "gamma", "two numbers ≥ 0, not both 0")
        need(self.max_anchors is None or self.max_anchors >= 1, "max_anchors", "at least 1, or None")
        need(self.anchor_batch is None or self.anchor_batch >= 1, "anchor_batch", "at least 1, or None")
        need(self.curvature_every is None or self.curvature_every >= 1, "curvature_every", "at least 1, or None")
        need(self.seed >= 0, "seed", "a whole number of at least 0")
        need(self.projection >= 1, "projection", "a whole number of at least 1")
        need(self.sketch >= 0, "sketch", "a whole number of at least 0")
        need(self.replace_every >= 0, "replace_every", "a whole number of at least 0")
        need(
            self.budget is None or self.refresh_every is None,
            "budget",
            "None when refresh_every is given: one of the two sets the schedule",
        )

    def turns(self, layers: int) -> int:
        """In how many turns this many layers below the head are scored."""
        wanted = 1 / self.body_share if self.body_share is not None else max(LEAST_TURNS, layers / LAYERS_A_STEP)
        return max(1, min(round(wanted), layers))
