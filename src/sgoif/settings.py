"""Every setting of the engine, validated when made, and the base of all classes of settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Literal, Self, get_args

from sgoif.errors import SettingError

Reduction = Literal["auto", "mean", "sum"]
Execution = Literal["auto", "eager", "deferred"]
Coverage = Literal["groups", "anchors"]
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
    rank: int = 16
    """r of Q_r (eq. 10): leading directions of `curvature="lowrank"` and of `solver="subspace"`."""
    rank_every: int = 10
    """T_r: updates of `curvature="lowrank"` between two of its basis (algorithm 1, line 3)."""
    curvature_every: int | None = None
    """Training steps between two curvature updates. None: 1 at first, then ever more, up to 32, or 64 when layers below
    the head are watched."""
    solver: str = "richardson"
    """Solver of H φ = g: "richardson", "neumann", "subspace" or "conjugate"."""
    solver_steps: int | None = None
    """Steps of the solver at every refresh; None keeps the solver's own default (30 for Richardson)."""
    step_decay: float = 0.0
    """p of Richardson's step ρ_t = t⁻ᵖ / λ_max (eq. 8): 0 is spectral, (½, 1] meets Robbins and Monro (eq. 48)."""
    preconditioner: bool = True
    """Precondition Neumann's series by the diagonal of H; False: by αI, as printed (eq. 9)."""
    residual_budget: float | None = None
    """Stop solving an anchor once ‖r_v‖ is this share of τ, or a step does not shrink it (lemma 4c). None: never."""
    steer: bool = True
    """Let gap of iterates, energy in the subspace and variance of probes steer depth, step and rank (section 1)."""
    gate: str = "stability"
    """How anchors are trusted: "stability", "hard", "moving-average" or "none" (`stability.gates`)."""
    kappa: float | None = None
    """κ in τ = κ β̃ Γ (eq. 3). None tracks it so that `pass_quantile` of the anchors pass."""
    kappa_memory: float = 0.0
    """Epochs that a tracked κ remembers after the first, β̃ and Γ moving τ meanwhile; inf: then it stays. 0: they cancel
    out."""
    pass_quantile: float = 0.8
    """Share of anchors whose residual stays below τ when κ is tracked."""
    tolerance_by_group: bool = True
    """Scale τ by the residuals of an anchor's own group, so that no class is left without anchors."""
    gamma: tuple[float, float] = (1.0, 1.0)
    """γ₁ and γ₂ of the stability proxy β̃ (eq. 2); they count where κ is given or remembers."""
    one_pool: bool = False
    """One group of all anchors, as printed (eq. 5), where `groups=` says nothing else."""
    max_anchors: int | None = None
    """Most anchors in the bank (the rest of the hold-out stands by). None: 1,000, or 20 a class where that is more."""
    refresh_every: int | None = None
    """Training steps between two refreshes of the bank. None: a quarter of those so far, 2 epochs at
    most."""
    replace_every: int | None = None
    """T_a: training steps between two replacements of the least trusted anchors, at the next refresh; `refine` acts
    then as well (algorithm 1, line 6). None: at every fourth refresh; 0: neither."""
    replace_share: float = 0.05
    """Share of the bank that one replacement may exchange."""
    coverage_floor: float = 0.1
    """λ_min of a Gram matrix of normalised directions (eq. 6) below which something is done about the bank."""
    coverage_of: Coverage = "groups"
    """"groups": of the groups' directions; below the floor the next refresh comes early, unless `refresh_every` or
    `budget` sets the schedule. "anchors": of all φ_v, as printed; below it the least trusted anchors are replaced."""
    refine: bool = False
    """Refine the anchors behind large but doubtful scores with short conjugate gradients. It gained nothing anywhere
    (docs/benchmarks/controller.md)."""
    sketch: int = 16
    """Rank of the randomised preconditioner of that refinement (0: none)."""
    refine_steps: int = 5
    """Steps of conjugate gradients at a refinement."""
    refine_outside: bool = False
    """Refine whom the gate costs most, (1 − c_v)‖φ_v‖, as printed; else only anchors with 0 < c_v < 1."""
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
        need(self.coverage_of in get_args(Coverage), "coverage_of", f"one of {', '.join(get_args(Coverage))}")
        need(self.body_share is None or 0 < self.body_share <= 1, "body_share", "a share in (0, 1], or None")
        need(self.damping > 0, "damping", "a positive number")
        need(0 <= self.decay < 1, "decay", "a number in [0, 1)")
        need(self.kappa is None or self.kappa > 0, "kappa", "a positive number, or None to track it")
        need(self.kappa_memory >= 0, "kappa_memory", "a number of epochs of at least 0, inf for ever")
        need(0 <= self.coverage_floor <= 1, "coverage_floor", "a number in [0, 1], as λ_min of a Gram matrix is")
        need(0 < self.pass_quantile <= 1, "pass_quantile", "a share in (0, 1]")
        need(self.rank >= 1, "rank", "a whole number of at least 1")
        need(self.rank_every >= 1, "rank_every", "a whole number of at least 1")
        need(self.step_decay == 0 or 0.5 < self.step_decay <= 1, "step_decay", "0, or a power in (0.5, 1]")
        need(self.residual_budget is None or self.residual_budget > 0, "residual_budget", "a positive share, or None")
        need(self.refine_steps >= 1, "refine_steps", "a whole number of at least 1")
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
        need(self.replace_every is None or self.replace_every >= 0, "replace_every", "at least 0 steps, or None")
        need(
            self.budget is None or self.refresh_every is None,
            "budget",
            "None when refresh_every is given: one of the two sets the schedule",
        )

        standing = type(self)
        for name, (acts, where) in USED_WITH.items():
            alone = getattr(self, name) == getattr(standing, name)
            need(alone or acts(self), name, f"{getattr(standing, name)!r}, or {where}: it would change nothing")

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """The method as the paper prints it, with these changes; docs/paper.md goes through it line by line.

        κ is the paper's constant, for which it names no value: it is set so that `pass_quantile` of the anchors pass
        at the end of the first epoch, and stays. Of a bank it says only that it is compact.
        """
        printed: dict[str, Any] = {
            "curvature": "lowrank",
            "decay": 0.95,
            "curvature_every": 1,
            "solver": "richardson",
            "solver_steps": 1,
            "step_decay": 0.6,
            "refresh_every": 1,
            "one_pool": True,
            "tolerance_by_group": False,
            "kappa_memory": math.inf,
            "residual_budget": 0.05,
            "max_anchors": 200,
            "replace_every": 100,
            "coverage_of": "anchors",
            "refine": True,
            "refine_outside": True,
            "help_weight": 1.0,
            "weigh_steps": False,
        }
        whole = SimpleNamespace(**{item.name: item.default for item in fields(cls)} | printed | changes)
        idle = {name for name, (acts, _) in USED_WITH.items() if name not in changes and not acts(whole)}
        return cls(**{name: value for name, value in (printed | changes).items() if name not in idle})

    def turns(self, layers: int) -> int:
        """In how many turns this many layers below the head are scored."""
        wanted = 1 / self.body_share if self.body_share is not None else max(LEAST_TURNS, layers / LAYERS_A_STEP)
        return max(1, min(round(wanted), layers))


USED_WITH: dict[str, tuple[Callable[[Any], bool], str]] = {
    "rank": (lambda s: s.curvature == "lowrank" or s.solver == "subspace", 'curvature="lowrank" or solver="subspace"'),
    "rank_every": (lambda s: s.curvature == "lowrank", 'curvature="lowrank"'),
    "step_decay": (lambda s: s.solver == "richardson", 'solver="richardson"'),
    "preconditioner": (lambda s: s.solver == "neumann", 'solver="neumann"'),
    "gamma": (lambda s: s.kappa is not None or s.kappa_memory > 0, "kappa or kappa_memory given as well"),
    "kappa_memory": (lambda s: s.kappa is None, "kappa=None"),
    "refine_steps": (lambda s: s.refine, "refine=True"),
    "refine_outside": (lambda s: s.refine, "refine=True"),
    "sketch": (lambda s: s.refine, "refine=True"),
}
"""Settings that act only together with others, and with which."""
