"""Data sets that know their indices, and the hold-out split."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from sgoif import indexed, split_holdout
from sgoif.core.data import isolated_random_state, read_labels, split_item
from sgoif.errors import AnchorError, IndexingError


class Items(Dataset):
    """A data set over a list, counting how often items are read."""

    def __init__(self, items: list) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int):
        self.reads += 1
        return self.items[position]


def pairs(labels: list[int]) -> Items:
    return Items([(torch.tensor([float(i)]), y) for i, y in enumerate(labels)])


# --- indexed ----------------------------------------------------------------------------------------------------


def test_tuples_dicts_and_bare_items_get_their_index() -> None:
    assert indexed(Items([("a", 0), ("b", 1)]))[1] == ("b", 1, 1)
    assert indexed(Items([["a", 0, "extra"]]))[0] == ("a", 0, "extra", 0)
    assert indexed(Items([{"x": 1, "label": 2}]))[0] == {"x": 1, "label": 2, "index": 0}
    assert indexed(Items(["bare", "other"]))[1] == ("other", 1)


def test_the_wrapped_items_are_left_alone() -> None:
    data = Items([{"x": 1, "label": 2}])
    indexed(data)[0]
    assert data.items[0] == {"x": 1, "label": 2}


def test_counting_from_the_end_still_gives_the_true_index() -> None:
    assert indexed(pairs([0, 1, 0]))[-1][2] == 2


def test_a_shuffled_loader_hands_out_matching_indices() -> None:
    data = TensorDataset(torch.arange(50).float(), torch.arange(50) % 5)
    seen = []
    for x, y, index in DataLoader(indexed(data), batch_size=8, shuffle=True):
        assert torch.equal(x.long(), index)
        assert torch.equal(index % 5, y)
        assert index.dtype == torch.int64
        seen += index.tolist()
    assert sorted(seen) == list(range(50))


def test_parts_keep_their_original_indices() -> None:
    data = pairs([0, 1] * 20)
    train, holdout = split_holdout(data, share=0.25)
    for part in (train, holdout):
        for position in range(len(part)):
            x, _, index = indexed(part)[position]
            assert int(x) == index
    inner, _ = split_holdout(train, share=0.5)
    assert set(inner.indices) < set(train.indices)
    assert all(int(x) == index for x, _, index in (indexed(inner)[i] for i in range(len(inner))))


def test_data_that_only_iterates_is_refused_with_the_way_out() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    with pytest.raises(IndexingError, match=r"monitor\.step\(index\)"):
        indexed(Stream())


def test_subsets_are_numbered_by_position_unless_selected_afterwards() -> None:
    data = pairs([0, 1] * 5)
    subset = Subset(data, [7, 2])
    for x, _, index in (indexed(subset)[i] for i in range(2)):
        assert int(x) == subset.indices[index]
    assert [int(item[2]) for item in Subset(indexed(data), [7, 2])] == [7, 2]
    for part in random_split(indexed(data), [6, 4]):
        assert all(int(x) == index for x, _, index in part)
    both = indexed(ConcatDataset([pairs([0] * 3), pairs([1] * 2)]))
    assert [both[i][2] for i in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("wrap", [indexed, split_holdout])
def test_a_loader_is_refused_with_the_way_out(wrap) -> None:
    with pytest.raises((IndexingError, AnchorError), match=r"a DataLoader hands out batches.*loader"):
        wrap(DataLoader(pairs([0, 1, 0, 1])))


def test_a_stream_cannot_be_split() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    with pytest.raises(AnchorError, match=r"Stream only iterates.*anchors=\(inputs, labels\)"):
        split_holdout(Stream())


# --- split_holdout ----------------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=80),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_split_is_a_balanced_repeatable_partition(labels: list[int], share: float, seed: int) -> None:
    counts = Counter(labels)
    if max(counts.values()) < 2:
        with pytest.raises(AnchorError, match="two examples"):
            split_holdout(pairs(labels), share, seed)
        return
    train, holdout = split_holdout(pairs(labels), share, seed)
    assert sorted(train.indices + holdout.indices) == list(range(len(labels)))
    assert train.indices == sorted(train.indices)
    assert holdout.indices == sorted(holdout.indices)
    held = Counter(labels[i] for i in holdout.indices)
    for label, count in counts.items():
        assert held[label] <= count - 1, "at least one example of every class is trained on"
        assert held[label] >= (1 if count > 1 else 0), "every class that can is held out"
        if 1 <= round(share * count) <= count - 1:
            assert abs(held[label] - share * count) <= 0.5 + 1e-9
    again = split_holdout(pairs(labels), share, seed)
    assert (again[0].indices, again[1].indices) == (train.indices, holdout.indices)


def test_the_seed_decides_which_examples_are_held_out() -> None:
    data = pairs([0, 1] * 50)
    assert split_holdout(data, seed=0)[1].indices != split_holdout(data, seed=1)[1].indices


def test_labels_are_taken_as_given_or_read_without_loading_inputs() -> None:
    data = pairs([0] * 10)
    _, holdout = split_holdout(data, share=0.2, labels=torch.arange(10) // 5)
    assert Counter(i // 5 for i in holdout.indices) == {0: 1, 1: 1}
    assert data.reads == 0
    tensors = TensorDataset(torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert read_labels(tensors, range(6)) == [0, 1, 2, 0, 1, 2]
    train, _ = split_holdout(tensors, share=0.5)
    assert read_labels(train, range(len(train))) == [int(tensors[i][1]) for i in train.indices]
    assert read_labels(indexed(train), [0]) == [int(tensors[train.indices[0]][1])]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_share_outside_zero_and_one_is_refused(share: float) -> None:
    with pytest.raises(AnchorError, match="share"):
        split_holdout(pairs([0, 1, 0, 1]), share)


def test_too_few_examples_or_labels_are_refused() -> None:
    with pytest.raises(AnchorError, match="at least 2"):
        split_holdout(pairs([0]))
    with pytest.raises(AnchorError, match="3 labels were given for 4"):
        split_holdout(pairs([0, 1, 0, 1]), labels=[0, 1, 0])


# --- items ------------------------------------------------------------------------------------------------------


def test_items_are_taken_apart() -> None:
    assert split_item(("x", 3)) == ("x", 3)
    assert split_item(["x", torch.tensor(3), 17]) == ("x", 3)
    assert split_item(("x", np.int64(2))) == ("x", 2)
    assert split_item(("x", np.array(2))) == ("x", 2)
    assert split_item({"pixels": 1, "labels": 4, "index": 9}) == ({"pixels": 1}, 4)
    assert split_item({"input_ids": 1, "label": torch.tensor([4])}) == ({"input_ids": 1}, 4)


@pytest.mark.parametrize(
    "item",
    [
        ("x", "cat"),
        ("x", True),
        ("x", 1.5),
        ("x", float("nan")),
        ("x", float("inf")),
        ("x", None),
        ("x", [0, 1]),
        ("x", torch.tensor([0.0, 1.0])),
        {"pixels": 1},
        "x",
        ("x",),
        torch.zeros(3),
    ],
)
def test_items_without_a_class_number_are_refused(item) -> None:
    with pytest.raises(AnchorError, match="label"):
        split_item(item)


def test_reading_data_leaves_every_random_state_alone() -> None:
    def draw() -> float:
        return random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002

    random.seed(5), np.random.seed(5), torch.manual_seed(5)  # noqa: NPY002
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)  # noqa: NPY002
    with isolated_random_state():
        draw()
    with pytest.raises(ZeroDivisionError), isolated_random_state():
        assert draw() / 0
    assert draw() == expected


def test_several_labels_of_an_example_are_refused_with_the_way_out() -> None:
    several = TensorDataset(torch.zeros(4, 2), torch.eye(4))
    with pytest.raises(AnchorError, match=r"several labels per example or values.*loss=.*label\.argmax\(\)"):
        read_labels(several, range(4))


@pytest.mark.parametrize("targets", [torch.eye(10), torch.linspace(0.2, 3, 10), torch.ones(10, 4, dtype=torch.long)])
def test_targets_that_are_no_classes_are_split_at_random(targets: torch.Tensor) -> None:
    train, held = split_holdout(TensorDataset(torch.zeros(10, 2), targets), share=0.3)
    assert (len(train), len(held)) == (7, 3)
    assert sorted(train.indices + held.indices) == list(range(10))
