"""Taking the paper's three further signals at a refresh, and letting them steer the rank of a low-rank curvature."""

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature
from sgoif.curvature.lowrank import LowRankDiagonal
from sgoif.distributed.communicator import Communicator
from sgoif.solvers.base import Solver
from sgoif.stability.controller import StabilityController
from sgoif.stability.probes import curvature_probe, gradient_energy, iterate_gap

PROBED_ANCHORS, GAP_TERMS = 8, 3


def observe_signals(
    controller: StabilityController,
    curvature: Curvature,
    solver: Solver,
    gradients: Tensor,
    seed: int,
    communicator: Communicator,
    rank: int,
) -> int:
    """Iterate gap, spread of curvature probes and energy in the subspace into the controller; the products used.

    `rank` is what a low-rank curvature has where nothing steers it.
    """
    few = communicator.gathered(gradients[:PROBED_ANCHORS])[:PROBED_ANCHORS]
    gap = iterate_gap(curvature, few, GAP_TERMS)
    probe = curvature_probe(curvature, few[0], 1, seed)
    energy = float(getattr(solver, "last_energy", float("nan")))
    if isinstance(curvature, LowRankDiagonal):
        energy = float(communicator.gathered(gradient_energy(curvature.basis.T, gradients)).mean())
    distance, value = torch.cat([gap.nanmean().view(1), probe]).tolist()
    controller.observe_signals(gap=distance, probe=value, energy=energy)
    if isinstance(curvature, LowRankDiagonal):
        curvature.set_rank(max(1, round(controller.control().rank * rank)))
    return 2 * (GAP_TERMS - 1) * len(few) + 1
