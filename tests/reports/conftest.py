"""Pages in a real browser. Each opened page is watched: no error, no message, no request to anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sgoif.reports.page import PageData, write_page

Opened = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """`open_page(data, ...)` writes a page and opens it as a file; keywords go to the browser context."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_one(
        data: PageData | Path,
        *,
        script: str | None = None,
        max_bytes: int = 64 * 2**20,
        context: Any = None,
        **keys: Any,
    ) -> Any:
        path = data if isinstance(data, Path) else tmp_path / "report.html"
        if isinstance(data, PageData):
            write_page(path, data, max_bytes=max_bytes)
        if context is None:
            usual = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
            context = browser.new_context(**{**usual, **keys})
            contexts.append(context)
        if script is not None:
            context.add_init_script(script)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: complaints.append(request.url) if _foreign(request.url, path) else None)
        page.goto(path.as_uri())
        page.locator("html[data-ready]").wait_for(state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def _foreign(url: str, path: Path) -> bool:
    return not url.startswith((path.as_uri(), "data:", "blob:"))
