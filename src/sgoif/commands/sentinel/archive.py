"""The file of a sentinel: what it learned, and beside it which model and preparation go with it.

One archive without pickle: the arrays of `Sentinel.save` and a JSON text with the entry "about". The model's weights
stay where they are; their digest is kept, since a sentinel says nothing true about other weights.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgoif.audit.batches import Normalisation
from sgoif.audit.errors import ModelError
from sgoif.audit.models import BUILT_IN, load_weights, make_model, resolve, trusted_model
from sgoif.audit.plan import choose_device
from sgoif.audit.settings import LARGEST_IMAGE, SMALLEST_IMAGE
from sgoif.commands.sentinel.inputs import Preparation
from sgoif.commands.sentinel.settings import OpenSettings
from sgoif.core.serialization import load_state, save_state, unnest
from sgoif.errors import StateError
from sgoif.images.errors import cannot_write, make_writable
from sgoif.images.text import shown
from sgoif.tasks.ood import Sentinel

CHECKPOINT = ".npz"
"""Weights of an audit lie in its checkpoint; any other file is safetensors."""
FIT = "`sgoif sentinel fit`"
LONGEST_REASON = 200
"""Characters of what torch says about weights that do not fit; it lists all of them."""
KEPT_BACK = "one image in five"
"""How a calibration is described that was taken from the images learned from."""


@dataclass(frozen=True)
class About:
    """Which model a sentinel belongs to, and how its images are prepared."""

    model: str
    weights: str | None
    """Absolute path. None: the factory loads them itself."""
    digest: str
    """Of the weights in use."""
    class_names: list[str]
    image_size: int
    channels: int
    mean: list[float]
    """In [0, 255], as `spread`."""
    spread: list[float]
    images: int
    """So many images that belong were learned from."""
    calibrated_on: str
    """Where the calibration comes from, in words."""

    @property
    def preparation(self) -> Preparation:
        return Preparation(self.image_size, self.channels, Normalisation(tuple(self.mean), tuple(self.spread)))


@dataclass(frozen=True)
class Opened:
    """A sentinel ready for use."""

    sentinel: Sentinel
    about: About
    device: torch.device
    batch_size: int

    @property
    def smallest_p(self) -> float:
        """No p-value is smaller with this calibration."""
        return 1 / (len(self.sentinel.calibration) + 1)


def check_model(name: str, weights: Path | None, device: torch.device) -> None:
    """Raise before any image is read where the model cannot be built."""
    resolve(name, device)
    if weights is None and name in BUILT_IN:
        raise ModelError(
            f"model {name!r} starts with random weights, about which there is nothing to learn; give the trained ones"
            " with --weights FILE.safetensors"
        )
    if weights is not None and not weights.is_file():
        raise ModelError(f"--weights {weights}: there is no such file")


def build_model(
    name: str, weights: Path | None, device: torch.device, *, channels: int, classes: int, size: int
) -> nn.Module:
    """The model with its trained weights, on the device."""
    model = make_model(name, channels, classes, size)
    if weights is not None and weights.suffix == CHECKPOINT:
        load_checkpoint(model, weights)
    elif weights is not None:
        fresh = load_weights(model, weights)
        if fresh:
            raise ModelError(
                f"--weights {weights} has no {', '.join(fresh)} for a model with {classes} classes; say how many it was"
                " trained with, or name them, with --classes"
            )
    return model.to(device).eval()


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """The weights that an audit ended with."""
    found = unnest("model", load_state(path))
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        reason = shown(str(error).splitlines()[-1].strip(), LONGEST_REASON)[1:-1]
        raise ModelError(
            f"the checkpoint {path} does not hold the weights of this model ({reason}). Name the model that it was"
            " made with (--model)"
        ) from error


def digest(model: nn.Module) -> str:
    """Changes when any weight does."""
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().cpu().contiguous().reshape(-1)
        sha.update(f"{name} {plain.dtype} {len(plain)};".encode())
        sha.update(plain.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def check_target(path: Path) -> None:
    """Raise before any work where a sentinel cannot be written, or would replace something else."""
    if path.is_dir():
        raise StateError(f"--out {path} is a folder; give the name of a file, e.g. {path / 'sentinel.npz'}")
    if path.exists() and not _is_sentinel(path):
        raise StateError(f"--out {path} exists and is not a sentinel; it is left as it is. Choose another name")
    make_writable(path.absolute().parent)


def save(path: Path, sentinel: Sentinel, about: About) -> None:
    """Write sentinel and description as one file, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        sentinel.save(Path(folder) / "sentinel.npz")
        state = load_state(Path(folder) / "sentinel.npz")
    try:
        save_state(path, {**state, "about": asdict(about)})
    except OSError as error:
        raise cannot_write(path.absolute().parent, error) from error


