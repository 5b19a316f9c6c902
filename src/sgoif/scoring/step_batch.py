"""Steps that wait to be scored together: what each leaves behind, where it is kept, and when there are enough.

On a GPU the cost of scoring is the number of operations, not their size. On the host it is cheap to score few, and
memory counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.losses import read_labels_off
from sgoif.tracking.validation import Flags, Indices

BLOCK_STEPS, BLOCK_BYTES = 64, 24 * 2**20
"""Steps that are scored together, and the most memory that may wait for it."""
RECORDED_STEPS, RECORDED_BYTES = 24, 14 * 2**20
"""The same for blocks that a GPU repeats from a recording, which holds them a second time."""
SHELF_BYTES = 2**20
"""The most memory on the host, where single operations are cheap, so that small blocks cost little more."""


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
    version: int | None = None
    """How often the logits had been written to when the step ended; None: they are not the training loop's."""

    @property
    def overwritten(self) -> bool:
        """Whether the training loop has written into the logits since, as `logits.sigmoid_()` does."""
        return self.version is not None and self.logits._version != self.version

    def copied(self) -> Observation:
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


def make_alike(steps: Sequence[Observation]) -> None:
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


def lined_up(steps: Sequence[Observation]) -> tuple[dict[str, int], list[list[Tensor]]]:
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


def together(places: dict[str, int], tensors: Sequence[Tensor], indices: Indices) -> Observation:
    """Several steps as one: their tensors, put together, and where each name stands among them."""
    found: dict[str, Any] = {name: tensors[places[name]] if name in places else None for name in TENSORS}
    return Observation(indices, **found)


def named(steps: Sequence[Observation]) -> Indices:
    """The examples of several steps."""
    return np.concatenate([step.indices for step in steps])


