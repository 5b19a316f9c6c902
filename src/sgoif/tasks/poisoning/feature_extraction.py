"""Reading a training set once: what the finished network makes of every example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sgoif.core.data import Indexed, Part, draws, in_order, isolated_random_state
from sgoif.core.logits import two_classes
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import as_numbers, check_model
from sgoif.tasks.ood.network import Network
from sgoif.tasks.poisoning.geometry import project
from sgoif.tracking.evaluation import evaluation

Rows = NDArray[np.int64]
KEEP_ON_DEVICE = 2 * 2**30
"""Bytes of features up to which they stay where the model is; more are kept in main memory."""
MOST_STAGE_BYTES = 2 * 2**30
"""Bytes of pooled stages up to which they are kept at all; they serve the estimate of how many to remove."""


@dataclass(frozen=True)
class TrainingFeatures:
    """A training set as the network sees it; rows are in the order of their indices."""

    network: Network
    features: Tensor
    """Inputs of the head, [N, D] float32."""
    stages: list[Tensor]
    """Pooled outputs of the stages, [N, D_l] half precision on the CPU, first stage first; empty where too large."""
    labels: Tensor
    """[N], where the features are."""
    second: Rows
    """The label that the network would give each example if not its own."""
    index: Rows
    classes: int
    shape: tuple[int, ...]
    """Of one input."""


def extract_features(model: nn.Module, train_set: Any, labels: Any, batch_size: int) -> TrainingFeatures:
    """One forward pass over a training set, without augmentation; the model's mode is left as it was."""
    check_model(model, "a trace")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise SettingError(f"batch_size={batch_size!r} is not valid: expected a whole number of at least 1")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise SettingError("the model has no parameters, so there are no features to trace anything with")
    with isolated_random_state(parameter.device), evaluation(model):
        return _extract(model, parameter.device, _batches(train_set, batch_size), labels)


def _extract(model: nn.Module, device: torch.device, batches: Iterable[Any], labels: Any) -> TrainingFeatures:
    network: Network | None = None
    rows: list[tuple[Tensor, ...]] = []  # features, labels, indices and guesses of every batch
    stages: list[list[Tensor]] = []
    shape: tuple[int, ...] = ()
    stage_bytes = feature_bytes = seen_so_far = 0
    for batch in batches:
        x, y, index = _split(batch, seen_so_far)
        if len(x) == 0:
            continue
        if network is None:
            shape = tuple(x.shape[1:])
            network = Network(model, x[:1].to(device))
        seen = network.see(x.to(device), stages=stage_bytes <= MOST_STAGE_BYTES)
        features = project(seen.features)
        feature_bytes += features.numel() * 4
        kept = features if feature_bytes <= KEEP_ON_DEVICE else features.cpu()
        logits = two_classes(seen.logits)
        column = y.to(device).long().clamp(0, logits.shape[1] - 1).unsqueeze(1)
        rows.append((kept, y, index, logits.scatter(1, column, float("-inf")).argmax(1).cpu()))
        if stage_bytes <= MOST_STAGE_BYTES:
            pooled = [stage.half().cpu() for stage in seen.pooled]
            stages.append(pooled)
            stage_bytes += sum(stage.numel() * 2 for stage in pooled)
        seen_so_far += len(x)
    if network is None:
        raise SettingError("the training set is empty: there is nothing to trace anything to")
    return _joined(network, rows, stages if stage_bytes <= MOST_STAGE_BYTES else [], shape, labels)


