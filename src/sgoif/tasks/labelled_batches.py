"""Labelled examples in batches, from whatever they are given as, with what each of them is called."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sgoif.core.data import Indexed, draws, in_order
from sgoif.errors import SettingError

LABELS = ("labels", "label", "target", "y")
Batch = tuple[Any, Tensor, list[Any] | None]
"""Inputs, labels and, where they are known, the numbers of the examples."""


def labelled_batches(data: Any, size: int, numbering: Callable[[Any], Sequence[Any]]) -> Iterator[Batch]:
    """Batches of a data set, of a loader, of two tensors, or as they are given: (x, y) or (x, y, index).

    What a loader draws from is read in the order of its data set, since in that of the loader nobody could tell which
    example is which; `numbering` says what the examples of a data set are called.
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        data = TensorDataset(data[0], as_class_numbers(data[1]))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=size)
    if isinstance(data, DataLoader) and draws(data):
        again = in_order(data, size)
        names = iter(numbering(data.dataset))
        if again.dataset is not data.dataset:  # its sampler is limited to some rows
            whole = list(names)
            names = iter([whole[row] for row in again.dataset.indices])  # type: ignore[attr-defined]
        for batch in again:
            x, y, index = split_batch(batch)
            own = list(islice(names, len(y)))
            yield x, y, own if index is None or isinstance(data.dataset, Indexed) else index
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        yield from map(split_batch, data)
    else:
        raise SettingError(
            f"the data must be a data set, a loader or batches (x, y) or (x, y, index), not {type(data).__name__}"
        )


def split_batch(batch: Any) -> Batch:
    """Inputs, labels and indices of a batch."""
    if isinstance(batch, Mapping):
        key = next((name for name in LABELS if name in batch), None)
        if key is None:
            raise SettingError(f"a batch has no labels: its keys are {', '.join(map(str, batch))}")
        inputs: Any = {name: value for name, value in batch.items() if name not in (key, "index")}
        labels, index = batch[key], batch.get("index")
    elif isinstance(batch, Sequence) and len(batch) >= 2:
        inputs, labels, index = batch[0], batch[1], batch[2] if len(batch) > 2 else None
    else:
        raise SettingError(
            f"a batch must be (x, y), (x, y, index) or a mapping with labels, not {type(batch).__name__}"
        )
    y = as_class_numbers(labels)
    if index is not None:
        index = index.reshape(-1).tolist() if isinstance(index, Tensor) else list(index)
    for what, part in (("inputs", inputs if isinstance(inputs, Tensor) else None), ("indices", index)):
        if part is not None and len(part) != len(y):
            raise SettingError(f"a batch has {len(part)} {what} but {len(y)} labels")
    return inputs, y, index


def as_class_numbers(labels: Any) -> Tensor:
    """Labels [n] as whole numbers, which floating-point ones may stand for."""
    found = torch.as_tensor(labels).detach()
    if found.is_floating_point() and bool((found == found.round()).all()):
        found = found.long()
    if found.dim() == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.dim() != 1 or found.is_floating_point():
        raise SettingError(
            f"labels must be class numbers, one per example; got {found.dtype} of shape {tuple(found.shape)}"
        )
    return found.long()
