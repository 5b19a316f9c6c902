"""Loops after public examples and recipes train as they do without the monitor."""

from __future__ import annotations

import pytest
from loop_cases import check_unchanged

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")


@pytest.mark.parametrize("name", ["pytorch-mnist", "pytorch-vit", "cifar-resnet", "nanogpt"])
def test_training_is_unchanged_in_an_example(name: str) -> None:
    check_unchanged(name)
