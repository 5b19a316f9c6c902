"""A small server that shows a run directory and changes nothing in it.

    /               the page
    /live.json      how the run is; 404 until it has begun to train
    /thumb/N        a small picture of image N

Requests are read and answers written by h11, a package without dependencies that refuses what is not HTTP/1.1 to the
letter, a line break in a header included; sockets and threads are the standard library's. Whole servers (uvicorn,
aiohttp, `http.server`) set no deadline for slow visitors and answer malformed requests without the headers needed.

One request a connection, a number of connections at a time, and one deadline for all that happens on each of them.
"""

import socket
import socketserver
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sgoif.audit.run_directory import RUN
from sgoif.commands.watch.access import Access, is_loopback
from sgoif.commands.watch.responses import Response, RunContent
from sgoif.errors import MissingExtraError, SettingError

try:
    import h11
except ImportError as error:
    raise MissingExtraError("h11", "audit", "`sgoif watch`") from error

MOST_CONNECTIONS = 32
"""At a time; further ones wait in the operating system's queue."""
DEADLINE, LINGER = 15.0, 1.0
"""Seconds for a connection from its first byte to its last, and for a visitor to close it after the answer."""
MOST_HEAD_BYTES = 2**14
"""Of the request line and all headers together."""


class WatchServer(socketserver.ThreadingTCPServer):
    """Serves one run directory."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, run: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        if not (run / RUN).is_file():
            raise SettingError(f"{run} is no run directory of `sgoif audit`: it has no {RUN}")
        if not 0 <= port <= 65535:
            raise SettingError(f"port = {port} is not valid: expected 0 (any free one) to 65535")
        self.host, self.deadline = host, DEADLINE
        self.content = RunContent(run)
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        try:
            self.address_family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__(address, Connection)  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingError(f"cannot listen on {host}:{port} ({reason}); choose another") from error
        self.access = Access(host, self.server_port)

    @property
    def server_port(self) -> int:
        """The port it listens on."""
        return int(self.socket.getsockname()[1])

    @property
    def link(self) -> str:
        """What to open in a browser."""
        # A name such as localhost may have two addresses, and somebody else may listen on the other one.
        name = self.socket.getsockname()[0] if is_loopback(self.host) else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/?token={self.access.token}"

    def get_request(self) -> tuple[Any, Any]:
        """Take the next connection, as soon as there is room for one."""
        self._free.acquire()
        try:
            return super().get_request()
        except BaseException:
            self._free.release()
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and make room for another."""
        try:
            super().shutdown_request(request)
        finally:
            self._free.release()


class Connection(socketserver.BaseRequestHandler):
    """Answers one GET or HEAD, and nothing else."""

    server: WatchServer
    request: socket.socket

    def setup(self) -> None:
        self._ends = time.monotonic() + self.server.deadline
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)

    def handle(self) -> None:
        with suppress(OSError):  # the visitor is gone, or slower than the deadline
            try:
                asked = self._receive()
                if asked is not None:
                    self._send(self._respond(asked), body=asked.method != b"HEAD")
            except h11.RemoteProtocolError as error:
                self._send(Response(HTTPStatus(error.error_status_hint), b"that is no request that can be read\n"))
            self._linger()

    def _receive(self) -> h11.Request | None:
        """The request, without whatever follows it; None where the visitor closes the connection before."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self.request.settimeout(self._seconds_left())
            self._http.receive_data(self.request.recv(MOST_HEAD_BYTES))
        return event if isinstance(event, h11.Request) else None

    def _respond(self, asked: h11.Request) -> Response:
        if asked.method not in (b"GET", b"HEAD"):
            return Response(HTTPStatus.NOT_IMPLEMENTED, b"only GET and HEAD are answered\n")
        path, _, query = asked.target.decode("ascii").partition("?")
        headers: dict[str, str] = {}
        for name, value in asked.headers:
            key, text = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}; {text}" if key in headers else text
        access, content = self.server.access, self.server.content
        try:
            return access.refusal(path, headers) or access.entry(path, query, headers) or content.respond(path)
        except Exception:  # a mistake of ours: told to whoever runs the server, and answered like everything else
            self.server.handle_error(self.request, self.client_address)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"the answer could not be made\n")

    def _send(self, answer: Response, *, body: bool = True) -> None:
        try:
            # A line break in a header is refused here, before anything is sent.
            head = h11.Response(status_code=answer.status, headers=[*answer.headers().items()])
        except h11.LocalProtocolError:
            self.server.handle_error(self.request, self.client_address)
            answer = Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"the answer could not be sent\n")
            head = h11.Response(status_code=answer.status, headers=[*answer.headers().items()])
        parts = [self._http.send(head), self._http.send(h11.Data(data=answer.content)) if body else b""]
        self.request.settimeout(self._seconds_left())
        self.request.sendall(b"".join(part or b"" for part in parts))

    def _linger(self) -> None:
        """Wait for the visitor to close: an answer may be lost where the rest of a request was not read."""
        self._ends = min(self._ends, time.monotonic() + LINGER)
        self.request.shutdown(socket.SHUT_WR)
        while True:
            self.request.settimeout(self._seconds_left())
            if not self.request.recv(MOST_HEAD_BYTES):
                return

    def _seconds_left(self) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
