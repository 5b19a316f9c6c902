"""Every test starts from the same seeds and computes on one thread: results repeat, and workers share the cores.

Properties are about values and never about time, so no example of one fails because the machine is busy.
"""

from __future__ import annotations

import os
import random

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy and torch are loaded
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
settings.register_profile("sgoif", deadline=None)
settings.load_profile("sgoif")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries under test may still draw from the global generator)
    torch.manual_seed(0)


LONGEST = (
    "benchmarks/tests/loops/test_loops_gap",
    "tests/audit/test_processes",
    "tests/distributed/test_communicator",
    "tests/packaging/test_distribution",
    "benchmarks/tests/examples/test_examples_cifar10",
    "benchmarks/tests/faults",
    "tests/commands/watch/test_watch_server",
    "tests/monitor/test_monitor_interrupts",
    "benchmarks/tests/test_overhead",
    "benchmarks/tests/fidelity/test_fidelity_lds",
    "tests/images/test_images_memory",
    "benchmarks/tests/labels/test_ours",
    "tests/tasks/poisoning/test_recorder",
    "benchmarks/tests/poisoning/test_poison_ours",
    "tests/tasks/test_many_classes",
    "benchmarks/tests/test_scaling",
    "tests/examples",
    "benchmarks/tests/test_bench_cli",
    "tests/audit/test_killed",
    "tests/audit/test_audit_disturbed",
)
"""Files of tests that take longest: they are begun first, so that at the end no worker waits for one of them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave out the tests that need a CUDA device where there is none."""
    items.sort(
        key=lambda item: next((n for n, file in enumerate(LONGEST) if item.nodeid.startswith(file)), len(LONGEST))
    )
    if torch.cuda.is_available():
        return
    without_device = [item for item in items if "gpu" in item.keywords]
    if without_device:
        config.hook.pytest_deselected(items=without_device)
        items[:] = [item for item in items if "gpu" not in item.keywords]
