"""Who is answered: whoever opened the printed link, and nobody else who happens to reach the port.

Every program and every user of a machine can connect to its loopback address, and every page that is open in a browser
can make it send requests there. So there is always a token, on loopback as elsewhere:

    the link        holds the token; opening it sets a cookie and leads to the same address without the token
    the cookie      is the server's token, never a part of a request; a wrong token sets none and overwrites none
    Host            on loopback it must be a loopback name: another site's name may have been pointed here
    Origin          must be this server
    Sec-Fetch-Site  must be this server, or a person who types or follows a link to the page itself
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from sgoif.commands.watch.responses import Response

COOKIE = "sgoif_token"


class Access:
    """Decides about requests to a server that listens on one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self.loopback = is_loopback(host)
        self.token = secrets.token_urlsafe(24)
        self.cookie = f"{COOKIE}_{port}"
        """Browsers keep one set of cookies for all ports of a host, and several runs may be watched at once."""

    def refusal(self, path: str, headers: Mapping[str, str]) -> Response | None:
        """The answer to a request that another site's page may have caused, None to any other."""
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            origin = urlsplit(headers.get("origin", f"http://{host}")).netloc
        except ValueError:
            return Response(HTTPStatus.BAD_REQUEST, b"that is no address\n")
        if self.loopback and not is_loopback(name):
            return Response(HTTPStatus.MISDIRECTED_REQUEST, b"asked under another name\n")
        if origin != host or not _from_here(path, headers):
            return Response(HTTPStatus.FORBIDDEN, b"asked by the page of another site\n")
        return None

    def entry(self, path: str, query: str, headers: Mapping[str, str]) -> Response | None:
        """The answer that sets the cookie where the link is opened; without a good cookie a refusal, with one None."""
        if any(self._is_token(given) for given in parse_qs(query).get("token", [])):
            # Lax, not Strict: a link that is followed from a mail or a chat must reach the page after the redirect too.
            cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/"
            # Two slashes at the start would name another server.
            without_token = "/" + path.lstrip("/\\")
            return Response(HTTPStatus.SEE_OTHER, further={"Location": without_token, "Set-Cookie": cookie})
        cookies = re.findall(rf"(?:^|;\s*){self.cookie}=([\w-]+)", headers.get("cookie", ""))
        if any(self._is_token(given) for given in cookies):
            return None
        return Response(HTTPStatus.FORBIDDEN, b"the link that `sgoif watch` printed is needed, with its token\n")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def _from_here(path: str, headers: Mapping[str, str]) -> bool:
    """Whether the server's own page asks, or a person; browsers say so, and no page can say it for them."""
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return opened and path == "/"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and no other machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
