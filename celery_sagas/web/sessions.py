"""Who gets in where the web view runs by itself: whoever has the link that it prints, or whom a proxy names."""

import secrets
import time
from collections.abc import Callable, Sequence
from hmac import compare_digest
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Lock
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from celery_sagas.web.access import Access, AccessOf
from celery_sagas.web.links import root_of
from celery_sagas.web.security import is_loopback, port_of

#: The name of the cookie of a session, before a port; for how long it holds, in seconds, and how many there are at most.
COOKIE: Final = "celery_sagas"
_HOLDS_S: Final = 12 * 3_600
_MOST: Final = 100
#: How many wrong tokens are looked at in so many seconds.
_WRONG, _IN_S = 5, 60.0


class Sessions:
    """Sessions that begin with a token, which is good for one.

    Args:
        access: What whoever is in may do.
        has_token: Called with each new token, which is to be shown to whoever may come in.
    """

    def __init__(self, access: Access, has_token: Callable[[str], object]) -> None:
        self._granted = access
        self._has_token = has_token
        self._lock = Lock()
        self._sessions: dict[str, float] = {}
        self._wrong: list[float] = []
        self._token = ""
        self._renew()

    def access(self, request: Request) -> Access | None:
        """Return what the sender of a request may do."""
        until = self._sessions.get(session_of(request), 0.0)
        return self._granted if time.monotonic() < until else None

    async def enter(self, request: Request) -> Response:
        """Begin a session with the token of a link."""
        if request.method != "GET":  # Starlette has HEAD with GET: what only checks a link must not use it up
            return PlainTextResponse("", 405, headers={"Allow": "GET"})
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # whose wrong tokens would keep others out
            return PlainTextResponse("Another site has opened this link: open it yourself.\n", 403)
        with self._lock:
            now = time.monotonic()
            self._wrong = [at for at in self._wrong if now - at < _IN_S]
            if len(self._wrong) >= _WRONG:
                return PlainTextResponse("Too many wrong tokens: wait for a minute.\n", 429)
            if not compare_digest(request.query_params.get("token", "").encode(), self._token.encode()):
                self._wrong.append(now)
                return PlainTextResponse("This link is not good, or was used: the console has another one.\n", 403)
            session = secrets.token_urlsafe(32)
            live = sorted((until, id) for id, until in self._sessions.items() if until > now)
            self._sessions = {id: until for until, id in live[-_MOST + 1 :]} | {session: now + _HOLDS_S}
            self._renew()
        response = RedirectResponse(request.scope.get("root_path", "") + "/", 303)
        set_cookie(request, response, session)
        return response

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self._has_token(self._token)


def session_of(request: Request) -> str:
    """Return the session that the cookie of a request has; empty: there is none."""
    return request.cookies.get(_cookie_of(request), "")


def set_cookie(request: Request, response: Response, session: str) -> None:
    """Give the browser the cookie of a session; only over TLS, unless it is on this machine."""
    is_secure = not is_loopback(request.headers.get("host", ""))
    name, path = _cookie_of(request), root_of(request) or "/"
    response.set_cookie(name, session, httponly=True, samesite="strict", secure=is_secure, path=path)


def _cookie_of(request: Request) -> str:
    """Return the name of the cookie: browsers send cookies to all ports of a host, and each may have a web view."""
    port = port_of(request.headers.get("host", ""))
    return f"{COOKIE}_{port}" if port else COOKIE


def named_by_proxy(header: str, networks: Sequence[IPv4Network | IPv6Network], grant: Callable[[str], Access]) -> AccessOf:
    """Return what lets in whom a proxy names in a header of its requests, which it must not take over from others.

    Args:
        header: Its name.
        networks: From which the proxy comes: nobody else is let in.
        grant: Returns what somebody with a name may do.
    """

    def access(request: Request) -> Access | None:
        names = request.headers.getlist(header)
        if request.client is None or len(names) != 1 or not names[0].strip():
            return None
        try:
            address = _address_of(request.client.host)
        except ValueError:  # a socket of Unix has none
            return None
        name = names[0].encode("latin-1").decode(errors="backslashreplace")  # Starlette takes headers for Latin-1
        return grant(name.strip()[:200]) if any(address in network for network in networks) else None

    return access


def _address_of(host: str) -> IPv4Address | IPv6Address:
    """Return the address of a client: a socket for IPv6 that takes IPv4, too, has ``::ffff:10.1.2.3`` for ``10.1.2.3``."""
    address = ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address
