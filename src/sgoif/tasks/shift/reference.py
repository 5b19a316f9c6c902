"""What a sentinel compares with: sums over examples that belong, a sample of them, and those that calibrate.

The reference may hold wrong labels. Those would widen every class, so an example counts by the confidence that the gate
has in it, c = clip(1 − ‖p − e_y‖ / τ, 0, 1): its residual, once the network's answer p is held against its label y. No
example counts for nothing at all, so that a class the network cannot tell still has a centre.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.shift.moments import Layer, Sums
from sgoif.tasks.shift.neighbours import Neighbours, Sample
from sgoif.tasks.shift.network import Network, Seen

TOLERANCE = 1.0
"""τ of the gate: a residual norm lies between 0 (right and sure) and √2 (wrong and sure)."""
LEAST_CONFIDENCE = 0.01
MOST_CALIBRATION = 10_000


class Reference:
    """The sums of every layer over the examples that belong, and a sample of these."""

    def __init__(self, network: Network, gate: bool) -> None:
        self.network, self.gate = network, gate
        self.sums: list[Sums] = []
        self.sample = Sample()

    def add(
        self, seen: Seen, labels: Tensor | None, chosen: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        """Fold a batch in: those `chosen`, by what each counts."""
        device = seen.logits.device
        classes = max(2, self.network.classes)
        answers = answers_of(seen.logits)
        y = answers.argmax(1) if labels is None else labels.to(device)
        if labels is not None and bool(((y < 0) | (y >= classes)).any()):
            raise SettingError(f"labels must lie between 0 and {classes - 1}; found {int(y.min())} to {int(y.max())}")
        w = torch.ones(len(y), device=device) if weights is None else weights.to(device)
        if self.gate and labels is not None:
            w = w * confidence(answers, y).clamp_min(LEAST_CONFIDENCE)
        if chosen is not None:
            w = w * chosen.to(device)
        finite = torch.isfinite(answers).all(1)
        w = w * finite
        activations = activations_of(seen)
        if not self.sums:
            self.sums = [Sums(a.shape[1], 1, device) for a in activations[:-1]]
            self.sums.append(Sums(activations[-1].shape[1], classes, device))
        one = torch.zeros_like(y)
        for number, (sums, a) in enumerate(zip(self.sums, activations, strict=True)):
            sums.add(torch.nan_to_num(a), y if number == len(activations) - 1 else one, w)
        self.sample.add(activations, finite if chosen is None else finite & chosen.to(device))

    def layers(self) -> list[Layer]:
        """Where the activations of every layer lie."""
        return [sums.layer() for sums in self.sums]

    def neighbours(self) -> Neighbours:
        """Some of the examples themselves."""
        return self.sample.neighbours()


def confidence(answers: Tensor, labels: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """c of examples with these probabilities [n, C] and labels."""
    residual: Tensor = (answers - nn.functional.one_hot(labels, answers.shape[1])).norm(dim=1)
    return (1 - residual / tolerance).clamp(0, 1)


class Kept:
    """Activations and logits of the examples that calibrate."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.activations: list[tuple[Tensor, ...]] = []
        self.count = 0

    def add(self, seen: Seen, chosen: Tensor) -> None:
        """Keep those chosen, while there is room."""
        rows = chosen.nonzero().squeeze(1)[: MOST_CALIBRATION - self.count].to(seen.logits.device)
        if len(rows):
            self.count += len(rows)
            self.logits.append(seen.logits[rows])
            self.activations.append(tuple(a[rows] for a in activations_of(seen)))

    def take(self, rows: Tensor) -> Kept:
        """Some of them, by number."""
        part = Kept()
        whole = [torch.cat(parts) for parts in zip(*self.activations, strict=True)]
        logits = torch.cat(self.logits)
        at = rows.to(logits.device)
        part.logits, part.activations, part.count = [logits[at]], [tuple(a[at] for a in whole)], len(rows)
        return part

    def seen(self) -> Seen:
        """All of them as one batch; the images are gone."""
        logits = torch.cat(self.logits)
        *stages, features = (torch.cat(parts) for parts in zip(*self.activations, strict=True))
        return Seen(logits, logits, features, tuple(stage.unsqueeze(2) for stage in stages))


def activations_of(seen: Seen) -> tuple[Tensor, ...]:
    """What is compared with the reference: pooled stages, and last the input of the head."""
    return (*seen.pooled, seen.features.flatten(1))


def answers_of(logits: Tensor) -> Tensor:
    """Probabilities [n, C]."""
    return two_sided(logits).softmax(1)


def two_sided(logits: Tensor) -> Tensor:
    """The logits; a single one as those of two classes."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
