"""Solvers for H φ = g, by name."""

from dataclasses import fields
from typing import Any, Literal

from sgoif.errors import SettingError
from sgoif.solvers.base import Control, Operator, Solution, Solver
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.solvers.neumann import Neumann
from sgoif.solvers.richardson import Richardson
from sgoif.solvers.subspace import LowRankSplit

SolverName = Literal["richardson", "neumann", "subspace", "conjugate"]

SOLVERS: dict[str, type[Richardson | Neumann | LowRankSplit | ConjugateGradient]] = {
    "richardson": Richardson,
    "neumann": Neumann,
    "subspace": LowRankSplit,
    "conjugate": ConjugateGradient,
}


def make_solver(name: str, **options: Any) -> Solver:
    """A solver by name; the options are those of its class."""
    if name not in SOLVERS:
        raise SettingError(f"unknown solver {name!r}; choose one of {', '.join(SOLVERS)}")
    known = [option.name for option in fields(SOLVERS[name]) if option.init]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SettingError(f"solver {name!r} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    return SOLVERS[name](**options)


__all__ = [
    "SOLVERS",
    "ConjugateGradient",
    "Control",
    "LowRankSplit",
    "Neumann",
    "Operator",
    "Richardson",
    "Solution",
    "Solver",
    "SolverName",
    "make_solver",
]
