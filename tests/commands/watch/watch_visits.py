"""How tests visit a server: over http.client, over a bare socket, with the cookie of its link or without."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

from sgoif.commands.watch.server import WatchServer

Response = tuple[int, dict[str, str], bytes]


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> Response:
    """What a stranger is answered; repeated headers are joined."""
    connection = http.client.HTTPConnection(_numeric(server), server.server_port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def cookie(server: WatchServer) -> str:
    """What a browser that opens the printed link sends from then on."""
    return ask(server, f"/?{urlsplit(server.link).query}")[1].get("set-cookie", "").partition(";")[0]


def visit(server: WatchServer, path: str, method: str = "GET", **headers: str) -> Response:
    """What somebody is answered who has opened the printed link."""
    return ask(server, path, method, **{"Cookie": cookie(server), **headers})


def send(server: WatchServer, content: bytes) -> bytes:
    """Everything that comes back for some bytes."""
    with socket.create_connection((_numeric(server), server.server_port), timeout=20) as connection:
        connection.sendall(content)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def _numeric(server: WatchServer) -> str:
    return {"0.0.0.0": "127.0.0.1"}.get(server.server_address[0], server.server_address[0])  # type: ignore[arg-type]
