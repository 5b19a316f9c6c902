"""What steps leave behind for scoring, and how several are put together."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sgoif.core.logits import version_of
from sgoif.core.losses import read_labels_off
from sgoif.core.objective import Objective
from sgoif.core.types import Indices


@dataclass
class Observation:
    """What one step leaves behind for scoring: small tensors, nothing computed yet."""

    indices: Indices
    logits: Tensor
    logits_delta: Tensor
    inputs: Tensor
    """Of the head."""
    delta: Tensor
    """Of the head."""
    response: Tensor | None
    """Σ over the layers below the head, those whose turn it is, of ⟨δ_i, layer(a_i; ψ)⟩, [B]."""
    target: Tensor | None
    """As the loss takes it (`core.objective.Target`); None: labels are read off the gradient."""
    version: int | None = None
    """How often the logits had been written to when the step ended; None: they are not the training loop's."""
    label: Tensor | None = None
    """The class of every example where the target is something else."""

    @property
    def overwritten(self) -> bool:
        """Whether the training loop has written into the logits since, as `logits.sigmoid_()` does."""
        return self.version is not None and version_of(self.logits) != self.version

    def copied(self) -> Self:
        """The same with tensors of its own."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        changes: dict[str, Any] = {name: value.clone() for name, value in mine.items() if isinstance(value, Tensor)}
        return replace(self, **changes, version=None)

    @property
    def bytes_per_example(self) -> int:
        kept = (self.logits, self.logits_delta, self.inputs, self.delta)
        return sum(t.shape[1:].numel() * t.element_size() for t in kept)


TENSORS = tuple(f.name for f in fields(Observation) if f.name not in ("indices", "version"))
"""What a step leaves behind on the device."""


def make_alike(steps: Sequence[Observation], objective: Objective) -> None:
    """Have every step leave behind what one of them does.

    A loop may give targets now and then, and a layer below the head may be left out of a step.
    """
    if any(step.response is not None for step in steps):
        for step in steps:
            if step.response is None:
                step.response = step.logits.new_zeros(len(step.logits), dtype=torch.float32)
    if any(step.target is not None for step in steps):
        for step in steps:
            if step.target is None:
                step.target = read_labels_off(step.logits_delta, step.logits.float())
    if any(step.label is not None for step in steps):
        for step in steps:
            if step.label is None and step.target is not None:
                step.label, step.target = step.target, objective.as_mixture(step.target)


def group_tensors(steps: Sequence[Observation]) -> tuple[dict[str, int], list[list[Tensor]]]:
    """The tensors of several steps, one list of them for each that is to be put together, and where each name stands.

    The gradient of the logits and that of the head are often the same, and then stand in one place.
    """
    places: dict[str, int] = {}
    parts: dict[tuple[int, ...], list[Tensor]] = {}
    for name in TENSORS:
        if getattr(steps[0], name) is not None:
            part = [getattr(step, name) for step in steps]
            parts.setdefault(same := tuple(map(id, part)), part)
            places[name] = list(parts).index(same)
    return places, list(parts.values())


def stack_steps(places: dict[str, int], tensors: Sequence[Tensor], indices: Indices) -> Observation:
    """Several steps as one: their tensors, put together, and where each name stands among them."""
    found: dict[str, Any] = {name: tensors[places[name]] if name in places else None for name in TENSORS}
    return Observation(indices, **found)


def named(steps: Sequence[Observation]) -> Indices:
    """The examples of several steps."""
    return np.concatenate([step.indices for step in steps])
