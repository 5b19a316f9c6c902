"""A monitor's state: collected from its parts, restored, exactly.

Several ranks have one state together: their ledgers merged, their directions and waiting steps side by side. It does
not depend on how many they were, so a run may go on with more or fewer of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from sgoif.core.parameter_layout import Layout
from sgoif.core.serialization import nest, unnest
from sgoif.distributed.communicator import Communicator
from sgoif.errors import StateError
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.score_queue import ScoreQueue
from sgoif.scoring.step_batch import Observation
from sgoif.settings import Settings

VERSION = 6
FREE = frozenset(
    "layers level budget allow_duplicates skip_nonfinite anchor_batch execution".split()  # noqa: SIM905
)
"""Settings that may differ on resume: they do not change what a score is. Layers are compared by their shapes."""
FIXED = (
    *("controller.", "step_weight.", "schedule.", "scaling.", "anchor_scaling."),
    *("support", "direction_error", "_nonfinite"),
)
"""Tensors that keep their size all through a run."""


class Stateful(Protocol):
    """A part of a monitor that can be saved."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoint:
    """The state of a monitor, by part: `parts` under their names, `top` beside them."""

    def __init__(
        self, parts: Mapping[str, Stateful], top: tuple[Stateful, ...], layout: Layout, settings: Settings
    ) -> None:
        self._parts, self._top = parts, top
        self._layers = [[block.name, block.rows, block.cols] for block in layout.blocks]
        values = {name: value for name, value in asdict(settings).items() if name not in FREE}
        self._settings = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def collect(self) -> dict[str, Any]:
        """Tensors and plain values, flat; `torch.load(..., weights_only=True)` and JSON can carry it."""
        state: dict[str, Any] = {
            "version": VERSION,
            "layers": [list(layer) for layer in self._layers],
            "settings": dict(self._settings),
        }
        for part in self._top:
            state.update(part.state_dict())
        for name, part in self._parts.items():
            state.update(nest(name, part.state_dict()))
        return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Load a state of a monitor with the same model, anchors and settings, or change nothing."""
        if state.get("version") != VERSION:
            raise StateError(f"the state has version {state.get('version')!r}; this release reads version {VERSION}")
        if [list(layer) for layer in state.get("layers", [])] != self._layers:
            raise StateError(
                f"the state is from another model or other watched layers: it has {state.get('layers')}, this model"
                f" {self._layers}. Resume with the model and settings that the run was started with"
            )
        saved = state.get("settings", {})
        for name, value in self._settings.items():
            if name not in saved or saved[name] != value:
                raise StateError(
                    f"the state was saved with {name}={saved.get(name)!r}, this monitor has {name}={value!r}. Resume"
                    " with the settings that the run was started with"
                )
        before = self.collect()
        _check_shapes(before, state)
        try:
            self._apply(state)
        except Exception as error:
            self._apply(before)  # a half-loaded state would give wrong scores later
            if isinstance(error, StateError):
                raise
            raise StateError(f"the state is damaged or incomplete: {type(error).__name__}: {error}") from error

    def _apply(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(unnest(name, state))
        for part in self._top:
            part.load_state_dict(state)


def _check_shapes(mine: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise where a tensor whose size does not change during a run is missing or has another one."""
    for key, value in mine.items():
        if isinstance(value, torch.Tensor) and key.startswith(FIXED):
            found = state.get(key)
            if not isinstance(found, torch.Tensor) or found.shape != value.shape:
                raise StateError(f"the state is damaged or from another model: {key!r} is missing or has another shape")


class LedgerState:
    """The ledgers of all ranks, as one part."""

    def __init__(self, ledger: Ledger, record: Callable[[], Ledger], communicator: Communicator) -> None:
        self._ledger, self._record, self._communicator = ledger, record, communicator

    def state_dict(self) -> dict[str, Any]:
        return self._record().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ledger.load_state_dict(state)
        if self._communicator.rank > 0:
            self._ledger.forget()  # what was seen so far counts once: on the first rank


class QueueState:
    """The steps that wait for their scores, with the examples of all ranks."""

    def __init__(self, queue: ScoreQueue, communicator: Communicator, device: torch.device) -> None:
        self._queue, self._communicator, self._device = queue, communicator, device

    def state_dict(self) -> dict[str, Any]:
        waiting = [_whole(step, self._communicator) for step in self._queue.whole()]
        state: dict[str, Any] = {"pending": [_types(step) for step in waiting]}
        for number, step in enumerate(waiting):
            state.update(nest(f"waiting.{number}", _pack(step)))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.reset()
        for step in _unpack(state["pending"], unnest("waiting", state), self._device):
            self._queue.reserve(int(step.indices.max()) + 1)
            self._queue.add(_part(step, self._communicator), step.indices)


def _tensors(step: Observation) -> dict[str, torch.Tensor]:
    values = {f.name: getattr(step, f.name) for f in fields(step)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _types(step: Observation) -> dict[str, str]:
    """Types of a step's tensors; the low-precision ones are stored as float32."""
    return {name: str(value.dtype).removeprefix("torch.") for name, value in _tensors(step).items()}


def _pack(step: Observation) -> dict[str, Any]:
    """Tensors of a step in types that numpy knows, and its indices."""
    packed = {name: v.float() if v.dtype == torch.bfloat16 else v for name, v in _tensors(step).items()}
    return {**packed, "indices": torch.from_numpy(step.indices)}


def _unpack(types: list[dict[str, str]], state: dict[str, Any], device: torch.device) -> list[Observation]:
    steps = []
    for number, kinds in enumerate(types):
        stored = unnest(str(number), state)
        tensors: dict[str, Any] = {f.name: None for f in fields(Observation) if f.name not in ("indices", "version")}
        tensors.update({name: stored[name].to(device, getattr(torch, kind)) for name, kind in kinds.items()})
        if any(len(value) != len(stored["indices"]) for value in tensors.values() if value is not None):
            raise StateError("the state is damaged: the parts of a step that waits to be scored differ in length")
        steps.append(Observation(stored["indices"].numpy().astype(np.int64), **tensors))
    return steps


def _whole(step: Observation, communicator: Communicator) -> Observation:
    """A waiting step with the examples of all ranks."""
    if communicator.size == 1:
        return step
    joined: dict[str, Any] = {name: communicator.gathered(value) for name, value in _tensors(step).items()}
    return replace(step, indices=communicator.gathered(torch.from_numpy(step.indices)).numpy(), **joined)


def _part(step: Observation, communicator: Communicator) -> Observation:
    """This rank's share of a whole step."""
    if communicator.size == 1:
        return step
    rows = communicator.share(len(step.indices))
    cut: dict[str, Any] = {name: value[rows].clone() for name, value in _tensors(step).items()}
    return replace(step, indices=step.indices[rows], **cut, version=None)
