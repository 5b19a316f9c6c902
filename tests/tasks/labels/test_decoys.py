"""Decoys: how many, which, and that nothing but the label of the items that were chosen is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import indexed, split_holdout
from sgoif.core.data import Part, read_labels
from sgoif.errors import AnchorError, SettingError
from sgoif.tasks import Decoys, plant_decoys
from sgoif.tasks.labels.decoys import LEAST, MOST_SHARE, SHARE, draw_decoys, how_many


class Listed(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        return self.items[position]


def tensors(count: int = 400, classes: int = 5) -> TensorDataset:
    return TensorDataset(torch.arange(count * 2.0).reshape(count, 2), torch.arange(count) % classes)


@given(st.integers(0, 10**7))
def test_about_one_in_a_hundred_at_least_two_hundred_never_more_than_one_in_twenty(examples: int) -> None:
    count = how_many(examples)
    assert count <= MOST_SHARE * examples
    if examples >= LEAST / MOST_SHARE:
        assert count == max(LEAST, round(SHARE * examples))
    else:
        assert count == int(MOST_SHARE * examples)


def test_a_share_of_ones_own() -> None:
    assert how_many(1000, 0.1) == 100
    assert how_many(1000, 0.0) == 0
    for share in (-0.01, 0.5, 1.0, float("nan")):
        with pytest.raises(SettingError, match=r"\[0, 0.5\)"):
            how_many(1000, share)


@given(st.integers(2, 12), st.integers(0, 80), st.integers(0, 2**32 - 1))
def test_every_flip_is_another_class_and_no_example_is_drawn_twice(classes: int, count: int, seed: int) -> None:
    labels = np.arange(60) % classes
    position, flipped = draw_decoys(labels, classes, count, seed)
    assert len(position) == len(set(position.tolist())) == min(count, 60)
    assert (flipped != labels[position]).all()
    assert ((flipped >= 0) & (flipped < classes)).all()
    again = draw_decoys(labels, classes, count, seed)
    assert np.array_equal(position, again[0])
    assert np.array_equal(flipped, again[1])


def test_other_classes_are_drawn_evenly() -> None:
    _, flipped = draw_decoys(np.full(30_000, 2), 5, 30_000, seed=4)
    share = np.bincount(flipped, minlength=5) / len(flipped)
    assert share[2] == 0
    assert share[[0, 1, 3, 4]] == pytest.approx([0.25] * 4, abs=0.02)


def test_only_the_labels_of_decoys_change_and_storage_is_untouched() -> None:
    dataset = tensors()
    before = dataset.tensors[1].clone()
    planted, decoys = plant_decoys(dataset, 5, share=0.1)
    assert isinstance(decoys, Decoys)
    assert len(planted) == 400  # type: ignore[arg-type]
    assert len(decoys) == 40
    assert decoys.dataset is dataset
    for i in range(400):
        x, y = planted[i]
        assert torch.equal(x, dataset[i][0])
        at = np.flatnonzero(decoys.index == i)
        assert int(y) == (decoys.flipped[at[0]] if len(at) else before[i])
    assert np.array_equal(decoys.given, before.numpy()[decoys.index])
    assert torch.equal(dataset.tensors[1], before)
    assert int(planted[-400][1]) == int(planted[0][1])
    assert int(planted[int(decoys.index[-1]) - 400][1]) == decoys.flipped[-1]


def test_the_same_seed_draws_the_same_decoys_and_another_seed_others() -> None:
    first, second, third = (plant_decoys(tensors(), 5, share=0.1, seed=seed)[1] for seed in (3, 3, 4))
    assert np.array_equal(first.index, second.index)
    assert np.array_equal(first.flipped, second.flipped)
    assert not np.array_equal(first.index, third.index)


def test_a_part_of_a_split_keeps_its_indices() -> None:
    dataset = tensors()
    training, held_out = split_holdout(dataset, share=0.2)
    planted, decoys = plant_decoys(training, 5, share=0.1)
    assert isinstance(planted, Part)
    assert planted.indices == training.indices
    assert set(decoys.index.tolist()) <= set(training.indices)
    assert not set(decoys.index.tolist()) & set(held_out.indices)
    changed = {index: int(y) for _, y, index in indexed(planted) if int(y) != int(dataset[index][1])}
    assert changed == dict(zip(decoys.index.tolist(), decoys.flipped.tolist(), strict=True))
    assert np.array_equal(decoys.given, [int(dataset[i][1]) for i in decoys.index])
    assert decoys.dataset is dataset


def test_labels_can_be_given_so_that_no_item_is_read() -> None:
    class Unreadable(Listed):
        def __getitem__(self, position: int) -> Any:
            raise AssertionError("an item was read")

    _, decoys = plant_decoys(Unreadable([None] * 100), 3, share=0.2, labels=[i % 3 for i in range(100)])
    assert np.array_equal(decoys.given, decoys.index % 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, torch.tensor(y), "more"],
        lambda x, y: (x, torch.tensor([y])),
        lambda x, y: (x, torch.tensor(float(y))),
        lambda x, y: (x, np.int64(y)),
        lambda x, y: (x, float(y)),
        lambda x, y: {"x": x, "label": y, "name": str(y)},
        lambda x, y: {"pixel_values": x, "labels": torch.tensor(y)},
        lambda x, y: {"x": x, "target": np.array(y)},
    ],
    ids=["pair", "list", "row", "float tensor", "numpy", "float", "dict", "dict of tensors", "dict of arrays"],
)
def test_batches_with_decoys_are_batches_without(make: Any) -> None:
    plain = Listed([make(torch.full((3,), float(i)), i % 4) for i in range(40)])
    planted, decoys = plant_decoys(plain, 4, share=0.4)
    labels = np.array(read_labels(plain, range(40)))
    labels[decoys.index] = decoys.flipped
    assert read_labels(planted, range(40)) == labels.tolist()
    for before, after in zip(DataLoader(plain, batch_size=8), DataLoader(planted, batch_size=8), strict=True):
        assert type(before) is type(after)
        keys = before if isinstance(before, dict) else range(len(before))
        assert list(keys) == list(after if isinstance(after, dict) else range(len(after)))
        for key in keys:
            if isinstance(before[key], torch.Tensor):
                assert before[key].dtype == after[key].dtype
                assert before[key].shape == after[key].shape
            else:
                assert before[key] == after[key]


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match="7 labels were given for 400"):
        plant_decoys(tensors(), 5, labels=[0] * 7)
    with pytest.raises(SettingError, match="two classes"):
        plant_decoys(tensors(classes=1), 1)
    with pytest.raises(SettingError, match="labels go from 0 to 4"):
        plant_decoys(tensors(), 4)
    with pytest.raises(SettingError, match=r"labels go from -1"):
        plant_decoys(tensors(), 5, labels=[-1] * 400)
    training, _ = split_holdout(tensors())
    with pytest.raises(SettingError, match="before indices"):
        plant_decoys(indexed(training), 5)
    planted, decoys = plant_decoys(Listed([{"x": 1}] * 30), 2, share=0.4, labels=[0] * 30)
    with pytest.raises(AnchorError, match="no label"):
        planted[int(decoys.index[0])]
    assert len(plant_decoys(tensors(10), 5)[1]) == 0
