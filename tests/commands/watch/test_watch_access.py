"""Requests that nobody means well with, and visitors who take their time."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from watch_visits import ask, cookie, send, visit

from sgoif.commands.watch.server import WatchServer

Serve = Callable[..., WatchServer]
POLICIES = ("content-security-policy", "x-content-type-options", "referrer-policy", "cross-origin-resource-policy")
HOSTILE = [
    "x%0d%0aX-Injected:yes",
    "x%0d%0a%0d%0a<script>alert(1)</script>",
    "%0aX-Injected:yes",
    "%E2%80%A8",
    "%C3%A9",
    "%ff",
    "%00",
]


@pytest.fixture(autouse=True)
def _no_traceback(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No request may end in one."""
    yield
    assert "Traceback" not in capfd.readouterr().err


# --- the token ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("token", HOSTILE)
def test_nothing_of_a_request_comes_back_in_a_header(serve: Serve, token: str, host: str) -> None:
    server = serve(host)
    for sent in ("", cookie(server)):
        answer = send(
            server, f"GET /?token={token} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {sent or 'a=b'}\r\n\r\n".encode()
        )
        head, _, body = answer.partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1\.[01] (200|403) ", head)
        assert b"injected" not in head.lower()
        assert b"set-cookie" not in head.lower()
        assert b"alert(1)" not in body


