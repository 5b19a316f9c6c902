"""The network that all post-hoc detectors look at: trained by the recipe, kept from an earlier start, or given."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgoif.core.serialization import DAMAGE, atomic_write
from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem


def trained_network(problem: Problem, tell: Say, kept: Path | None = None) -> tuple[nn.Module, float]:
    """A network trained by the recipe, and the seconds that took; from the file `kept`, where it is there."""
    model = problem.new_model()
    if kept is not None and kept.is_file():
        stored = _read(kept, problem.device)
        load_into(model, stored.get("state", {}), kept)
        tell(f"the network of {kept.name} is used again")
        return model, float(stored["seconds"])
    start = time.perf_counter()
    epochs = problem.recipe.epochs
    problem.fit(model, problem.batches(), on_epoch=lambda epoch: tell(f"network: epoch {epoch} of {epochs}"))
    if problem.on_gpu:
        torch.cuda.synchronize(problem.device)
    seconds = time.perf_counter() - start
    if kept is not None:
        content = {"state": model.state_dict(), "seconds": seconds}
        atomic_write(kept, lambda file: torch.save(content, file))
    return model, seconds


def given_network(problem: Problem, path: Path) -> nn.Module:
    """The recipe's network with the weights of a file."""
    model = problem.new_model()
    stored = _read(path, problem.device)
    inner = stored.get("state_dict", stored)
    load_into(model, inner if isinstance(inner, Mapping) else {}, path)
    return model


def load_into(model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Weights into a model that they must fit exactly."""
    own = model.state_dict()
    missing, extra = [name for name in own if name not in state], [name for name in state if name not in own]
    other = [name for name in own if name in state and getattr(state[name], "shape", None) != own[name].shape]
    if missing or extra or other:
        found = f"{len(missing)} are missing, {len(extra)} are unknown, {len(other)} have another shape"
        raise SettingError(
            f"the weights of {path} do not fit the network: {found}, for instance {(missing + extra + other)[0]};"
            " name the network with --model"
        )
    model.load_state_dict(dict(state))


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        stored = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise SettingError(f"there is no file of weights {path}") from error
    except (*DAMAGE, pickle.UnpicklingError) as error:
        raise SettingError(f"{path} is not a file of weights that torch.save wrote, or is damaged") from error
    if not isinstance(stored, dict):
        raise SettingError(f"{path} holds a {type(stored).__name__}, not the weights of a network")
    return stored
