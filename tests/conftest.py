"""The browser that pages are looked at with; what holds for every test is in the `conftest.py` above."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


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
