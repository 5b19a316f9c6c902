"""A monitor's state: collected, restored, saved and loaded, exactly.

Several ranks have one state together: their ledgers merged, their directions and waiting steps side by side. It does
not depend on how many they were, so a run may go on with more or fewer of them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sgoif.core.serialization import load_state, nest, save_state, unnest
from sgoif.distributed.communicator import Ranks
from sgoif.errors import StateError
from sgoif.scoring.step_batch import Observation, WaitingSteps

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

VERSION = 4
PARTS = (
    "anchors",
    "curvature",
    "solver",
    "controller",
    "competence",
    "cadence",
    "squash",
    "anchor_squash",
    "ledger",
    "anchor_ledger",
)
TENSORS = ("support", "direction_error", "_nonfinite")
FREE = frozenset({"layers", "level", "budget", "allow_duplicates", "skip_nonfinite", "anchor_batch", "recorded"})
"""Settings that may differ on resume: they do not change what a score is. Layers are compared by their shapes."""
FIXED = ("controller.", "competence.", "cadence.", "squash.", "anchor_squash.", *TENSORS)
"""Tensors that keep their size all through a run."""


def collect(monitor: InfluenceMonitor) -> dict[str, Any]:
    """Tensors and plain values, flat; `torch.load(..., weights_only=True)` and JSON can carry it."""
    monitor.settle()
    waiting = [_whole(step, monitor.ranks) for step in monitor._waiting.whole()]
    state: dict[str, Any] = {
        "version": VERSION,
        "layers": _layers(monitor),
        "settings": _settings(monitor),
        "steps": monitor.steps,
        "batch": monitor._batch,
        "pending": [_types(step) for step in waiting],
        "history": [dict(entry) for entry in monitor.history],
        "autocast": str(monitor._autocast).removeprefix("torch.") if monitor._autocast else "",
    }
    for number, step in enumerate(waiting):
        state.update(nest(f"waiting.{number}", _pack(step)))
    for name in TENSORS:
        state[name] = getattr(monitor, name).clone()
    if monitor.directions is not None:
        state["directions"] = monitor.directions.clone()
    for part in PARTS:
        whole = monitor.record() if part == "ledger" else getattr(monitor, part)
        state.update(nest(part, whole.state_dict()))
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def restore(monitor: InfluenceMonitor, state: dict[str, Any]) -> None:
    """Load a state into a monitor made with the same model, anchors and settings."""
    if state.get("version") != VERSION:
        raise StateError(f"the state has version {state.get('version')!r}; this release reads version {VERSION}")
    layers = _layers(monitor)
    if [list(layer) for layer in state.get("layers", [])] != layers:
        raise StateError(
            f"the state is from another model or other watched layers: it has {state.get('layers')}, this model"
            f" {layers}. Resume with the model and settings that the run was started with"
        )
    saved = state.get("settings", {})
    for name, value in _settings(monitor).items():
        if name not in saved or saved[name] != value:
            raise StateError(
                f"the state was saved with {name}={saved.get(name)!r}, this monitor has {name}={value!r}. Resume with"
                " the settings that the run was started with"
            )
    before, last = collect(monitor), monitor._last
    _check_shapes(monitor, before, state)
    try:
        _apply(monitor, state)
    except Exception as error:
        _apply(monitor, before)  # a half-loaded state would give wrong scores later
        monitor._last = last
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state is damaged or incomplete: {type(error).__name__}: {error}") from error


def _check_shapes(monitor: InfluenceMonitor, mine: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise where a tensor whose size does not change during a run is missing or has another one."""
    for key, value in mine.items():
        if isinstance(value, torch.Tensor) and key.startswith(FIXED):
            found = state.get(key)
            if not isinstance(found, torch.Tensor) or found.shape != value.shape:
                raise StateError(f"the state is damaged or from another model: {key!r} is missing or has another shape")
    directions = state.get("directions")
    expected = (len(monitor.group_names), monitor.layout.size) if state.get("history") else None
    if (None if directions is None else tuple(directions.shape)) != expected:
        raise StateError("the state is damaged: its directions are missing or have another shape")


def _apply(monitor: InfluenceMonitor, state: dict[str, Any]) -> None:
    for part in PARTS:
        getattr(monitor, part).load_state_dict(unnest(part, state))
    if monitor.ranks.rank > 0:
        monitor.ledger.forget()  # what was seen so far counts once: on the first rank
    for name in TENSORS:
        setattr(monitor, name, state[name].to(monitor.device).clone())
    monitor.steps = int(state["steps"])
    monitor.history = [dict(entry) for entry in state["history"]]
    monitor._autocast = getattr(torch, state["autocast"]) if state["autocast"] in ("float16", "bfloat16") else None
    monitor._last, monitor._waiting, monitor._patience = None, WaitingSteps(monitor._on_host), 0
    for step in _unpack(state["pending"], unnest("waiting", state), monitor.device):
        monitor._waiting.reserve(int(step.indices.max()) + 1)
        monitor._waiting.add(_part(step, monitor.ranks), step.indices)
    monitor._batch = int(state["batch"])
    monitor.directions = state["directions"].to(monitor.device).clone() if "directions" in state else None
    monitor.lift_directions()


def _types(step: Observation) -> dict[str, str]:
    """Types of a step's tensors; the low-precision ones are stored as float32."""
    values = {f.name: getattr(step, f.name) for f in fields(step)}
    return {name: str(v.dtype).removeprefix("torch.") for name, v in values.items() if isinstance(v, torch.Tensor)}


def _pack(step: Observation) -> dict[str, Any]:
    """Tensors of a step in types that numpy knows, and its indices."""
    packed = {name: getattr(step, name) for name in _types(step)}
    packed = {name: v.float() if v.dtype == torch.bfloat16 else v for name, v in packed.items()}
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


def save(monitor: InfluenceMonitor, path: str | os.PathLike[str]) -> None:
    """Write the state of a monitor to a file; of several ranks the first writes it, and the others wait for that."""
    state = collect(monitor)
    monitor.ranks.agree(lambda: save_state(path, state) if monitor.ranks.rank == 0 else None)


def load(monitor: InfluenceMonitor, path: str | os.PathLike[str]) -> None:
    """Read a file that `save` wrote into a monitor."""
    restore(monitor, load_state(path))


def _whole(step: Observation, ranks: Ranks) -> Observation:
    """A waiting step with the examples of all ranks."""
    if ranks.size == 1:
        return step
    values = {f.name: getattr(step, f.name) for f in fields(step)}
    joined: dict[str, Any] = {
        name: ranks.gathered(value) for name, value in values.items() if isinstance(value, torch.Tensor)
    }
    return replace(step, indices=ranks.gathered(torch.from_numpy(step.indices)).numpy(), **joined)


def _part(step: Observation, ranks: Ranks) -> Observation:
    """This rank's share of a whole step."""
    if ranks.size == 1:
        return step
    rows = ranks.share(len(step.indices))
    values = {f.name: getattr(step, f.name) for f in fields(step)}
    cut: dict[str, Any] = {
        name: value[rows].clone() for name, value in values.items() if isinstance(value, torch.Tensor)
    }
    return replace(step, indices=step.indices[rows], **cut, version=None)


def _settings(monitor: InfluenceMonitor) -> dict[str, Any]:
    """The settings a score depends on, as JSON would give them back."""
    values = {name: value for name, value in asdict(monitor.settings).items() if name not in FREE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _layers(monitor: InfluenceMonitor) -> list[list[Any]]:
    return [[block.name, block.rows, block.cols] for block in monitor.layout.blocks]
