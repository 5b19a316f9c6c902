"""A network with the weights that somebody trained it to, and the names of its outputs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sgoif.audit.models import BUILT_IN, make_model, resolve
from sgoif.backbones.weights import load_weights
from sgoif.commands.image_batches import Preparation
from sgoif.core.serialization import load_state, unnest
from sgoif.core.types import Indices
from sgoif.errors import ModelError, SettingError
from sgoif.images import Collection, ImagesError
from sgoif.images.text import few, shown

CHECKPOINT = ".npz"
"""Weights of an audit lie in its checkpoint; any other file is safetensors."""
LONGEST_REASON = 200
"""Characters of what torch says about weights that do not fit; it lists all of them."""
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class TrainedModel:
    """A network as it is to be built, and how its images are prepared."""

    model: str
    weights: Path | None
    class_names: list[str]
    preparation: Preparation

    def build(self, device: torch.device) -> nn.Module:
        """The network with its weights."""
        prepared, weights, classes = self.preparation, self.weights, len(self.class_names)
        model = make_model(self.model, prepared.channels, classes, prepared.size)
        if weights is not None and weights.suffix == CHECKPOINT:
            load_checkpoint(model, weights)
        elif weights is not None and (fresh := load_weights(model, weights)):
            raise ModelError(
                f"--weights {weights} has no {', '.join(fresh)} for a model with {classes} classes; say how many it was"
                " trained with, or name them, with --classes"
            )
        return model.to(device).eval()


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


def label_positions(data: Collection, outputs: Sequence[str], advice: str = "") -> Indices:
    """Labels of the data as positions among the outputs of a model; raises where a class is none of them."""
    position = {name: number for number, name in enumerate(outputs)}
    if unknown := [name for name in data.class_names if name not in position]:
        raise ImagesError(f"the model has no class {few(unknown)}; it has {few(outputs)}{advice}")
    return np.array([position[name] for name in data.class_names], dtype=np.int64)[data.labels]


def output_names(text: str | None, known: Sequence[str]) -> list[str]:
    """The names of the model's outputs, those of the data unless told otherwise: a count, or a file with one a line.

    A count alone names them by number where the data have another number of classes.
    """
    if text is None:
        return list(known)
    if text.isdecimal():
        count = int(text)
        if not 2 <= count <= MOST_CLASSES:
            raise SettingError(f"--classes {text}: expected a number from 2 to {MOST_CLASSES:,}, or a file of names")
        return list(known) if count == len(known) else [str(number) for number in range(count)]
    try:
        lines = Path(text).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"--classes {text}: expected the number of the model's outputs, or a text file with their names, one a"
            f" line; it cannot be read ({error})"
        ) from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        what = "fewer than two names" if len(names) < 2 else "a name twice"
        raise SettingError(f"--classes {text} holds {what}; expected one name a line, in the order of the outputs")
    return names
