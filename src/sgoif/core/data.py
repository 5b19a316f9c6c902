"""Data sets that know their indices, and a hold-out split."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from sgoif.core.interrupts import register, unregister
from sgoif.errors import AnchorError, IndexingError


class Indexed(Dataset[Any]):
    """A data set whose items end with their index: (x, y) becomes (x, y, index), a dict gets the key "index"."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        if (problem := _not_numbered(dataset)) is not None:
            raise IndexingError(
                f"indexed() needs a data set with __getitem__ and __len__; {problem}. Make the loader around"
                " indexed(dataset), or yield the index yourself, and pass it to monitor.step(index)"
            )
        self.dataset = dataset
        self.indices: Sequence[int] | None = dataset.indices if isinstance(dataset, Part) else None

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, position: int) -> Any:
        if position < 0:
            position += len(self)
        item = self.dataset[position]
        index = int(position) if self.indices is None else int(self.indices[position])
        if isinstance(item, Mapping):
            return {**item, "index": index}
        if isinstance(item, (tuple, list)):
            return (*item, index)
        return item, index


def indexed(dataset: Dataset[Any]) -> Indexed:
    """Wrap a data set so that every item carries its index, whatever order a sampler draws them in.

    Parts that `split_holdout` made keep their original indices. Every other data set is numbered by position: example i
    of a `Subset`, as `random_split` makes them, is example `subset.indices[i]` of the whole; a `ConcatDataset` counts
    on from one set to the next. To keep the indices of the whole, select afterwards: `Subset(indexed(dataset), rows)`,
    `random_split(indexed(dataset), lengths)`.
    """
    return Indexed(dataset)


def _not_numbered(dataset: Any) -> str | None:
    """Why examples cannot be asked for by number."""
    if isinstance(dataset, DataLoader):
        return "a DataLoader hands out batches"
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return f"{type(dataset).__name__} only iterates"
    return None


