"""What `sgoif trace` writes, opened in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from trace_cases import MODEL, POISON, TARGET, World

from sgoif.cli import main

HOSTILE = "<script>document.title='owned'<"  # a file name holds no slash


def test_victims_and_culprits_are_seen_and_names_are_text(
    world: World, here: Path, browser: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(world.data, here / "data")
    (here / "data" / TARGET).rename(here / "data" / HOSTILE)
    first = sorted(Path(name).name for name in world.poison)[0]
    (here / "data" / HOSTILE / first).rename(here / "data" / HOSTILE / f"{HOSTILE}.png")
    names = "\n".join(HOSTILE if name == TARGET else name for name in ("high", "low", "middle"))
    (here / "names.txt").write_text(names, encoding="utf-8")
    words = ["--data", "data", *MODEL, "--weights", str(world.weights), "--classes", "names.txt"]
    assert main(["trace", *words, "--victims", str(world.victims), "--out", "out"]) == 0
    assert HOSTILE in capfd.readouterr().out

    path = here / "out" / "culprits.html"
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda request: complaints.append(request.url) if outside(request.url, path) else None)
    page.goto(path.as_uri())
    try:
        page.wait_for_function("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
        assert page.locator("#victims .link").count() == 10
        assert page.locator("#victims .link").first.locator("img").count() == 1 + 8
        assert page.locator("#victims .answer bdi").all_text_contents() == [HOSTILE] * 10
        culprits = page.locator("#found .card .name bdi").all_text_contents()
        assert len(culprits) == POISON
        assert f"{HOSTILE}/{HOSTILE}.png" in culprits
        assert page.locator("#found").is_visible()
        assert page.locator("script").count() == 0
        assert page.title() == "data – culprits"
    finally:
        context.close()
    assert complaints == []


def outside(url: str, path: Path) -> bool:
    return not url.startswith((path.as_uri(), "data:"))
