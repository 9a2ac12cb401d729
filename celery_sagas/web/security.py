"""What every request passes, and every answer has: the host must be ours, and the answer says what a browser may do with it."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The hosts of a browser on this machine.
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
#: Nothing but our own style, images and forms; nobody may frame a page.
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Asked by programs that know no host, and shown to anybody.
PROBES: Final = ("/livez", "/readyz")
_PORT: Final = re.compile(r":[0-9]+\Z")


class Guard:
    """Refuses requests to other hosts, such as a name of somebody else that leads here; adds the headers of each answer."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        has_begun = False

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if (path in PROBES and scope["method"] in ("GET", "HEAD")) or self._knows(Headers(scope=scope).get("host", "")):
            try:
                await self._app(scope, receive, guarded)
            except Exception:  # the server logs it; without this, it would answer without the headers
                if not has_begun:
                    await PlainTextResponse("500: the log says what went wrong\n", 500)(scope, receive, guarded)
                raise
            return
        said = "400: this host is not one of asgi(…, hosts=[…])\n"
        await PlainTextResponse(said, 400)(scope, receive, guarded)

    def _knows(self, host: str) -> bool:
        return "*" in self._hosts or _without_port(host) in self._hosts


def is_loopback(host: str) -> bool:
    """Return whether the host of a request is this machine."""
    return _without_port(host) in LOOPBACK


def port_of(host: str) -> str:
    """Return the port of the host of a request; empty: it is the usual one."""
    found = _PORT.search(host)
    return found[0].removeprefix(":") if found else ""


def _without_port(host: str) -> str:
    return _PORT.sub("", host.lower())
