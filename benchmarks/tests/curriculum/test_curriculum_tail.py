"""Long-tailed versions of data sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.errors import SettingError
from sgoif_bench.curriculum.tail import tail_sizes, tailed
from sgoif_bench.labels.datasets import LabelledData


def data(labels: list[int], classes: int) -> LabelledData:
    count = len(labels)
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    names = tuple(map(str, range(classes)))
    return LabelledData("numbers", images, np.array(labels), names, np.arange(count) + 100)


def test_sizes_by_hand() -> None:
    assert tail_sizes(5000, 10, 100)[0] == 5000
    assert tail_sizes(5000, 10, 100)[-1] == 50
    assert tail_sizes(80, 4, 8) == [80, 40, 20, 10]
    assert tail_sizes(3, 3, 50) == [3, 1, 1]  # a class never vanishes
    assert tail_sizes(7, 1, 50) == [7]


def test_first_examples_of_every_class_are_kept_with_their_rows() -> None:
    found = tailed(data([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], 3), 4)
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert found.rows.tolist() == [100, 101, 102, 103, 104, 106, 109]
    assert found.images.flatten().tolist() == [0, 1, 2, 3, 4, 6, 9]


def test_the_smallest_class_is_the_measure() -> None:
    found = tailed(data([0] * 9 + [1] * 4, 2), 2)
    assert np.bincount(found.labels).tolist() == [4, 2]


def test_an_empty_class_is_named() -> None:
    with pytest.raises(SettingError, match="'1'"):
        tailed(data([0, 0, 2], 3), 2)
