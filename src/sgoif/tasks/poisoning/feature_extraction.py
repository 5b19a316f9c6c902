"""Reading a training set once: what the finished network makes of every example."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.core.data import indices_of, isolated_random_state
from sgoif.core.logits import two_classes
from sgoif.core.types import Indices
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import as_numbers, check_model
from sgoif.tasks.labelled_batches import Batch, labelled_batches
from sgoif.tasks.ood.network import Network
from sgoif.tasks.poisoning.geometry import project
from sgoif.tracking.evaluation import evaluation

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
    second: Indices
    """The label that the network would give each example if not its own."""
    index: Indices
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
        return _extract(model, parameter.device, labelled_batches(train_set, batch_size, indices_of), labels)


def _extract(model: nn.Module, device: torch.device, batches: Iterable[Batch], labels: Any) -> TrainingFeatures:
    network: Network | None = None
    rows: list[tuple[Tensor, ...]] = []  # features, labels, indices and guesses of every batch
    stages: list[list[Tensor]] = []
    shape: tuple[int, ...] = ()
    stage_bytes = feature_bytes = seen_so_far = 0
    for x, y, numbers in batches:
        if not isinstance(x, Tensor):
            raise SettingError(
                f"a trace takes inputs that are one tensor; a batch of the training set has a {type(x).__name__}"
            )
        if len(x) == 0:
            continue
        index = torch.tensor(range(seen_so_far, seen_so_far + len(x)) if numbers is None else numbers)
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


def _given_labels(labels: Any, index: Indices, count: int) -> Tensor:
    """One label per row; a longer list is read by index."""
    found = as_numbers(labels, "labels must be a list of class numbers").detach().cpu()
    if found.is_floating_point() or found.dim() != 1:
        raise SettingError(f"labels must be a list of class numbers; got {found.dtype} of shape {tuple(found.shape)}")
    if len(found) > int(index.max()):
        return found.long()[torch.from_numpy(index)]
    raise SettingError(f"{len(found)} labels were given for {count} training examples")