def open_sentinel(settings: OpenSettings, say: Callable[[str], None]) -> Opened:
    """A sentinel with the model that it was fitted to; `say` tells where the user names it otherwise than the file."""
    path = settings.path
    if not path.exists():
        raise StateError(f"--sentinel {path}: there is no such file; make one with {FIT}")
    about = _about(path)
    device = choose_device(settings.device)
    name = trusted_model(about.model, settings.model, f"the sentinel {shown(path)}", say)
    about = replace(about, model=name)
    weights = settings.weights or _weights(path, about)
    check_model(name, weights, device)
    model = build_model(
        name,
        weights,
        device,
        channels=about.channels,
        classes=len(about.class_names),
        size=about.image_size,
    )
    if digest(model) != about.digest:
        where = f"those of {shown(weights)}" if weights else f"those that {shown(about.model)} loads"
        raise StateError(
            f"the sentinel {path} was fitted to other weights than {where}; give the right ones with --weights, or fit"
            f" it again with {FIT}"
        )
    return Opened(Sentinel.load(path, model), about, device, settings.batch_size)


def _weights(path: Path, about: About) -> Path | None:
    """Where the weights were, or beside the sentinel."""
    if about.weights is None:
        return None
    there = Path(about.weights)
    for place in (there, path.absolute().parent / there.name):
        if place.is_file():
            return place
    raise ModelError(
        f"the weights of the sentinel {path} are neither at {shown(there)} nor beside it; say where they are with"
        " --weights"
    )


def _about(path: Path) -> About:
    state = _state(path)
    if state.get("kind") != "sentinel":
        raise StateError(f"--sentinel {path} is not a sentinel; make one with {FIT}")
    if "about" not in state:
        raise StateError(
            f"--sentinel {path} was saved from Python and does not say which model and preparation go with it; use it"
            f" there (Sentinel.load), or make one with {FIT}"
        )
    try:
        about = About(**state["about"])
    except TypeError as error:
        raise StateError(f"--sentinel {path} comes from another version of sgoif ({error}); fit it again") from error
    if not _is_sound(about):
        raise StateError(f"--sentinel {path} is damaged: what it says of its model makes no sense; fit it again")
    return about


def _is_sound(about: About) -> bool:
    """Whether the parts of a description are what others rely on; the name of the model is judged by itself."""
    if not all(isinstance(part, list) and part for part in (about.class_names, about.mean, about.spread)):
        return False
    weights = [] if about.weights is None else [about.weights]
    texts = (about.digest, about.calibrated_on, *weights, *about.class_names)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in (*about.mean, *about.spread))
        and all(type(number) is int for number in (about.image_size, about.channels, about.images))
        and SMALLEST_IMAGE <= about.image_size <= LARGEST_IMAGE
        and about.channels == len(about.mean) == len(about.spread)
    )


def _is_sentinel(path: Path) -> bool:
    try:
        return load_state(path).get("kind") == "sentinel"
    except StateError:
        return False


def _state(path: Path) -> dict[str, Any]:
    if os.path.isdir(path):
        raise StateError(f"{path} is a folder, not a sentinel; make one with {FIT}")
    try:
        return load_state(path)
    except StateError as error:
        raise StateError(f"{path} is not a sentinel or is damaged; make one with {FIT}") from error
