"""`LabelErrors` of small runs, trained once for every file of tests."""

from __future__ import annotations

import pytest
from label_cases import Problem, blobs, loop, trained, watch

from sgoif import split_holdout
from sgoif.tasks import LabelErrors


@pytest.fixture(scope="module")
def problem() -> Problem:
    return blobs()


@pytest.fixture(scope="module")
def plain(problem: Problem) -> LabelErrors:
    return LabelErrors(trained(problem), dataset=problem.dataset)


@pytest.fixture(scope="module")
def ignorant(problem: Problem) -> LabelErrors:
    training, held_out = split_holdout(problem.dataset, share=0.2)
    monitor = watch(held_out)
    for group in monitor.optimizer.param_groups:
        group["lr"] = 0.0
    loop(monitor, training, 1)
    return LabelErrors(monitor)
