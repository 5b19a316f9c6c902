"""The directions ψ_g by which training examples are scored, and what stands behind them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.errors import StateError
from sgoif.tracking.layers.base import WatchedLayer

NO_DIRECTIONS: Mapping[str, Tensor] = MappingProxyType({})
DRAWN_AT_ONCE = 1024
"""Turns that are drawn together: making a generator takes longer than all else that a turn needs."""


def turn_of(step: int, turns: int, seed: int) -> int:
    """Which of so many turns a step takes: random, and the same whenever that step is asked about."""
    block, place = divmod(step, DRAWN_AT_ONCE)
    return _drawn(block, turns, seed)[place]


@lru_cache(maxsize=16)
def _drawn(block: int, turns: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, block)).integers(turns, size=DRAWN_AT_ONCE).tolist())


class GroupDirections:
    """Written by a refresh, read by scoring."""

    def __init__(
        self, groups: int, layers: Sequence[WatchedLayer], layout: Layout, device: torch.device, turns: int, seed: int
    ) -> None:
        self.layers, self.layout, self.device = layers, layout, device
        self.turns, self.seed = turns, seed
        self.psi: Tensor | None = None
        """ψ_g of every group, [G, P]; None before the first refresh."""
        self.support = torch.zeros(groups, device=device)
        """Mean confidence behind each ψ_g."""
        self.error_bound = torch.zeros((), device=device)
        """Bound on the error of a score per ‖g_i‖."""
        self.lifted: dict[str, Tensor] = {}
        """Σ_g ψ_g as full weight matrices of the layers below the head."""

    def put(self, psi: Tensor | None) -> None:
        """Take new directions."""
        self.psi = psi
        self.lift()

    def lift(self) -> None:
        """Have `lifted` follow `psi`."""
        if self.psi is None:
            self.lifted = {}
            return
        blocks = self.layout.split(self.psi.sum(0, keepdim=True))
        self.lifted = {
            layer.name: layer.lift(block[0]) for layer, block in zip(self.layers[:-1], blocks[:-1], strict=True)
        }

    def in_turn(self, step: int) -> Mapping[str, Tensor]:
        """Directions of the layers below the head that a step scores: every k-th, from a random first one."""
        if not self.lifted:
            return NO_DIRECTIONS
        if self.turns == 1:
            return self.lifted
        first = turn_of(step, self.turns, self.seed)
        return {name: self.lifted[name] for name in list(self.lifted)[first :: self.turns]}

    def state_dict(self) -> dict[str, Any]:
        state = {"support": self.support, "direction_error": self.error_bound}
        return state if self.psi is None else {**state, "directions": self.psi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        psi = state.get("directions")
        expected = (len(self.support), self.layout.size) if state.get("history") else None
        if (None if psi is None else tuple(psi.shape)) != expected:
            raise StateError("the state is damaged: its directions are missing or have another shape")
        self.support.copy_(state["support"])
        self.error_bound.copy_(state["direction_error"])
        self.put(None if psi is None else psi.to(self.device).clone())
