"""Loops with one optimizer after another train as they do without the monitor."""

from __future__ import annotations

import pytest
from loop_cases import check_unchanged

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")


@pytest.mark.parametrize("name", ["adam", "adadelta", "adagrad", "rmsprop", "lion", "lamb", "lbfgs", "sam"])
def test_training_is_unchanged_whatever_the_optimizer(name: str) -> None:
    check_unchanged(name)
