"""A small server that shows a run directory and changes nothing in it.

    /               the page
    /live.json      how the run is; 404 until it has begun to train
    /thumb/N        a small picture of image N

It listens on this machine alone unless told otherwise. A page of another site that is open in the same browser must not
read it, so only requests for the server's own name are answered; on any other address a token, part of the printed
link, is asked for.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sgoif.audit.live import LIVE
from sgoif.audit.rundir import CACHE, RUN
from sgoif.errors import SettingError
from sgoif.images import ImagesError, Pixels, open_pixels
from sgoif.report.shell import asset, digest, escaped, filled, visible

SCRIPTS = ("elements.js", "charts.js", "watch.js")
COOKIE = "sgoif_token"


class WatchServer(ThreadingHTTPServer):
    """Serves one run directory."""

    daemon_threads = True

    def __init__(self, run: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        if not (run / RUN).is_file():
            raise SettingError(f"{run} is no run directory of `sgoif audit`: it has no {RUN}")
        if not 0 <= port <= 65535:
            raise SettingError(f"port = {port} is not valid: expected 0 (any free one) to 65535")
        self.run, self.host = run, host
        self.loopback = _is_loopback(host)
        self.token = None if self.loopback else secrets.token_urlsafe(24)
        self.page = page_html(run)
        self._pixels: Pixels | None = None
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise SettingError(f"cannot listen on {host}:{port} ({error.strerror or error}); choose another") from error

    @property
    def link(self) -> str:
        """What to open in a browser."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.server_port}/{'' if self.token is None else f'?token={self.token}'}"

    def pixels(self) -> Pixels | None:
        """The prepared images, once they are there."""
        if self._pixels is None:
            try:
                self._pixels = open_pixels(self.run / CACHE)
            except ImagesError:
                return None
        return self._pixels


def page_html(run: Path) -> str:
    """The page; its own script and style sheet are the only ones it may run."""
    style = asset("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(asset(name) for name in SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; img-src 'self'; connect-src 'self'; style-src {digest(style)}; script-src"
        f" {digest(script)}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    )
    title = escaped(visible(run.resolve().name)) or "(no name)"
    return filled("watch.html", {"title": title, "policy": policy, "style": style, "script": script})


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD, and nothing else."""

    server: WatchServer
    server_version = "sgoif"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        try:
            address, meant = urlsplit(self.path), self._meant_for_us()
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, b"that is no address\n", body=body)
            return
        asked = parse_qs(address.query).get("token", [""])[0]
        if not meant:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"asked under another name\n", body=body)
        elif not self._allowed(asked):
            self._send(HTTPStatus.FORBIDDEN, b"the link with its token is needed\n", body=body)
        else:
            status, kind, content = self._content(address.path)
            keep = {} if not asked else {"Set-Cookie": f"{COOKIE}={asked}; HttpOnly; SameSite=Strict; Path=/"}
            self._send(status, content, kind, keep, body=body)

    def _meant_for_us(self) -> bool:
        """Whether the name in the request is this server's: another site's name may have been pointed here."""
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return not self.server.loopback or _is_loopback(name)

    def _allowed(self, asked: str) -> bool:
        if self.server.token is None:
            return True
        cookies = re.findall(rf"(?:^|;\s*){COOKIE}=([\w-]+)", self.headers.get("Cookie", ""))
        return any(hmac.compare_digest(given.encode(), self.server.token.encode()) for given in (asked, *cookies))

    def _content(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", self.server.page.encode("utf-8", "replace")
        if path == f"/{LIVE}":
            try:
                return HTTPStatus.OK, "application/json", (self.server.run / LIVE).read_bytes()
            except OSError:
                return HTTPStatus.NOT_FOUND, "application/json", json.dumps({"state": "waiting"}).encode()
        found = re.fullmatch(r"/thumb/(\d{1,9})", path)
        pixels = self.server.pixels() if found else None
        if found and pixels is not None and int(found[1]) < len(pixels):
            return HTTPStatus.OK, pixels.thumbnail_type, pixels.thumbnails(int(found[1]))
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is nothing here\n"

    def _send(
        self,
        status: HTTPStatus,
        content: bytes,
        kind: str = "text/plain; charset=utf-8",
        further: Mapping[str, str] | None = None,
        *,
        body: bool = True,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "private, max-age=3600" if kind.startswith("image/") else "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **(further or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line each."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
