"""The file of a sentinel: what it learned, and beside it which model and preparation go with it.

One archive without pickle: the arrays of `Sentinel.save` and a JSON text with the entry "about". The model's weights
stay where they are; their digest is kept, since a sentinel says nothing true about other weights.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sgoif.audit.batches import Normalisation
from sgoif.audit.models import trusted_model
from sgoif.audit.settings import LARGEST_IMAGE, SMALLEST_IMAGE
from sgoif.commands.backbone_model import BackboneModel, trusted_backbone
from sgoif.commands.image_batches import Preparation
from sgoif.commands.sentinel.settings import OpenSettings
from sgoif.commands.trained_model import TrainedModel, check_model, digest
from sgoif.core.serialization import load_state, save_state
from sgoif.device.selection import choose_device
from sgoif.errors import ModelError, StateError
from sgoif.images.errors import cannot_write, make_writable
from sgoif.images.text import shown
from sgoif.tasks.ood import Sentinel
from sgoif.tasks.ood.conformal import p_values

FIT = "`sgoif sentinel fit`"
HEAD = ("head_weight", "head_bias")
"""Entries of the head of a backbone."""
Head = tuple[Tensor, Tensor]
KEPT_BACK = "one image in five"
"""How a calibration is described that was taken from the images learned from."""
NOT_LEARNED = f"{KEPT_BACK}, which the head was not learned from"


@dataclass(frozen=True)
class SentinelDescription:
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
    backbone: bool = False
    """Whether `model` is the name of a backbone, whose head lies in the file."""

    @property
    def preparation(self) -> Preparation:
        return Preparation(self.image_size, self.channels, Normalisation(tuple(self.mean), tuple(self.spread)))


@dataclass(frozen=True)
class LoadedSentinel:
    """A sentinel ready for use."""

    sentinel: Sentinel
    description: SentinelDescription
    device: torch.device
    batch_size: int

    @property
    def smallest_p(self) -> float:
        """No p-value is smaller with this calibration."""
        return 1 / (len(self.sentinel.calibration) + 1)

    @torch.no_grad()
    def predict(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of every image its score, its p-value and the number of the class that the network answers, in one pass."""
        seen = self.sentinel.network.see(images.to(self.device))
        scores = self.sentinel.strangeness(seen)
        answers = torch.nan_to_num(seen.logits, nan=-torch.inf).argmax(1)
        return scores.cpu(), p_values(scores, self.sentinel.calibration).cpu(), answers.cpu()


def check_target(path: Path) -> None:
    """Raise before any work where a sentinel cannot be written, or would replace something else."""
    if path.is_dir():
        raise StateError(f"--out {path} is a folder; give the name of a file, e.g. {path / 'sentinel.npz'}")
    if path.exists() and not _is_sentinel(path):
        raise StateError(f"--out {path} exists and is not a sentinel; it is left as it is. Choose another name")
    make_writable(path.absolute().parent)


def save(path: Path, sentinel: Sentinel, description: SentinelDescription, head: Head | None) -> None:
    """Write sentinel, description and the head of a backbone as one file, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        sentinel.save(Path(folder) / "sentinel.npz")
        state = load_state(Path(folder) / "sentinel.npz")
    try:
        save_state(
            path,
            {**state, "about": asdict(description), **({} if head is None else dict(zip(HEAD, head, strict=True)))},
        )
    except OSError as error:
        raise cannot_write(path.absolute().parent, error) from error


def load_sentinel(settings: OpenSettings, say: Callable[[str], None]) -> LoadedSentinel:
    """A sentinel with the model that it was fitted to; `say` tells where the user names it otherwise than the file."""
    path = settings.path
    if not path.exists():
        raise StateError(f"--sentinel {path}: there is no such file; make one with {FIT}")
    description, head = _description(path)
    device = choose_device(settings.device)
    where = f"the sentinel {shown(path)}"
    if unfit := settings.backbone if head is None else settings.model or settings.weights:
        kind, other = ("model", "--backbone") if head is None else ("backbone", "--model and --weights")
        raise StateError(f"{where} was fitted to a {kind}; leave {other} ({unfit}) away")
    weights: Path | None = None
    if head is not None:
        name = trusted_backbone(description.model, settings.backbone, where, say)
        setup: TrainedModel = BackboneModel(name, None, description.class_names, description.preparation, head)
    else:
        name = trusted_model(description.model, settings.model, where, say)
        weights = settings.weights or _weights(path, description)
        check_model(name, weights, device)
        setup = TrainedModel(name, weights, description.class_names, description.preparation)
    description = replace(description, model=name)
    model = setup.build(device)
    if digest(model) != description.digest:
        where = f"those of {shown(weights)}" if weights else f"those that {shown(description.model)} loads"
        raise StateError(
            f"the sentinel {path} was fitted to other weights than {where}; give the right ones with --weights, or fit"
            f" it again with {FIT}"
        )
    return LoadedSentinel(Sentinel.load(path, model), description, device, settings.batch_size)


def _weights(path: Path, description: SentinelDescription) -> Path | None:
    """Where the weights were, or beside the sentinel."""
    if description.weights is None:
        return None
    there = Path(description.weights)
    for place in (there, path.absolute().parent / there.name):
        if place.is_file():
            return place
    raise ModelError(
        f"the weights of the sentinel {path} are neither at {shown(there)} nor beside it; say where they are with"
        " --weights"
    )


def _description(path: Path) -> tuple[SentinelDescription, Head | None]:
    if path.is_dir():
        raise StateError(f"{path} is a folder, not a sentinel; make one with {FIT}")
    try:
        state = load_state(path)
    except StateError as error:
        raise StateError(f"{path} is not a sentinel or is damaged; make one with {FIT}") from error
    if state.get("kind") != "sentinel":
        raise StateError(f"--sentinel {path} is not a sentinel; make one with {FIT}")
    if "about" not in state:
        raise StateError(
            f"--sentinel {path} was saved from Python and does not say which model and preparation go with it; use it"
            f" there (Sentinel.load), or make one with {FIT}"
        )
    try:
        description = SentinelDescription(**state["about"])
    except TypeError as error:
        raise StateError(f"--sentinel {path} comes from another version of sgoif ({error}); fit it again") from error
    if not _is_sound(description):
        raise StateError(f"--sentinel {path} is damaged: what it says of its model makes no sense; fit it again")
    if not description.backbone:
        return description, None
    weight, bias = (state.get(name) for name in HEAD)
    if not (isinstance(weight, Tensor) and isinstance(bias, Tensor)):
        raise StateError(f"--sentinel {path} is damaged: the head of its backbone is missing; fit it again")
    return description, (weight, bias)


def _is_sound(description: SentinelDescription) -> bool:
    """Whether the parts of a description are what others rely on; the name of the model is judged by itself."""
    if not all(
        isinstance(part, list) and part for part in (description.class_names, description.mean, description.spread)
    ):
        return False
    weights = [] if description.weights is None else [description.weights]
    texts = (description.digest, description.calibrated_on, *weights, *description.class_names)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in (*description.mean, *description.spread))
        and all(type(number) is int for number in (description.image_size, description.channels, description.images))
        and SMALLEST_IMAGE <= description.image_size <= LARGEST_IMAGE
        and description.channels == len(description.mean) == len(description.spread)
    )


def _is_sentinel(path: Path) -> bool:
    try:
        return load_state(path).get("kind") == "sentinel"
    except StateError:
        return False
