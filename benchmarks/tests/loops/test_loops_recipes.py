"""Loops with a recipe of their own (losses, heads, mixed batches) train as they do without the monitor."""

from __future__ import annotations

import pytest
from loop_cases import SOFT, check_unchanged

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
NAMES = ["label-smoothing", "class-weights", "focal", "dropout", "weight-norm", "cosine", "checkpointing", "callbacks"]
SOFT_TARGETS = ["distillation", "mixup", "cutmix", "timm"]


@pytest.mark.parametrize("name", NAMES)
def test_training_is_unchanged_by_a_recipe(name: str) -> None:
    check_unchanged(name)


@SOFT
@pytest.mark.parametrize("name", SOFT_TARGETS)
def test_training_is_unchanged_where_targets_are_soft(name: str) -> None:
    check_unchanged(name)
