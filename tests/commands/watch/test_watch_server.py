"""What the server of a run answers, and to whom."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from warm_processes import COMMAND, python
from watch_visits import ask, cookie, visit

from sgoif.audit.live_status import LIVE
from sgoif.commands.watch.server import WatchServer
from sgoif.errors import SettingError


def test_page_state_and_pictures(serve: Callable[..., WatchServer], tell: Any) -> None:
    server = serve()
    status, headers, page = visit(server, "/")
    assert status == 200
    assert b"Content-Security-Policy" in page
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert visit(server, "/live.json")[0] == 404
    tell(step=7)
    status, _, live = visit(server, "/live.json")
    assert status == 200
    assert json.loads(live)["step"] == 7
    status, headers, picture = visit(server, "/thumb/3")
    assert status == 200
    assert headers["content-type"].startswith("image/")
    assert len(picture) > 50
    assert visit(server, "/thumb/3", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "path",
    [
        "/thumb/12",
        "/thumb/-1",
        "/thumb/1e3",
        "/thumb/99999999999",
        "/../run.json",
        "/run.json",
        "/cache/images.json",
        "//x",
    ],
)
def test_nothing_else_is_served(serve: Callable[..., WatchServer], path: str) -> None:
    assert visit(serve(), path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(serve: Callable[..., WatchServer], run: Path, method: str) -> None:
    before = sorted(str(path) for path in run.rglob("*"))
    assert visit(serve(), "/live.json", method)[0] == 501
    assert sorted(str(path) for path in run.rglob("*")) == before


def test_another_name_that_points_here_is_not_answered(serve: Callable[..., WatchServer]) -> None:
    server = serve()
    assert visit(server, "/", Host="[bad")[0] == 400
    assert visit(server, "/live.json", Host="evil.example")[0] == 421
    assert visit(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    assert visit(server, "/", Host=f"[::1]:{server.server_port}")[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_the_printed_link_is_needed(serve: Callable[..., WatchServer], host: str) -> None:
    server = serve(host)
    assert ask(server, "/")[0] == 403
    assert ask(server, "/?token=guess")[0] == 403
    assert ask(server, "/thumb/0", Cookie=f"{cookie(server).partition('=')[0]}=guess")[0] == 403
    status, headers, _ = ask(server, f"/?{urlsplit(server.link).query}")
    assert status == 303
    assert headers["location"] == "/"
    assert "HttpOnly" in headers["set-cookie"]
    assert ask(server, "/thumb/0", Cookie=headers["set-cookie"].partition(";")[0])[0] == 200


def test_the_link_names_the_address_that_is_listened_on(serve: Callable[..., WatchServer]) -> None:
    """Somebody else may listen on the other address of `localhost`, and would be handed the token."""
    named = urlsplit(serve("localhost").link)
    assert named.hostname in ("127.0.0.1", "::1")
    assert urlsplit(serve("0.0.0.0").link).hostname == "0.0.0.0"


def test_several_runs_are_watched_at_once(serve: Callable[..., WatchServer]) -> None:
    """A browser keeps one set of cookies for all ports of a host."""
    first, second = serve(), serve()
    both = f"{cookie(first)}; other=x; {cookie(second)}"
    assert cookie(first).partition("=")[0] != cookie(second).partition("=")[0]
    assert ask(first, "/", Cookie=both)[0] == ask(second, "/", Cookie=both)[0] == 200
    assert ask(first, "/", Cookie=cookie(second))[0] == 403


def test_ipv6(serve: Callable[..., WatchServer]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = serve("::1")
    assert server.link.startswith(f"http://[::1]:{server.server_port}/")
    assert visit(server, "/")[0] == 200
    assert visit(server, "/", Host="evil.example")[0] == 421


def test_mistakes_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no run directory"):
        WatchServer(tmp_path)
    with pytest.raises(SettingError, match="port = 70000"):
        WatchServer(run, port=70000)
    with pytest.raises(SettingError, match="cannot listen on no such host"):
        WatchServer(run, "no such host")
    with pytest.raises(SettingError, match="cannot listen"):
        WatchServer(run, "\udcff" + "a" * 300)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match="cannot listen"):
            WatchServer(run, port=taken.getsockname()[1])


def test_the_command_prints_its_link_and_ends_with_ctrl_c(run: Path) -> None:
    process = python(COMMAND, "watch", str(run), "--json")
    try:
        link = json.loads(process.stdout.readline())["link"]
        address = urlsplit(link)
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)
        connection.request("GET", f"/{LIVE}?{address.query}")
        assert connection.getresponse().getheader("Location") == f"/{LIVE}"
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "the audit itself goes on" in messages
    assert "Traceback" not in messages
