"""The deletions of one head: predicted by influence and by Newton's step, removed as shipped, retrained."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.influence import first_order_influence, query_effects
from sgoif.tasks.unlearning.newton import FittedHead, minimise
from sgoif.tasks.unlearning.priority import Limits
from sgoif.tasks.unlearning.removal import RowRemoval, certify, remove_rows
from sgoif.tasks.unlearning.state import CERTIFICATE_MARGIN
from sgoif_bench.unlearning.deletions import Deletion

EXACT = 1e-11
"""Gradient norm at which a head counts as retrained, relative to that of a head of zeros."""
T = TypeVar("T")


@dataclass
class HeadStudy:
    """A fitted head, the held-out examples that judge it, and a test set that nobody else looks at."""

    fitted: FittedHead
    held: HeadData
    test: HeadData

    def __post_init__(self) -> None:
        self.influence = first_order_influence(self.fitted, self.held)
        """Predicted change of the held-out loss for every example alone."""
        self.goal = Limits().logits / float(self.held.norms().median()) / CERTIFICATE_MARGIN
        self._held_before = float(losses(self.held, self.fitted.w).mean())
        self._test_before = losses(self.test, self.fitted.w)
        self._factored = self.fitted.factor  # made before anything is timed

    def retrained(self, rows: Tensor, *, cold: bool = False) -> Tensor:
        """The optimal head without these rows, from the present head or from zeros."""
        objective = self.fitted.objective.leaving_out(rows)
        if cold:
            return minimise(objective, tolerance=EXACT).w
        return minimise(objective, self.fitted.w, factor=self.fitted.factor, tolerance=EXACT).w

    def record(self, deletion: Deletion) -> dict[str, Any]:
        """Everything that is measured about a deletion."""
        fitted, rows = self.fitted, deletion.rows.to(self.fitted.data.device)
        objective = fitted.objective.leaving_out(rows)
        star, retraining = _timed(fitted.data, lambda: self.retrained(rows))
        slack = certify(objective, star).bound
        influence, influencing = _timed(fitted.data, lambda: fitted.w + RowRemoval(fitted, rows).influence())
        newton, stepping = _timed(fitted.data, lambda: fitted.w + RowRemoval(fitted, rows).newton())
        removal, removing = _timed(fitted.data, lambda: remove_rows(fitted, rows, bound=self.goal))
        heads = {"influence": influence, "newton": newton, "removal": removal.w}
        bounds = {name: certify(objective, w).bound for name, w in heads.items()}
        whole = float(torch.linalg.vector_norm(fitted.w - star))
        distance = {name: float(torch.linalg.vector_norm(w - star)) for name, w in heads.items()}
        found = {name: query_effects(self.held, fitted.w, w, bounds[name]) for name, w in heads.items()}
        effects = {name: effect.summary() for name, effect in found.items()}
        was, now = self.held.logits(fitted.w).argmax(1), self.held.logits(star).argmax(1)
        flipped = was != now
        test = losses(self.test, star) - self._test_before
        total, count = fitted.objective.size, len(rows)
        return {
            "kind": deletion.kind,
            "size": count,
            "retrained": float(losses(self.held, star).mean()) - self._held_before,
            "retrained_test": float(test.mean()),
            "test_error": float(test.std(correction=1)) / len(test) ** 0.5,
            "predicted": {
                "first_order": float(self.influence[rows].sum()) * (total - 1) / (total - count),
                **{name: effect.change for name, effect in effects.items()},
            },
            "low": {name: effect.low for name, effect in effects.items()},
            "high": {name: effect.high for name, effect in effects.items()},
            "population_low": {name: effect.population_low for name, effect in effects.items()},
            "population_high": {name: effect.population_high for name, effect in effects.items()},
            "moved": whole,
            "distance": distance,
            "closed": {name: 1 - away / whole if whole > 0 else 1.0 for name, away in distance.items()},
            "bound": bounds,
            "slack": slack,
            "loss_slack": slack * float(self.held.norms().mean()) * 2**0.5,
            "steps": removal.steps,
            "flipped": int(flipped.sum()),
            "announced": {name: effect.flips for name, effect in effects.items()},
            "announced_right": {name: int((effect.flipped & flipped).sum()) for name, effect in found.items()},
            "certain_wrong": {
                name: int((effect.certain & (effect.flipped != flipped)).sum()) for name, effect in found.items()
            },
            "seconds": {
                "influence": influencing,
                "newton": stepping,
                "removal": removing,
                "retraining": retraining,
            },
        }

    def cold_seconds(self, deletions: Sequence[Deletion]) -> list[float]:
        """Seconds of training heads from zeros, without anything that is known from before."""
        data = self.fitted.data
        found = []
        for deletion in deletions:
            rows = deletion.rows.to(data.device)
            found.append(_timed(data, partial(self.retrained, rows, cold=True))[1])
        return found


def losses(data: HeadData, w: Tensor) -> Tensor:
    """Cross-entropy of every example, [n]."""
    return cross_entropy(data.logits(w), data.labels, reduction="none")


def _timed(data: HeadData, work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the seconds that it took, on a GPU too."""
    _wait(data.device)
    start = time.perf_counter()
    found = work()
    _wait(data.device)
    return found, time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
