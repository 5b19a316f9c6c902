from __future__ import annotations

import pytest
import torch

from sgoif.stability.running_mean import finite_or_zero, fold_mean

ODD = torch.tensor([1.0, float("nan"), 3.0, float("inf"), float("-inf")])


def test_what_is_not_finite_becomes_zero() -> None:
    assert finite_or_zero(ODD).tolist() == [1.0, 0.0, 3.0, 0.0, 0.0]
    assert torch.isnan(ODD[1])


def test_a_running_mean_forgets_and_leaves_out_what_is_not_finite() -> None:
    running = torch.zeros(2)
    fold_mean(running, ODD, 0.75)
    assert running.tolist() == [0.5, 0.25]
    fold_mean(running, torch.tensor([4.0, 8.0]), 0.75)
    assert running.tolist() == pytest.approx([0.75 * 0.5 + 0.25 * 6, 0.75 * 0.25 + 0.25])


def test_a_batch_without_finite_values_counts_as_zero() -> None:
    running = torch.zeros(2)
    fold_mean(running, torch.full((3,), float("nan")), 0.75)
    assert running.tolist() == [0.0, 0.25]


def test_the_mean_of_a_single_example_is_its_value() -> None:
    running = torch.zeros(2)
    fold_mean(running, torch.tensor([4.0]), 0.75)
    assert running.tolist() == [1.0, 0.25]
