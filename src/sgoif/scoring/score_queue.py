"""Steps that wait to be scored together: where they are kept, and when there are enough.

On a GPU the cost of scoring is the number of operations, not their size. On the host it is cheap to score few, and
memory counts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from sgoif.core.types import Flags, Indices
from sgoif.scoring.step_batch import TENSORS, Observation

BLOCK_STEPS, BLOCK_BYTES = 64, 24 * 2**20
"""Steps that are scored together, and the most memory that may wait for it."""
HOST_BYTES = 2**20
"""The most memory on the host, where single operations are cheap, so that small blocks cost little more."""


class HostBuffer:
    """Room for the tensors of a block in one place.

    On the host, small tensors that outlive a step lie between what the steps after it need, and make a process grow by
    many times their size.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}
        self.used = 0

    def put(self, step: Observation) -> Observation:
        """The same step with its tensors in the buffer, or as it is where there is no room."""
        size = len(step.logits)
        held = {name: tensor for name in TENSORS if (tensor := getattr(step, name)) is not None}
        if not self.used:
            room = min(BLOCK_STEPS * size, HOST_BYTES // max(step.bytes_per_example, 1) + size)
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


class ScoreQueue:
    """Steps that wait to be scored together; no example waits twice.

    `buffered`: they are copied to a place of their own, and otherwise kept where they are.
    """

    def __init__(self, buffered: bool = False) -> None:
        self._buffer = HostBuffer() if buffered else None
        self._most_bytes = HOST_BYTES if buffered else BLOCK_BYTES
        self.reset()

    def reset(self) -> None:
        """Nothing waits, and nothing is known of the loop."""
        self.steps: list[Observation] = []
        self._named: list[Indices] = []
        self._examples = np.zeros(0, dtype=bool)
        self._bytes = 0
        self._bytes_per_example = 0
        self.copying = self._buffer is None
        """Whether logits are copied: a loop may overwrite them, but for one that never does a copy is a waste."""
        self._last_seen: Observation | None = None
        if self._buffer is not None:
            self._buffer.used = 0

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

    def add(self, step: Observation, everyone: Indices | None = None) -> None:
        """Let a step wait; its examples, and those of the other ranks (`everyone`), must not be waiting yet."""
        if self.copying:
            self._last_seen, step = step, replace(step, logits=step.logits.clone(), version=None)
        elif self._buffer is not None:
            step = self._buffer.put(step)
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
        if self._last_seen is not None:
            self.copying, self._last_seen = self._last_seen.overwritten, None
        elif self.steps and self.steps[-1].overwritten:
            self.copying = True

    def whole(self) -> list[Observation]:
        """The waiting steps whose logits are still what they were."""
        return [step for step in self.steps if not step.overwritten]

    @property
    def full(self) -> bool:
        """Whether a block is complete, by the number of steps or by memory, which grows with the whole batch."""
        return len(self.steps) >= BLOCK_STEPS or self._bytes > self._most_bytes

    def room(self, batch: int) -> int:
        """Steps with so many examples until a block is complete."""
        left = BLOCK_STEPS - len(self.steps)
        each = self._bytes_per_example * batch
        held = self._bytes if self.steps else 0
        return min(left, (self._most_bytes - held) // each + 1) if each else left

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
        if self._buffer is not None:
            self._buffer.used = 0
