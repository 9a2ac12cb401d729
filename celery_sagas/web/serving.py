"""The web view as a server of its own."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network, IPv6Network

from celery import Celery
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from celery_sagas.errors import needs_extra
from celery_sagas.web.access import Access, Level
from celery_sagas.web.asgi import asgi
from celery_sagas.web.security import LOOPBACK, Guard
from celery_sagas.web.sessions import Sessions, named_by_proxy

with needs_extra("web", "the web view"):
    import uvicorn


def with_links(app: Celery, access: Access, has_link: Callable[[str], object]) -> Starlette:
    """Return the web view for whoever has a link to it; ``has_link`` is given the path and query of each new one."""
    sessions = Sessions(access, lambda token: has_link(f"/login?token={token}"))
    site = asgi(app, access=sessions.access)
    routes = [Route("/login", sessions.enter, methods=["GET"]), Mount("/", site)]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=LOOPBACK)])


def behind_proxy(
    app: Celery, header: str, networks: Sequence[IPv4Network | IPv6Network], level: Level, hosts: Sequence[str]
) -> Starlette:
    """Return the web view for whom a proxy names."""
    return asgi(app, access=named_by_proxy(header, networks, partial(Access, level)), hosts=hosts)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: The address is taken, or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


def serve(site: Starlette, listening: socket.socket) -> None:
    """Serve it until the process is told to end. No request is logged: its URL may have a key."""
    config = uvicorn.Config(site, access_log=False, log_level="warning", proxy_headers=False, server_header=False, lifespan="off")
    with listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
