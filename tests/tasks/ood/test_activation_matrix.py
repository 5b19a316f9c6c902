"""Layers side by side: every activation in its place, zeros elsewhere."""

from __future__ import annotations

import torch

from sgoif.tasks.ood.activation_matrix import ActivationMatrix

SIZES = (2, 3, 1)


def test_layers_keep_their_places_and_the_rest_is_zero() -> None:
    matrix = ActivationMatrix(SIZES, torch.device("cpu"))
    parts = [torch.arange(1.0, 1 + 4 * size).view(4, size) for size in SIZES]
    joined = matrix.join(parts)
    assert (matrix.width, matrix.columns, joined.shape) == (3, 9, (4, 3, 3))
    for number, (part, size) in enumerate(zip(parts, SIZES, strict=True)):
        assert torch.equal(joined[:, number, :size], part)
        assert not bool(joined[:, number, size:].any())


def test_columns_after_the_matrix_are_left_alone() -> None:
    matrix = ActivationMatrix(SIZES, torch.device("cpu"))
    parts = [torch.randn(4, size) for size in SIZES]
    rows = torch.cat([*matrix.padded(parts), torch.ones(4, 2)], 1)
    assert torch.equal(matrix.from_rows(rows), matrix.join(parts))


def test_no_rows_are_an_empty_matrix() -> None:
    matrix = ActivationMatrix(SIZES, torch.device("cpu"))
    assert matrix.join([torch.zeros(0, size) for size in SIZES]).shape == (0, 3, 3)
