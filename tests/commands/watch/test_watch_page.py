"""The page of a running audit in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sgoif.commands.watch.server import WatchServer

HOSTILE = "<img src=x onerror=alert(1)>\n\u202eevil"
WORST = [
    {"row": k, "influence": 2.5 - k, "low": 1.0, "high": None, "name": HOSTILE if k == 0 else f"{k}.png",
     "label": "<b>cat</b>", "harmed": "dog & co"}
    for k in range(3)
]  # fmt: skip
ESTIMATE = {"step": 40, "noise_rate": 0.12, "low": 0.1, "high": 0.15, "aupr": 0.91}


@pytest.fixture
def page(browser: Any, serve: Callable[..., WatchServer]) -> Iterator[Any]:
    """The page of the run, watched for errors and for requests to anywhere else."""
    server = serve()
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(20_000)
    here = f"http://127.0.0.1:{server.server_port}/"
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("console", lambda message: complaints.append(message.text) if "404" not in message.text else None)
    page.on("request", lambda request: complaints.append(request.url) if not request.url.startswith(here) else None)
    page.goto(server.link)
    page.locator("html[data-ready]").wait_for(state="attached")
    assert page.url == here  # the token is not left in the address
    yield page
    context.close()
    assert complaints == []


def test_the_page_follows_the_run(page: Any, tell: Any) -> None:
    state = page.locator("#state")
    assert state.inner_text() == "no network is being trained yet"
    tell(step=10)
    page.get_by_text("10 of 100").wait_for()
    assert state.inner_text() == "training"
    assert "not judged yet" in page.locator("#figures").inner_text()
    assert page.locator("#alarms").is_hidden()
    assert page.locator("#curves svg.chart").count() == 0
    tell(step=50, entries=5, worst_step=40, worst=WORST, estimate=ESTIMATE, alarms=["the loss <i>grows</i>"])
    page.get_by_text("50 of 100").wait_for()
    figures = page.locator("#figures").inner_text()
    assert "12%" in figures
    assert "91%" in figures
    assert "10% to 15%" in figures
    assert page.locator("#alarms").is_visible()
    assert "the loss <i>grows</i>" in page.locator("#alarms").inner_text()
    assert page.locator("#curves svg.chart").count() == 3
    tell(step=100, entries=6, state="finished", worst_step=100, worst=WORST[:2])
    page.locator("#state", has_text="finished: open report.html").wait_for()
    assert page.locator("#cards li").count() == 2


def test_names_are_text_and_pictures_are_shown(page: Any, tell: Any) -> None:
    tell(step=50, entries=2, worst_step=40, worst=WORST)
    first = page.locator("#cards li").first
    first.wait_for()
    assert "<img src=x onerror=alert(1)>\u240a" in first.inner_text()
    assert "<b>cat</b>" in first.inner_text()
    assert page.locator("#cards b").count() == 0
    assert "not observed" in first.inner_text()
    picture = first.locator("img")
    page.wait_for_function("document.querySelector('#cards img').naturalWidth > 0")
    assert picture.get_attribute("src") == "/thumb/0"


def test_fits_a_phone_and_keeps_what_has_not_changed(page: Any, tell: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    tell(step=50, entries=3, worst_step=40, worst=WORST)
    page.locator("#cards li").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.evaluate("document.querySelector('#cards li').dataset.mine = 'yes'")
    tell(step=51, entries=3, worst_step=40, worst=WORST)
    page.get_by_text("51 of 100").wait_for()
    assert page.locator("#cards li[data-mine]").count() == 1