class Part(Dataset[Any]):
    """Some examples of a data set, under their original indices; a part of a part is a part of the whole."""

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int]) -> None:
        if isinstance(dataset, Part):
            indices = [dataset.indices[i] for i in indices]
        self.dataset: Dataset[Any] = dataset.dataset if isinstance(dataset, Part) else dataset
        self.indices: list[int] = [int(i) for i in indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Any:
        return self.dataset[self.indices[position]]


def whole_dataset(dataset: Dataset[Any]) -> Dataset[Any]:
    """The data set that the indices of a loop count: what it trains on is often a part of that."""
    while isinstance(dataset, (Part, Indexed)):
        dataset = dataset.dataset
    return dataset


def indices_of(dataset: Dataset[Any]) -> Sequence[int]:
    """The index of every position, as `indexed` gives it."""
    own = dataset.indices if isinstance(dataset, (Indexed, Part)) else None
    return range(len(dataset)) if own is None else own  # type: ignore[arg-type]


def split_holdout(
    dataset: Dataset[Any], share: float = 0.1, seed: int = 0, labels: Sequence[int] | Tensor | None = None
) -> tuple[Part, Part]:
    """Split off a class-balanced hold-out to serve as anchors, as in `train, anchors = split_holdout(data)`.

    Labels are read off the data set (or given); every class gives the same share of its examples, at least one
    where it has two or more. Of targets that are no classes (floating-point values, several labels, tokens) the share
    is drawn from all. Both parts keep the original indices.
    """
    if (problem := _not_numbered(dataset)) is not None:
        raise AnchorError(
            f"split_holdout() needs a data set with __getitem__ and __len__; {problem}. Split the data set before a"
            " loader is made, or keep some labelled examples of a stream for anchors=(inputs, labels)"
        )
    total = len(dataset)  # type: ignore[arg-type]
    if not 0 < share < 1:
        raise AnchorError(f"share must lie strictly between 0 and 1; got {share}")
    if total < 2:
        raise AnchorError(f"a hold-out needs at least 2 examples; the data set has {total}")
    given = _strata(dataset, total) if labels is None else [int(y) for y in labels]
    if len(given) != total:
        raise AnchorError(f"{len(given)} labels were given for {total} examples")
    order = np.random.default_rng(seed).permutation(total)
    by_class: dict[int, list[int]] = {}
    for i in order:
        by_class.setdefault(given[i], []).append(int(i))
    held: list[int] = []
    for members in by_class.values():
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held.extend(members[:count])
    if not held:
        raise AnchorError(f"no class has two examples among {total}, so none can be held out; give anchors of your own")
    chosen = set(held)
    return Part(dataset, [i for i in range(total) if i not in chosen]), Part(dataset, sorted(held))


def _strata(dataset: Dataset[Any], total: int) -> list[int]:
    """The class of every example; one for all where targets are no classes."""
    try:
        return read_labels(dataset, range(total))
    except AnchorError:
        with isolated_random_state():
            first = split_target(dataset[0])[1]
        kinds = (float, Tensor, np.ndarray, np.generic)
        numbers = torch.as_tensor(first) if isinstance(first, kinds) else torch.zeros((), dtype=torch.int64)
        if numbers.numel() == 1 and not numbers.is_floating_point():
            raise
        return [0] * total


def draws(loader: DataLoader[Any]) -> bool:
    """Whether a loader makes batches of single examples that it asks its data set for by number."""
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def drawn_from(loader: DataLoader[Any]) -> Dataset[Any]:
    """What a loader draws from: its data set, or the part of it that its sampler is limited to."""
    whole, batches = loader.dataset, loader.batch_sampler
    sampler = batches.sampler if isinstance(batches, BatchSampler) else loader.sampler
    drawn: Iterable[int] = sampler
    if batches is not None and not isinstance(batches, BatchSampler):
        drawn = chain.from_iterable(batches)
    elif isinstance(sampler, (SequentialSampler, RandomSampler, WeightedRandomSampler, DistributedSampler)):
        return whole
    with isolated_random_state():
        indices = sorted({int(index) for index in drawn})
    return whole if indices == list(range(len(whole))) else Subset(whole, indices)  # type: ignore[arg-type]


def in_order(loader: DataLoader[Any], batch_size: int) -> DataLoader[Any]:
    """What a loader draws from, once, in the order of its data set and in its own batches, or of this size."""
    own = loader.batch_size is not None
    return DataLoader(
        drawn_from(loader),
        batch_size=loader.batch_size if own else batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn if own else None,
    )


def split_item(item: Any) -> tuple[Any, int]:
    """Inputs and class number of one item: (x, y, ...), or a mapping with "label" or "labels"."""
    inputs, target = split_target(item)
    return inputs, as_label(target)


def split_target(item: Any) -> tuple[Any, Any]:
    """Inputs and target of one item, as it stands there."""
    if isinstance(item, Mapping):
        key = next((k for k in ("labels", "label", "target", "y") if k in item), None)
        if key is None:
            raise AnchorError(f"an item of the hold-out has no label: its keys are {', '.join(map(str, item))}")
        return {k: v for k, v in item.items() if k not in (key, "index")}, item[key]
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        return item[0], item[1]
    raise AnchorError(f"items of the hold-out must be (input, label) pairs or mappings; got {type(item).__name__}")


def read_labels(dataset: Dataset[Any], positions: Sequence[int], label: int | None = None) -> list[int]:
    """Labels of some items, or one of several labels of each; tensor data sets are read without loading the inputs."""
    if label is not None:
        with isolated_random_state():
            return [round(float(split_target(dataset[p])[1][label])) for p in positions]
    if isinstance(dataset, Part):
        return read_labels(dataset.dataset, [dataset.indices[p] for p in positions])
    if isinstance(dataset, Indexed):
        return read_labels(dataset.dataset, positions)
    tensors = getattr(dataset, "tensors", None)
    if isinstance(dataset, torch.utils.data.TensorDataset) and tensors is not None and len(tensors) >= 2:
        return [as_label(tensors[1][p]) for p in positions]
    with isolated_random_state():
        return [split_item(dataset[p])[1] for p in positions]


def as_label(value: Any) -> int:
    """One class number, of any type that holds one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise AnchorError(
                f"a label must be one class number; got a tensor of shape {tuple(value.shape)}. Of"
                " several labels per example or values a monitor needs the loss, loss=nn.BCEWithLogitsLoss() or"
                " loss=nn.MSELoss(), say, and monitor.step(index, target=y); a one-hot label is label.argmax()"
            )
        value = value.item()
    try:
        label = None if isinstance(value, (bool, str)) else int(value)
    except (TypeError, ValueError, OverflowError):
        label = None
    if label is None or label != value:
        raise AnchorError(f"a label must be a class number; got {value!r}")
    return label


class isolated_random_state:
    """Leave every global random state as it was: torch's (CPU and `device`), numpy's and Python's."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None

    def __enter__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._torch = torch.get_rng_state()
        self._cuda = None if self._device is None else torch.cuda.get_rng_state(self._device)
        register(self.restore)

    def __exit__(self, *_: object) -> None:
        self.restore()
        unregister(self.restore)

    def restore(self) -> None:
        """Back to what was."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch.set_rng_state(self._torch)
        if self._device is not None and self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)
