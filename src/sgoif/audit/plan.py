"""What an audit decides from the data: hold-out, batch size, epochs, learning rate.

The rules are meant for data of every size. Small sets need more passes for the same number of steps; a larger batch
takes a larger learning rate; a set with many classes needs held-out images of each of them.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch

from sgoif.audit.batches import batches_per_epoch
from sgoif.audit.errors import AuditError
from sgoif.audit.finetuning import tuned_name
from sgoif.audit.models import BUILT_IN, resolve
from sgoif.audit.settings import AuditSettings
from sgoif.core.types import Indices
from sgoif.device.selection import choose_device

HELD_PER_CLASS, MOST_HELD = 20, 2000
LARGEST_SHARE = 3
"""At most one in so many images of a class is held out."""
LEAST_TRAINED = 20
"""Training images below which labels cannot be judged."""
STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 1275, 16, 60
"""Steps that a run aims for, and the limits of the epochs that come of it."""
BATCHES = {"cpu": ((2_000, 64), (None, 128)), "cuda": ((2_000, 64), (10_000, 128), (30_000, 256), (None, 512))}
"""Batch size below a number of training images."""
SMALLEST_BATCH, PARTS = 16, 16
"""Sets so small that an epoch would have fewer than 16 batches get smaller ones."""
PEAK, PEAK_OWN, PEAK_LOADED = 0.2, 0.05, 0.01
"""Peak learning rate at a batch of 128: built-in model, the user's own, and one that starts from trained weights. The
fresh head of a pretrained network has that of the user's own; `sgoif.audit.finetuning` says what the rest of it has."""
TUNED_PIXELS = {"cpu": 64 * 224**2, "cuda": 2**23}
"""Most pixels in a batch of fine-tuning, by memory: of 224 by 224 EfficientNet-Lite0 keeps 76 MiB, half on a GPU,
where large batches pay: at 160 pixels 64 images at a time were a quarter as fast as 512 (H200)."""
TUNED_EPOCHS = 8
"""Of fine-tuning. It begins where others end, and a large network soon knows wrong labels by heart."""


@dataclass(frozen=True)
class Plan:
    """One run, all automatic choices made."""

    device: torch.device
    model: str
    batch_size: int
    epochs: int
    steps_per_epoch: int
    learning_rate: float

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def record(self) -> dict[str, Any]:
        """In terms of JSON, for run.json and the summary."""
        return {**asdict(self), "device": self.device.type}


def make_plan(settings: AuditSettings, examples: int, processes: int = 1, resolution: int | None = None) -> Plan:
    """The plan for a number of training images, shared by so many processes; a backbone sees `resolution` pixels."""
    device = choose_device(settings.device)
    model = tuned_name(settings.backbone, resolution) if resolution else resolve(settings.model, device)
    most = max(SMALLEST_BATCH, TUNED_PIXELS[device.type] // resolution**2) if resolution else examples
    batch = min(settings.batch_size or min(usual_batch(examples, device), most), examples)
    per_epoch = batches_per_epoch(examples, batch)
    if examples // per_epoch < 2 * processes:
        raise AuditError(
            f"batches of {examples // per_epoch} images are too few for {processes} processes, each of which needs two"
            " at least; take fewer processes or a larger --batch-size"
        )
    usual = TUNED_EPOCHS if resolution else min(max(ceil(STEPS / per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)
    epochs = settings.epochs or usual
    peak = PEAK_LOADED if settings.weights else PEAK if model in BUILT_IN else PEAK_OWN
    rate = settings.learning_rate or peak * min(sqrt(batch / 128), 2.0)
    return Plan(device, model, batch, epochs, per_epoch, rate)


def usual_batch(examples: int, device: torch.device) -> int:
    """Batch size for so many training images where none is asked for."""
    usual = next(size for limit, size in BATCHES[device.type] if limit is None or examples < limit)
    return min(usual, max(SMALLEST_BATCH, examples // PARTS))


def hold_out(labels: Indices, share: float, seed: int, copies: Iterable[int] = ()) -> tuple[Indices, Indices]:
    """Rows to train on and rows to hold out, both sorted.

    Every class gives its share, at least 20 images where it has them, never more than a third of its own; a class of
    one or two images is only trained on. In all at most 2,000 are held out, or 20 a class where that is more; the
    largest classes give way first. `copies` are rows whose image occurs more than once: they are held out last, since
    a model that has trained on the same image cannot be judged by it.
    """
    classes, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members)
    wanted = np.minimum(np.maximum(np.rint(share * sizes).astype(np.int64), HELD_PER_CLASS), sizes // LARGEST_SHARE)
    if np.count_nonzero(wanted) < 2:
        raise AuditError(
            f"{len(labels)} images in {len(classes)} classes are too few to audit: at least two classes need"
            f" {LARGEST_SHARE} images or more, since some images of a class are held out to judge the others"
        )
    counts = _capped(wanted, max(MOST_HELD, HELD_PER_CLASS * len(classes)))
    order = np.random.default_rng((seed, 0)).permutation(len(labels))
    repeated = np.isin(order, np.fromiter(copies, dtype=np.int64))
    order = np.concatenate([order[~repeated], order[repeated]])
    held = np.concatenate([order[members[order] == c][:count] for c, count in enumerate(counts)])
    mask = np.zeros(len(labels), dtype=bool)
    mask[held] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _capped(wanted: Indices, most: int) -> Indices:
    """Counts with a common upper limit, the largest at which they sum to no more than `most`."""
    if wanted.sum() <= most:
        return wanted
    low, high = 0, int(wanted.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(wanted, middle).sum() <= most else (low, middle - 1)
    return np.minimum(wanted, low)