def _joined(
    network: Network, batches: list[tuple[Tensor, ...]], stages: list[Any], shape: tuple[int, ...], labels: Any
) -> TrainingFeatures:
    kept, given, places, guesses = zip(*batches, strict=True)
    where = kept[-1].device
    features = torch.cat([part.to(where) for part in kept])
    index = torch.cat(places).numpy()
    order = np.argsort(index, kind="stable")
    if len(np.unique(index)) < len(index):
        raise SettingError("the training set has the same index twice; every example needs one of its own")
    rows = torch.from_numpy(order)
    y = torch.cat([part.to(where) for part in given]).long()[rows.to(where)]
    classes = max(2, network.classes)
    if labels is not None:
        y = _given_labels(labels, index[order], len(order)).to(where)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise SettingError(
            f"labels of the training set run from {int(y.min())} to {int(y.max())}, but the model has {classes} classes"
            f" (0 to {classes - 1})"
        )
    features = features[rows.to(where)]
    if not bool(torch.isfinite(features).all()):
        bad = int((~torch.isfinite(features).all(1)).sum())
        raise SettingError(f"the features of {bad} training examples are not finite numbers; leave these out")
    pooled = [torch.cat(parts)[rows] for parts in zip(*stages, strict=True)]
    return TrainingFeatures(
        network, features, pooled, y, torch.cat(guesses).numpy()[order], index[order], classes, shape
    )


def _given_labels(labels: Any, index: Rows, count: int) -> Tensor:
    """One label per row; a longer list is read by index."""
    found = as_numbers(labels, "labels must be a list of class numbers").detach().cpu()
    if found.is_floating_point() or found.dim() != 1:
        raise SettingError(f"labels must be a list of class numbers; got {found.dtype} of shape {tuple(found.shape)}")
    if len(found) == count and (len(index) == 0 or int(index.max()) < count):
        return found.long()[torch.from_numpy(index)]
    if len(found) > int(index.max()):
        return found.long()[torch.from_numpy(index)]
    raise SettingError(f"{len(found)} labels were given for {count} training examples")


def _split(batch: Any, before: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and indices of a batch; without indices, examples are counted."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[0], Tensor):
        raise SettingError(
            "a training set must yield (inputs, labels) or (inputs, labels, index) with a tensor of inputs; got"
            f" {type(batch).__name__}"
        )
    x, y = batch[0], torch.as_tensor(batch[1]).detach().reshape(-1)
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise SettingError("labels of a training set must be class numbers; some are fractions")
    if len(x) != len(y):
        raise SettingError(f"a batch has {len(x)} inputs but {len(y)} labels")
    if len(batch) > 2:
        index = torch.as_tensor(batch[2]).detach().cpu().reshape(-1).long()
        if len(index) != len(x):
            raise SettingError(f"a batch has {len(x)} inputs but {len(index)} indices")
        return x, y, index
    return x, y, torch.arange(before, before + len(x))


def _numbered(loader: DataLoader[Any], batch_size: int) -> Iterator[Any]:
    """Batches in the order of the data, with indices: in that of a loader nobody could tell which example is which."""
    again = in_order(loader, batch_size)
    whole, source = loader.dataset, again.dataset
    numbers: Any = whole.indices if isinstance(whole, Part) else range(len(whole))  # type: ignore[arg-type]
    if isinstance(source, Subset) and source is not whole:
        numbers = [numbers[row] for row in source.indices]
    read = 0
    for batch in again:
        if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[0], Tensor):
            count = len(batch[0])
            yield (*batch, torch.tensor([int(number) for number in numbers[read : read + count]]))
            read += count
        else:
            yield batch


def _batches(train_set: Any, batch_size: int) -> Iterator[Any]:
    """Batches in an order that says which example is which."""
    if isinstance(train_set, DataLoader) and draws(train_set):
        return _numbered(train_set, batch_size)
    if isinstance(train_set, (tuple, list)) and len(train_set) == 2 and all(isinstance(t, Tensor) for t in train_set):
        train_set = TensorDataset(*train_set)
    is_set = isinstance(train_set, Dataset) and not isinstance(train_set, IterableDataset)
    if is_set or (hasattr(train_set, "__getitem__") and not isinstance(train_set, (tuple, list))):
        known = Indexed(train_set) if isinstance(train_set, Part) else train_set  # a part keeps its original indices
        return iter(DataLoader(known, batch_size=batch_size, shuffle=False))
    if not isinstance(train_set, Iterable):
        raise SettingError(f"a training set must be a data set or a loader, not {type(train_set).__name__}")
    return iter(train_set)
