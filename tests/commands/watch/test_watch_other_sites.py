"""A page of another site, in a real browser that has the cookie, and what it gets of a watched run: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from sgoif.commands.watch.server import WatchServer

ATTACK = """async (at) => {
  const seen = {};
  const settle = (element, tell) => new Promise((done) => {
    element.onload = () => done(tell());
    element.onerror = () => done("refused");
    setTimeout(() => done("no answer"), 3000);
    document.body.append(element);
  });
  const made = (tag, values) => Object.assign(document.createElement(tag), values);
  for (const path of ["/live.json", "/thumb/0", "/"]) {
    for (const mode of ["cors", "no-cors"]) {
      for (const credentials of ["include", "omit"]) {
        try {
          const answer = await fetch(at + path, { mode, credentials });
          seen[`fetch ${mode} ${credentials} ${path}`] = (await answer.text()) || `nothing, ${answer.type}`;
        } catch { seen[`fetch ${mode} ${credentials} ${path}`] = "refused"; }
      }
    }
    const image = made("img", { src: at + path });
    seen[`img ${path}`] = await settle(image, () => `${image.naturalWidth} pixels`);
    seen[`script ${path}`] = await settle(made("script", { src: at + path }), () => "loaded");
    seen[`style ${path}`] = await settle(made("link", { rel: "stylesheet", href: at + path }), () => "loaded");
    const frame = made("iframe", { src: at + path });
    seen[`iframe ${path}`] = await settle(frame, () => {
      try { return frame.contentDocument.body.innerText; } catch { return "refused"; }
    });
  }
  return seen;
}"""
NOTHING = {"refused", "no answer", "nothing, opaque"}


class Site(BaseHTTPRequestHandler):
    """An empty page, whatever is asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>another site</title><body></body>")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[int]:
    """The port of another server on this machine."""
    server = HTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser of its own."""
    made = browser.new_context()
    made.set_default_timeout(20_000)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_page_of_another_site_gets_nothing(
    context: Any, serve: Callable[..., WatchServer], tell: Any, site: int, name: str
) -> None:
    server = serve()
    tell(step=7, model="secret")
    own = context.new_page()
    own.goto(server.link)
    own.locator("html[data-ready]").wait_for(state="attached")
    answered: list[tuple[str, int]] = []
    page = context.new_page()
    page.on("response", lambda answer: answered.append((answer.url, answer.status)))
    page.goto(f"http://{name}:{site}/")
    for at in (f"http://127.0.0.1:{server.server_port}", f"http://localhost:{server.server_port}"):
        seen = page.evaluate(ATTACK, at)
        assert len(seen) == 24
        assert {way: what for way, what in seen.items() if what not in NOTHING} == {}
    reached = [status for url, status in answered if str(server.server_port) in url]
    assert reached  # they did come here
    assert set(reached) == {403}
    # The page of the run itself still sees everything.
    assert "secret" in own.evaluate("fetch('/live.json').then((answer) => answer.text())")


def test_no_page_can_be_put_into_an_answer(
    context: Any, serve: Callable[..., WatchServer], tell: Any, site: int
) -> None:
    """An address that brings the end of the headers and a page of its own, which would read as the server's page."""
    server = serve()
    tell(step=7, model="secret")
    reading = (
        "fetch('/live.json').then((answer) => answer.text()).then((text) => (opener || parent).postMessage(text, '*'))"
    )
    lines = f"x\r\n\r\n<!DOCTYPE html><script>{reading}</script><!--"
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{site}/")
    page.evaluate("window.heard = []; addEventListener('message', (message) => heard.push(message.data))")
    at = f"http://127.0.0.1:{server.server_port}/?token={quote(lines)}"
    with page.expect_popup():
        page.evaluate("(at) => { window.open(at) }", at)
    page.evaluate("(at) => document.body.append(Object.assign(document.createElement('iframe'), { src: at }))", at)
    page.wait_for_timeout(2000)
    assert page.evaluate("heard") == []


def test_the_link_may_be_followed_from_another_site(context: Any, serve: Callable[..., WatchServer], site: int) -> None:
    server = serve()
    page = context.new_page()
    page.goto(f"http://localhost:{site}/")
    page.evaluate(
        "(link) => { const a = document.createElement('a'); a.href = link; a.text = 'go'; document.body.append(a) }",
        server.link,
    )
    page.get_by_text("go").click()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert page.url == f"http://127.0.0.1:{server.server_port}/"
    assert page.locator("#state").inner_text() == "no network is being trained yet"
    assert urlsplit(page.url).query == ""