@pytest.mark.parametrize("raw", ["\u2028", "é", "\x00", "\x7f"])
def test_bytes_that_no_address_has(serve: Serve, raw: str) -> None:
    answer = send(serve(), f"GET /?token={raw} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
    assert b"set-cookie" not in answer.lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_wrong_token_leaves_a_good_cookie_alone(serve: Serve, host: str) -> None:
    server = serve(host)
    status, headers, _ = visit(server, "/?token=wrong")
    assert status == 200
    assert "set-cookie" not in headers
    status, headers, _ = ask(server, "/?token=wrong", Cookie="sgoif_token=wrong")
    assert status == 403
    assert "set-cookie" not in headers


def test_the_cookie_is_the_servers_own_token(serve: Serve) -> None:
    server = serve("0.0.0.0")
    token = urlsplit(server.link).query.partition("=")[2]
    # The same token written in another way, beside other words and beside a wrong one.
    for query in (f"token={quote(token[0])}%{ord(token[1]):02x}{token[2:]}", f"a=b&token=x&token={token}"):
        status, headers, _ = ask(server, f"/live.json?{query}")
        assert status == 303
        assert headers["location"] == "/live.json"
        assert headers["set-cookie"].partition(";")[0].endswith(f"={token}")


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example", "http://evil.example/"])
def test_the_redirect_stays_here(serve: Serve, path: str) -> None:
    server = serve()
    query = urlsplit(server.link).query
    answer = send(server, f"GET {path}?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    found = re.search(rb"(?im)^location: (.*)\r$", answer)
    assert found is not None
    assert re.match(rb"/[^/\\]", found[1])


# --- every answer ---------------------------------------------------------------------------------------------------

REQUESTS = {
    "page": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: COOKIE\r\n\r\n",
    "state": b"GET /live.json HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: COOKIE\r\n\r\n",
    "picture": b"GET /thumb/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: COOKIE\r\n\r\n",
    "only the head": b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: COOKIE\r\n\r\n",
    "nothing there": b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: COOKIE\r\n\r\n",
    "redirect": b"GET /?TOKEN HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no token": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "another name": b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no name": b"GET / HTTP/1.0\r\n\r\n",
    "two names": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    "bad name": b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
    "another site": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example\r\nCookie: COOKIE\r\n\r\n",
    "another method": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nabc",
    "a made-up method": b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no HTTP": b"NONSENSE\r\n\r\n",
    "HTTP of 1991": b"GET /\r\n\r\n",
    "HTTP of another kind": b"GET / HTTP/9\r\nHost: 127.0.0.1\r\n\r\n",
    "encrypted": bytes.fromhex("16030100c6010000c20303") + bytes(60) + b"\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie\r\n : x\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_every_answer_has_every_header(serve: Serve, name: str) -> None:
    server = serve()
    known = {b"COOKIE": cookie(server), b"TOKEN": urlsplit(server.link).query}
    request = REQUESTS[name]
    for word, value in known.items():
        request = request.replace(word, value.encode())
    answer = send(server, request).decode("latin-1")
    assert re.match(r"HTTP/1\.1 \d{3} ", answer)
    lines = answer.partition("\r\n\r\n")[0].split("\r\n")[1:]
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
    assert len(headers) == len(lines)
    assert set(POLICIES) <= set(headers)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_a_line_break_in_a_header_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    monkeypatch.setattr("sgoif.commands.watch.responses.image_type", lambda content: "image/webp\r\nX-Injected: yes")
    status, headers, content = visit(server, "/thumb/0")
    assert status == 500
    assert "x-injected" not in headers
    assert set(POLICIES) <= set(headers)
    assert b"could not be sent" in content
    assert "Illegal header value" in capfd.readouterr().err  # a mistake of ours, and told to whoever runs the server


# --- another site ---------------------------------------------------------------------------------------------------

PERSON = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "cross-site, same-origin", "made-up"])
def test_another_sites_page_is_refused_with_the_cookie_too(serve: Serve, site: str) -> None:
    server = serve()
    for path in ("/", "/live.json", "/thumb/0"):
        for kind in ("empty", "image", "script", "iframe", "embed"):
            mode = "navigate" if kind in ("iframe", "embed") else "no-cors"
            headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": kind}
            assert visit(server, path, **headers)[0] == 403


def test_a_person_may_follow_a_link_to_the_page(serve: Serve) -> None:
    server = serve()
    assert visit(server, "/", Sec_Fetch_Site="cross-site", **PERSON)[0] == 200
    assert visit(server, "/live.json", Sec_Fetch_Site="cross-site", **PERSON)[0] == 403
    assert visit(server, "/thumb/0", Sec_Fetch_Site="same-origin")[0] == 200
    assert visit(server, "/thumb/0", Sec_Fetch_Site="none")[0] == 200


def test_only_the_servers_own_origin(serve: Serve) -> None:
    server = serve()
    here = f"127.0.0.1:{server.server_port}"
    for origin in ("http://evil.example", "null", f"http://localhost:{server.server_port}", "http://127.0.0.1:1"):
        assert visit(server, "/thumb/0", Origin=origin, Host=here)[0] == 403
    assert visit(server, "/thumb/0", Origin="http://[bad", Host=here)[0] == 400
    assert visit(server, "/thumb/0", Origin=f"http://{here}", Host=here)[0] == 200


# --- slow and many --------------------------------------------------------------------------------------------------


def _connections() -> int:
    """How many connections are being served: each has a thread."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def _seconds(until: Callable[[], bool], meanwhile: Callable[[], Any] = lambda: None) -> float:
    """How long something takes to come true, twenty seconds at most, with something done four times a second."""
    start = time.monotonic()
    while not until() and time.monotonic() - start < 20:
        meanwhile()
        time.sleep(0.25)
    return time.monotonic() - start


def test_a_slow_sender_is_dropped(serve: Serve) -> None:
    server = serve()
    server.deadline = 1.5
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert _seconds(lambda: _connections() == 1) < 5

        def send_one() -> None:
            with suppress(OSError):
                connection.sendall(b"a")

        assert 0.5 < _seconds(lambda: _connections() == 0, send_one) < 8


def test_a_slow_reader_is_dropped(serve: Serve, run: Path) -> None:
    server = serve()
    (run / "live.json").write_bytes(b" " * 2**25)
    request = f"GET /live.json HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie(server)}\r\n\r\n"
    assert _seconds(lambda: _connections() == 0) < 5
    server.deadline = 1.5
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(request.encode())
        assert connection.recv(10)
        assert _seconds(lambda: _connections() == 0, lambda: connection.recv(10)) < 8


def test_connections_are_bounded_and_others_wait_their_turn(serve: Serve) -> None:
    server = serve()
    good = cookie(server)
    server.deadline = 2.0
    assert _seconds(lambda: _connections() == 0) < 5
    with ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=20))
        most = 0
        for _ in range(10):
            most = max(most, _connections())
            time.sleep(0.05)
        assert 0 < most <= 32
        start = time.monotonic()
        assert ask(server, "/", Cookie=good)[0] == 200
        assert time.monotonic() - start < 15
