"""Curvature backends, by name."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

import torch

from sgoif.core.parameter_layout import Layout
from sgoif.curvature.base import Curvature, Factors, Spectrum
from sgoif.curvature.diagonal import Diagonal
from sgoif.curvature.exact import ExactGGN
from sgoif.curvature.fisher import EmpiricalFisher
from sgoif.curvature.kfac import KFAC
from sgoif.curvature.lowrank import LowRankDiagonal
from sgoif.errors import SettingError

CurvatureName = Literal["diagonal", "fisher", "kfac", "lowrank"]

CURVATURES: dict[str, type[Curvature]] = {
    "diagonal": Diagonal,
    "fisher": EmpiricalFisher,
    "kfac": KFAC,
    "lowrank": LowRankDiagonal,
}
assert set(CURVATURES) == set(get_args(CurvatureName)), "the names and the classes are one list"


def make_curvature(
    name: str,
    layout: Layout,
    *,
    damping: float = 0.01,
    decay: float = 0.95,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Curvature:
    """The backend called `name`; `options` are its own settings (`window`, `rank`, `refresh`, `buffer`)."""
    if name not in CURVATURES:
        raise SettingError(f"unknown curvature {name!r}; choose one of {', '.join(sorted(CURVATURES))}")
    backend = CURVATURES[name]
    common = {"self", "layout", "damping", "decay", "device"}
    own = [option for option in inspect.signature(backend.__init__).parameters if option not in common]
    unknown = sorted(set(options) - set(own))
    if unknown:
        raise SettingError(
            f"curvature {name!r} has no setting {', '.join(unknown)}; it has: {', '.join(own) or 'none'}"
        )
    return backend(layout, damping=damping, decay=decay, device=device, **options)


__all__ = [
    "CURVATURES",
    "KFAC",
    "Curvature",
    "CurvatureName",
    "Diagonal",
    "EmpiricalFisher",
    "ExactGGN",
    "Factors",
    "LowRankDiagonal",
    "Spectrum",
    "make_curvature",
]
