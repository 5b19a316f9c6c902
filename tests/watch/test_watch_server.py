"""What the server of a run answers, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sgoif.audit.live import LIVE
from sgoif.errors import SettingError
from sgoif.watch.server import COOKIE, WatchServer

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve(run: Path) -> Iterator[Callable[..., WatchServer]]:
    servers: list[WatchServer] = []

    def start(host: str = "127.0.0.1") -> WatchServer:
        server = WatchServer(run, host)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_page_state_and_pictures(serve: Callable[..., WatchServer], tell: Any) -> None:
    server = serve()
    status, headers, page = ask(server, "/")
    assert status == 200
    assert b"Content-Security-Policy" in page
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert ask(server, "/live.json")[0] == 404
    tell(step=7)
    status, _, live = ask(server, "/live.json")
    assert status == 200
    assert json.loads(live)["step"] == 7
    status, headers, picture = ask(server, "/thumb/3")
    assert status == 200
    assert headers["content-type"].startswith("image/")
    assert len(picture) > 50
    assert ask(server, "/thumb/3", "HEAD")[2] == b""


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
    assert ask(serve(), path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(serve: Callable[..., WatchServer], run: Path, method: str) -> None:
    before = sorted(str(path) for path in run.rglob("*"))
    assert ask(serve(), "/live.json", method)[0] == 501
    assert sorted(str(path) for path in run.rglob("*")) == before


def test_another_name_that_points_here_is_not_answered(serve: Callable[..., WatchServer]) -> None:
    server = serve()
    assert ask(server, "/", Host="[bad")[0] == 400
    assert ask(server, "/live.json", Host="evil.example")[0] == 421
    assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    assert ask(server, "/", Host=f"[::1]:{server.server_port}")[0] == 200


def test_elsewhere_a_token_is_asked_for(serve: Callable[..., WatchServer]) -> None:
    server = serve("0.0.0.0")
    assert server.token is not None
    assert server.token in server.link
    assert ask(server, "/")[0] == 403
    assert ask(server, "/?token=guess")[0] == 403
    assert ask(server, "/thumb/0", Cookie=f"{COOKIE}=guess")[0] == 403
    status, headers, _ = ask(server, f"/?token={server.token}")
    assert status == 200
    assert "HttpOnly" in headers["set-cookie"]
    assert ask(server, "/thumb/0", Cookie=headers["set-cookie"].partition(";")[0])[0] == 200


def test_loopback_needs_no_token(serve: Callable[..., WatchServer]) -> None:
    server = serve("localhost")
    assert server.token is None
    assert server.link == f"http://localhost:{server.server_port}/"


def test_mistakes_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no run directory"):
        WatchServer(tmp_path)
    with pytest.raises(SettingError, match="port = 70000"):
        WatchServer(run, port=70000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match="cannot listen"):
            WatchServer(run, port=taken.getsockname()[1])


def test_the_command_prints_its_link_and_ends_with_ctrl_c(run: Path) -> None:
    import os
    import signal

    source = str(Path(__file__).resolve().parents[2] / "src")
    process = subprocess.Popen(
        [sys.executable, "-m", "sgoif", "watch", str(run), "--json"],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        link = json.loads(process.stdout.readline())["link"]
        port = int(link.rpartition(":")[2].strip("/"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", f"/{LIVE}")
        assert connection.getresponse().status == 404
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "the audit itself goes on" in messages
    assert "Traceback" not in messages
