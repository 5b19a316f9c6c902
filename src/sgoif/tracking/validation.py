"""Mistakes in a training loop, found where they are made and explained."""

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.types import Flags, Indices
from sgoif.errors import DeviceError, IndexingError, SgoifError, StepError
from sgoif.tracking.layers.base import WatchedLayer
from sgoif.tracking.pass_record import PassRecord

PACKAGE = str(Path(__file__).parents[1])


def check_index(index: Any, size: int | None, allow_duplicates: bool) -> Indices:
    """The indices of a batch as an array, or an error that says what is wrong with them."""
    if index is None:
        raise IndexingError(
            "monitor.step() got no index. Wrap the training set, DataLoader(indexed(train_set), ...), and pass on the"
            " index that every batch then ends with: for x, y, index in loader: with monitor.step(index): ..."
        )
    try:
        array = index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise IndexingError(f"indices must be a list of whole numbers, one per example; {error}") from error
    if array.dtype.kind not in "iu":
        raise IndexingError(
            f"indices must be whole numbers; got {array.dtype}. Did the labels or inputs get in their place?"
        )
    array = array.astype(np.int64) if array.ndim else np.array([array], dtype=np.int64)
    if array.ndim != 1 or array.size == 0:
        raise IndexingError(f"indices must be a list of at least one number; got an array of shape {array.shape}")
    ordered = array if allow_duplicates else np.sort(array)  # tells smallest, largest and repeated at once
    least, most = (ordered.min(), ordered.max()) if allow_duplicates else (ordered[0], ordered[-1])
    if least < 0:
        raise IndexingError(f"index {least} is out of range: indices count examples from 0")
    if size is not None and most >= size:
        raise IndexingError(f"index {most} is out of range: the training set was said to have {size} examples")
    if not allow_duplicates and np.count_nonzero(ordered[1:] == ordered[:-1]):
        values, counts = np.unique(ordered, return_counts=True)
        raise IndexingError(
            f"index {values[counts > 1][0]} appears {counts.max()} times in one batch. If your sampler draws with"
            " replacement, pass allow_duplicates=True; otherwise the indices do not belong to the examples"
        )
    return array


def is_plain_index(index: Any, most: int) -> bool:
    """Whether only the values are left to be looked at: a row of at most so many whole numbers."""
    if type(index) is not Tensor or index.dtype is not torch.int64:
        return False
    shape = index.shape  # once: this runs in every step
    return len(shape) == 1 and 0 < shape[0] <= most


def check_apart(indices: Indices, held_out: Flags | None) -> Flags | None:
    """Warn when a batch has indices of held-out examples; returns what to look for from then on, None after a find."""
    if held_out is None or not (found := held_out.take(indices, mode="clip")).any():  # it ends with a False
        return held_out
    warnings.warn(
        f"index {indices[found.argmax()]} of this step belongs to a held-out example. Either the hold-out is trained"
        " on, or training set and hold-out are not numbered alike: a Subset or a wrapper of a part counts from 0 again."
        " Tables leave out training examples with such indices. Select after indexing, as in"
        " Subset(indexed(train_set), rows), or pass the indices of the data set that was split to monitor.step(index)",
        stacklevel=levels_to_caller(),
    )
    return None


def levels_to_caller() -> int:
    """How far up the stack the code stands that called into this package, as `warnings.warn` counts."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, levels = frame.f_back, levels + 1
    return levels


def check_weights(weights: Any, batch: int, device: torch.device) -> Tensor | None:
    """Weights of a batch's losses on the right device."""
    if weights is None:
        return None
    given: Tensor = torch.as_tensor(weights).detach()
    if given.shape != (batch,) or not given.is_floating_point():
        raise StepError(
            f"weights must hold one number per example, shape ({batch},); got {given.dtype} of shape"
            f" {tuple(given.shape)}"
        )
    if given.device.type == "cpu" and not bool((given > 0).all() & given.isfinite().all()):
        raise StepError(
            "weights must be positive and finite: an example whose loss counts for nothing leaves no gradient to score."
            " Leave it out of the batch, or give it a small weight"
        )
    return given.float().to(device, non_blocking=True)


def check_record(record: PassRecord, batch: int, head: str, device: torch.device, closed: bool) -> None:
    """A step must have run the model forward and backward exactly once on the batch that was announced."""
    delta = record.deltas.get(head)
    if delta is not None and delta.shape[0] == batch and delta.device == device and not closed:
        return
    shown = head or "the model itself"
    if closed:
        raise StepError("this monitor is closed: its hooks are gone. Make a new one, or close it after training")
    if head not in record.seen:
        raise StepError(
            f"the watched layer {shown!r} did not run inside `with monitor.step(index):`. Put the forward pass,"
            " model(x), inside it; if the model was wrapped or copied after the monitor was made, make the monitor"
            " last; if a compiled model ran before that, call torch.compiler.reset() once"
        )
    if delta is None:
        raise StepError(
            "the step ended without a backward pass through the watched layers. Put loss.backward() inside"
            " `with monitor.step(index):`, and leave evaluation (torch.no_grad) outside"
        )
    rows = delta.shape[0]
    if rows != batch:
        several = ""
        if batch and rows > batch and rows % batch == 0:  # a rank whose own indices were wrong has none
            several = (
                f". If every example stands in the batch {rows // batch} times, view after view, pass"
                f" index.repeat({rows // batch}) and make the monitor with allow_duplicates=True"
            )
        raise IndexingError(
            f"{batch} indices were given but the layer {shown!r} saw {rows} examples: the first axis must be the batch"
            f"{several}"
        )
    found = delta.device
    if found.type != device.type or (found.index or 0) != (device.index or 0):
        raise DeviceError(
            f"the model ran on {found} but the monitor was made on {device}. Move the model first, then make the"
            " monitor"
        )


class Conversions:
    """Tells whether a model was converted or moved after its layers came under watch.

    Nothing is looked at before something has failed: a model that takes whole numbers can be converted in mid-run. The
    weights are kept themselves, as what stands in their place may have another type while a sharded model runs.
    """

    def __init__(self, layers: Iterable[WatchedLayer]) -> None:
        self._made = [(x.name, w, w.dtype, w.device) for x in layers for w in x.module.parameters()]

    def explain(self, error: RuntimeError) -> None:
        """Raise in the place of an error that such a change has caused; others are left alone."""
        if isinstance(error, (torch.OutOfMemoryError, SgoifError)):
            return
        for name, weight, dtype, device in self._made:
            if weight.device != device:
                raise DeviceError(
                    f"the model was moved from {device} to {weight.device} after the monitor was made (layer {name!r}),"
                    f" and the monitor is still on {device}. Move it back, or make a new monitor; cause: {error}"
                ) from error
            if weight.dtype != dtype:
                raise StepError(
                    f"the model was converted from {dtype} to {weight.dtype} after the monitor was made (layer"
                    f" {name!r}), and its anchors are still for {dtype}. Convert it back with model.to({dtype}), or"
                    f" make a new monitor with anchors in {weight.dtype}; cause: {error}"
                ) from error