class Shelf:
    """Room for the tensors of a block in one place.

    On the host, small tensors that outlive a step lie between what the steps after it need, and make a process grow by
    many times their size.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}
        self.used = 0

    def put(self, step: Observation) -> Observation:
        """The same step with its tensors on the shelf, or as it is where there is no room."""
        size = len(step.logits)
        held = {name: tensor for name in TENSORS if (tensor := getattr(step, name)) is not None}
        if not self.used:
            room = min(BLOCK_STEPS * size, SHELF_BYTES // max(step.bytes_per_example, 1) + size)
            self._make(held, room)
        rows = slice(self.used, self.used + size)
        if not all(self._fits(name, tensor, rows.stop) for name, tensor in held.items()):
            return step.copied()
        placed: dict[int, Tensor] = {}  # one tensor may stand for two names
        for name, tensor in held.items():
            if id(tensor) not in placed:
                placed[id(tensor)] = self._rows[name][rows].copy_(tensor)
        self.used = rows.stop
        found: dict[str, Any] = {name: placed[id(tensor)] for name, tensor in held.items()}
        return replace(step, **found, version=None)

    def _make(self, held: dict[str, Tensor], room: int) -> None:
        for name, tensor in held.items():
            if not self._fits(name, tensor, room):
                self._rows[name] = tensor.new_empty(room, *tensor.shape[1:])

    def _fits(self, name: str, tensor: Tensor, rows: int) -> bool:
        there = self._rows.get(name)
        alike = there is not None and there.dtype == tensor.dtype and there.shape[1:] == tensor.shape[1:]
        return alike and there is not None and len(there) >= rows


class WaitingSteps:
    """Steps that wait to be scored together; no example waits twice.

    `shelved`: they are copied to a place of their own, and otherwise kept where they are.
    """

    def __init__(self, shelved: bool = False) -> None:
        self._shelf = Shelf() if shelved else None
        self.steps: list[Observation] = []
        self._named: list[Indices] = []
        self._examples = np.zeros(0, dtype=bool)
        self._bytes = 0
        self._bytes_per_example = 0
        self.copying = not shelved
        """Whether logits are copied: a loop may overwrite them, but for one that never does a copy is a waste."""
        self._trial: Observation | None = None

    def reserve(self, count: int) -> None:
        """Make room for so many examples."""
        if count > len(self._examples):
            self._examples = np.concatenate([self._examples, np.zeros(2 * count - len(self._examples), dtype=bool)])

    def held(self, indices: Indices) -> Flags:
        """Which of these examples are waiting."""
        return self._examples[indices]

    def meets(self, indices: Indices) -> bool:
        """Whether one of these examples is waiting."""
        return bool(np.count_nonzero(self.held(indices)))

    def differs(self, examples: int) -> bool:
        """Whether steps with another number of examples are waiting."""
        return bool(self.steps) and len(self.steps[-1].logits) != examples

    def add(self, step: Observation, everyone: Indices | None = None) -> None:
        """Let a step wait; its examples, and those of the other ranks (`everyone`), must not be waiting yet."""
        if self.copying:
            self._trial, step = step, replace(step, logits=step.logits.clone(), version=None)
        elif self._shelf is not None:
            step = self._shelf.put(step)
        named = step.indices if everyone is None else everyone
        if not self.steps:
            self._bytes, self._bytes_per_example = 0, step.bytes_per_example
        self._bytes += self._bytes_per_example * len(named)
        self._named.append(named)  # first: what is named here is let go of by `drop`, whatever an interrupt cuts short
        self._examples[named] = True
        self.steps.append(step)

    def add_together(self, steps: Sequence[Observation], indices: Indices, sizes: Sequence[int]) -> bool:
        """Let steps of so many examples wait, unless one of these is named twice or waiting; whether they do."""
        held = sum(map(len, self._named))
        self._examples[indices] = True
        if np.count_nonzero(self._examples) != held + len(indices):
            self._examples[indices] = False
            for named in self._named:
                self._examples[named] = True
            return False
        if not self.steps:
            self._bytes, self._bytes_per_example = 0, steps[0].bytes_per_example
        self._bytes += self._bytes_per_example * len(indices)
        end = 0
        for step, size in zip(steps, sizes, strict=True):
            end += size
            step.indices = indices[end - size : end]
        self._named.append(indices)
        self.steps.extend(steps)
        return True

    def watch(self) -> None:
        """Learn from the step before whether this loop overwrites its logits."""
        if self._trial is not None:
            self.copying, self._trial = self._trial.overwritten, None
        elif self.steps and self.steps[-1].overwritten:
            self.copying = True

    def whole(self) -> list[Observation]:
        """The waiting steps whose logits are still what they were."""
        return [step for step in self.steps if not step.overwritten]

    def full(self, recorded: bool) -> bool:
        """Whether a block is complete, by the number of steps or by memory, which grows with the whole batch."""
        steps, size = self._limits(recorded)
        return len(self.steps) >= steps or self._bytes > size

    def room(self, batch: int, recorded: bool) -> int:
        """Steps with so many examples until a block is complete."""
        steps, size = self._limits(recorded)
        left = steps - len(self.steps)
        each = self._bytes_per_example * batch
        held = self._bytes if self.steps else 0
        return min(left, (size - held) // each + 1) if each else left

    def take(self) -> list[Observation]:
        """All waiting steps; nothing waits afterwards.

        Steps whose logits were overwritten are left out, and from then on logits are copied.
        """
        whole = self.whole()
        self.copying |= len(whole) < len(self.steps)
        self.drop()
        return whole

    def drop(self) -> None:
        """Let nothing wait any longer."""
        for named in self._named:
            self._examples[named] = False
        self.steps, self._named = [], []
        if self._shelf is not None:
            self._shelf.used = 0

    def _limits(self, recorded: bool) -> tuple[int, int]:
        if recorded:
            return min(RECORDED_STEPS, BLOCK_STEPS), RECORDED_BYTES
        return BLOCK_STEPS, BLOCK_BYTES if self._shelf is None else SHELF_BYTES
