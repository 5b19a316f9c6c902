"""Every test starts from the same seeds and computes on one thread: results repeat, and workers share the cores.

Properties are about values and never about time, so no example of one fails because the machine is busy.

Here too: the browser that pages are looked at with.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("sgoif", deadline=None)
settings.load_profile("sgoif")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries under test may still draw from the global generator)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, if there is one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("the package playwright is not installed: pip install playwright")
    named = os.environ.get("CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium was found: install the package chromium or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield running
        running.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a CUDA device where there is none."""
    if torch.cuda.is_available():
        return
    without_device = [item for item in items if "gpu" in item.keywords]
    if without_device:
        config.hook.pytest_deselected(items=without_device)
        items[:] = [item for item in items if "gpu" not in item.keywords]
