"""One head: a small network on features, trained with a monitor attached while a part of the examples is held out."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif.core.data import Part, isolated_random_state
from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Indices
from sgoif.errors import HealthWarning, StateError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.channel import SMALLEST
from sgoif.tasks.labels.evidence import Evidence, Rows, anchor_evidence, training_evidence

HIDDEN, EPOCHS = 128, 20
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
WARM_UP = 0.2
"""Share of the steps in which the learning rate rises; then it falls in half a cosine."""
NOISE = 0.3
"""Spread of the noise that is added to features in training, as a part of their own."""
RECIPE = [HIDDEN, EPOCHS, LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, WARM_UP, NOISE]
"""What tells heads of one release from those of another."""
SMALLEST_BATCH, BATCH, MOST_BATCHES = 16, 128, 400
"""Images in a batch: enough for 16 batches an epoch, and for no more than 400."""
HARMED, NAMED_AT_ONCE = 4, 1024
"""Held-out examples that are named for each; examples for which they are named at a time."""
SIGNALS = ("index", "given", "influence", "margin", "logit_margin", "loss")
SCORES = ("influence", "interval_low", "interval_high", "confidence", "n_observations")


@dataclass(frozen=True)
class Head:
    """What the training of one head says of labels."""

    training: Evidence
    held_out: Evidence
    scores: ScoreTable
    """One row for every example that was scored, as `monitor.scores()` has it."""
    harmed: Indices
    """The held-out examples that each of `training` hurts most, by index, [n, 4]; −1: no more."""

    def state_dict(self) -> dict[str, Any]:
        """As tensors by name."""
        found = {"harmed": self.harmed, **{f"scores.{name}": self.scores[name] for name in ("index", *SCORES)}}
        for part, evidence in (("training", self.training), ("held_out", self.held_out)):
            found |= {f"{part}.{name}": getattr(evidence, name) for name in SIGNALS}
            found[f"{part}.probabilities"] = evidence.classes.mean
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """What `state_dict` gave."""
        try:
            found = {name: value.numpy() for name, value in state.items() if isinstance(value, Tensor)}
            training, held_out = (
                evidence({name: found[f"{part}.{name}"] for name in SIGNALS}, found[f"{part}.probabilities"])
                for part in ("training", "held_out")
            )
            scores = ScoreTable({name: found[f"scores.{name}"] for name in ("index", *SCORES)})
            return cls(training, held_out, scores, found["harmed"])
        except (KeyError, AttributeError) as error:
            raise StateError(f"what is kept of a head is not complete ({error!r})") from error


def evidence(signals: dict[str, Any], probabilities: np.ndarray[Any, Any]) -> Evidence:
    """Evidence whose only groups are the classes."""
    rows = Rows(probabilities)
    return Evidence(**signals, groups=rows, classes=rows)


def batch_size(examples: int) -> int:
    """Examples in a batch."""
    return max(min(BATCH, max(SMALLEST_BATCH, examples // 16)), -(-examples // MOST_BATCHES))


def make_head(width: int, classes: int) -> nn.Module:
    """Two layers with fresh weights."""
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


def train_head(
    features: Tensor,
    labels: Tensor,
    classes: int,
    rows: Indices,
    held: Indices,
    *,
    seed: int,
    explained: Indices,
    advance: Callable[[int, int], None],
) -> Head:
    """Train a head of two layers on `rows`; `advance(step, steps)` is called after every step.

    `explained`: the rows for which the held-out examples they hurt are named.
    """
    device = features.device
    dataset = TensorDataset(features, labels.to(device))
    size = min(batch_size(len(rows)), len(rows))
    batches = -(-len(rows) // size)
    steps = EPOCHS * batches
    order = torch.Generator().manual_seed(seed)
    with isolated_random_state(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", HealthWarning)  # what it advises is about a training of one's own
        torch.manual_seed(seed)
        model = make_head(features.shape[1], classes).to(device)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
        )
        with InfluenceMonitor(
            model, optimizer, anchors=Part(dataset, held.tolist()), size=len(labels), seed=seed
        ) as monitor:
            step = 0
            for _ in range(EPOCHS):
                for part in torch.from_numpy(rows)[torch.randperm(len(rows), generator=order)].tensor_split(batches):
                    optimizer.param_groups[0]["lr"] = LEARNING_RATE * _rate(step, steps)
                    x = features[part.to(device)]
                    with monitor.step(part):
                        x = x + NOISE * torch.randn(x.shape, generator=order).to(device)
                        F.cross_entropy(model(x), labels[part].to(device)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    advance(step, steps)
                _score_others(monitor)
            return _collected(monitor, classes, features, labels, explained)


def _rate(step: int, steps: int) -> float:
    rise = WARM_UP * steps
    return step / rise if step < rise else float(0.5 * (1 + np.cos(np.pi * (step - rise) / (steps - rise))))


def _score_others(monitor: InfluenceMonitor) -> None:
    """Score the held-out examples that are no anchors now; anchors are scored whenever they are refreshed."""
    monitor.flush()
    held_out, bank = monitor.held_out, monitor.anchors
    others = np.setdiff1d(np.arange(len(bank.labels)), bank.member_positions.cpu().numpy())
    weight = held_out.step_weight.factor
    held_out.score_into(monitor.anchor_ledger, torch.from_numpy(others), bank.read, weight)


def _collected(monitor: InfluenceMonitor, classes: int, features: Tensor, labels: Tensor, explained: Indices) -> Head:
    held = monitor.held_out_indices()
    assert held is not None
    training, held_out = (_dense(found, classes) for found in (training_evidence(monitor), anchor_evidence(monitor)))
    harmed = np.full((len(labels), HARMED), -1, dtype=np.int64)
    for start in range(0, len(explained), NAMED_AT_ONCE):
        some = torch.from_numpy(explained[start : start + NAMED_AT_ONCE])
        place = monitor.most_harmed(features[some.to(features.device)], labels[some].to(features.device), HARMED)
        position = place.cpu().numpy()
        harmed[some.numpy(), : position.shape[1]] = np.where(position >= 0, held[np.maximum(position, 0)], -1)
    scores = monitor.scores()
    return Head(training, held_out, ScoreTable({n: np.array(scores[n]) for n in ("index", *SCORES)}), harmed)


def _dense(found: Evidence, classes: int) -> Evidence:
    signals = {name: getattr(found, name) for name in SIGNALS}
    return evidence(signals, found.classes.dense(classes, SMALLEST).astype(np.float32))
