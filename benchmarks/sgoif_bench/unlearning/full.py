"""The whole network trained again without a group, several times: what the head's answer says about that.

Trainings with the same initial weights differ by chance alone, since batches fall differently. So each group is judged
by the mean over seeds, and two halves of the seeds say how well that mean is known: their rank correlation, stepped up
to all seeds (Spearman–Brown), is the most that any prediction could reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, Rows
from sgoif_bench.unlearning.measures import Record, column, spearman

Array = NDArray[np.float64]
FIRST_NUMBER = 100
"""Numbers of the networks trained here, apart from the one whose head is studied."""


def train_without(
    problem: Problem, rows: Rows, held: Rows, groups: Sequence[Rows], seeds: int, tell: Say
) -> dict[str, Any]:
    """Held-out and own losses of networks trained with everything and without each group; `groups` index `rows`."""
    everything = [_trained(problem, rows, number) for number in range(seeds)]
    tell(f"{seeds} networks trained with everything")
    base = [problem.predict(model, held) for model in everything]
    labels = torch.from_numpy(problem.labels).to(problem.device)
    held_labels = labels[torch.from_numpy(held).to(problem.device)]
    found: list[dict[str, Any]] = []
    for number, group in enumerate(groups, start=1):
        deleted = rows[group]
        left = np.delete(rows, group)
        own = labels[torch.from_numpy(deleted).to(problem.device)]
        changes, own_changes, differing = [], [], []
        for seed in range(seeds):
            model = _trained(problem, left, seed)
            logits = problem.predict(model, held)
            changes.append(_loss(logits, held_labels) - _loss(base[seed], held_labels))
            before, after = (_loss(problem.predict(m, deleted), own) for m in (everything[seed], model))
            own_changes.append(after - before)
            differing.append(_differing(logits, base[seed]))
        found.append({"size": len(group), "change": changes, "own_change": own_changes, "differing": differing})
        tell(f"{seeds} networks trained without group {number} of {len(groups)}")
    by_chance = [_differing(base[a], base[b]) for a in range(seeds) for b in range(a)]
    losses = [_loss(logits, held_labels) for logits in base]
    return {"groups": found, "losses": losses, "differing_by_chance": by_chance}


def _trained(problem: Problem, rows: Rows, seed: int) -> torch.nn.Module:
    number = FIRST_NUMBER + seed
    torch.manual_seed(1000 * problem.seed + number)
    return problem.fit(problem.new_model(number), problem.batches(rows, number=number))


def _loss(logits: Tensor, labels: Tensor) -> float:
    return float(cross_entropy(logits.double(), labels))


def _differing(one: Tensor, other: Tensor) -> float:
    return float((one.argmax(1) != other.argmax(1)).double().mean())


def compared(full: dict[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """How the head's predicted changes relate to those of whole networks, and what limits that."""
    changes = np.array([group["change"] for group in full["groups"]])
    own = np.array([group["own_change"] for group in full["groups"]])
    predicted = column(records, "predicted", "removal")
    predicted_own = column(records, "own_change")
    return {
        "groups": len(records),
        "seeds": changes.shape[1],
        "held_out": _related(predicted, changes),
        "deleted": _related(predicted_own, own),
        "differing": {
            "head": float(column(records, "differing").mean()),
            "network": float(np.mean([group["differing"] for group in full["groups"]])),
            "chance": float(np.mean(full["differing_by_chance"])),
        },
        "loss": {"mean": float(np.mean(full["losses"])), "spread": float(np.std(full["losses"], ddof=1))},
    }


def _related(predicted: Array, changes: Array) -> dict[str, Any]:
    """Rank correlation with the mean over seeds, its ceiling, and the sizes of effect and chance."""
    mean = changes.mean(1)
    return {
        "spearman": spearman(predicted, mean),
        "ceiling": _ceiling(changes),
        "predicted_size": float(np.abs(predicted).mean()),
        "network_size": float(np.abs(mean).mean()),
        "spread_between_seeds": float(changes.std(1, ddof=1).mean()),
    }


def _ceiling(changes: Array) -> float | None:
    """How well the mean over seeds is known: half against half, stepped up to all seeds, over all ways to halve."""
    seeds = changes.shape[1]
    halves = []
    for chosen in range(1, 2 ** (seeds - 1)):
        mask = np.array([bool(chosen >> place & 1) for place in range(seeds)])
        if mask.sum() != seeds // 2:
            continue
        found = spearman(changes[:, mask].mean(1), changes[:, ~mask].mean(1))
        if found is not None:
            halves.append(found)
    if not halves:
        return None
    half = float(np.mean(halves))
    reliability = 2 * half / (1 + half) if half > -1 else -1.0
    return float(np.sqrt(reliability)) if reliability > 0 else 0.0
