"""Curvature backends, by name."""

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
    **own: Any,
) -> Curvature:
    """The backend called `name`, with options of its own."""
    if name not in CURVATURES:
        raise SettingError(f"unknown curvature {name!r}; choose one of {', '.join(sorted(CURVATURES))}")
    return CURVATURES[name](layout, damping=damping, decay=decay, device=device, **own)


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
