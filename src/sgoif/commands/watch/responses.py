"""What is answered: the page, the state of the run, small pictures, and the headers that go with each of them.

A run directory may have come from somebody else. Its state is handed out as JSON and its pictures as pictures, whatever
they say they are, and no link is followed out of it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from sgoif.audit.live_status import LIVE
from sgoif.audit.run_directory import CACHE
from sgoif.commands.finished_run import SUMMARY
from sgoif.images import ImagesError, Pixels, open_pixels
from sgoif.images.containment import contained, contained_file
from sgoif.images.pixels import image_type
from sgoif.reports.templates import (
    escape_html,
    fill_template,
    join_scripts,
    page_policy,
    read_asset,
    show_control_characters,
)

SCRIPTS = ("elements.js", "charts.js", "watch.js")
MOST_LIVE_BYTES = 2**26
NOTHING_MAY_RUN = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""The content security policy of everything but the page."""


@dataclass(frozen=True)
class Response:
    """Status, content, and how a browser has to take it."""

    status: HTTPStatus
    content: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    policy: str = NOTHING_MAY_RUN
    further: Mapping[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """The headers; those against other sites are on every answer, be it an error."""
        return {
            "Content-Type": self.kind,
            "Content-Length": str(len(self.content)),
            "Cache-Control": "private, max-age=3600" if self.kind.startswith("image/") else "no-store",
            "Content-Security-Policy": self.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Connection": "close",
            **self.further,
        }


class RunContent:
    """What there is to see of one run directory, by path."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._page = _page(run)
        self._pixels: Pixels | None = None

    def respond(self, path: str) -> Response:
        """What is at a path."""
        if path == "/":
            return self._page
        if path == f"/{LIVE}":
            return self._live()
        found = re.fullmatch(r"/thumb/([0-9]{1,9})", path)
        if found is None:
            return Response(HTTPStatus.NOT_FOUND, b"there is nothing here\n")
        return self._picture(int(found[1]))

    def _live(self) -> Response:
        try:
            path = contained_file(self.run, LIVE)
            if path.stat().st_size > MOST_LIVE_BYTES:
                raise ValueError(f"{LIVE} has more than {MOST_LIVE_BYTES:,} bytes, which no audit writes")
            return Response(HTTPStatus.OK, path.read_bytes(), "application/json")
        except OSError:  # as in runs of earlier releases until they train
            state = "finished" if (self.run / SUMMARY).is_file() else "waiting"
        except ValueError as error:
            state = str(error)
        return Response(HTTPStatus.NOT_FOUND, json.dumps({"state": state}).encode(), "application/json")

    def _picture(self, number: int) -> Response:
        pixels = self._prepared()
        if pixels is None or number >= len(pixels):
            return Response(HTTPStatus.NOT_FOUND, b"there is no such picture\n")
        content = pixels.thumbnails(number)
        # The type is that of the bytes; what the folder says about them is not believed.
        kind = image_type(content)
        return Response(HTTPStatus.NOT_FOUND) if kind is None else Response(HTTPStatus.OK, content, kind)

    def _prepared(self) -> Pixels | None:
        """The prepared images, once they are there."""
        if self._pixels is None:
            try:
                self._pixels = open_pixels(contained(self.run, CACHE), verify=False)  # it need not wait for that
            except (ImagesError, OSError, ValueError):
                return None
        return self._pixels


def _page(run: Path) -> Response:
    """The page; its own script and style sheet are the only ones it may run."""
    style = read_asset("page.css")
    script = join_scripts(SCRIPTS)
    policy = page_policy(style, script, images="'self'", further=" connect-src 'self';")
    title = escape_html(show_control_characters(run.resolve().name)) or "(no name)"
    page = fill_template("watch.html", {"title": title, "policy": policy, "style": style, "script": script})
    # A page cannot say in itself who may frame it; a header can.
    return Response(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", f"{policy}; frame-ancestors 'none'")
