"""Servers of our own, which a test stops or kills, and starts again."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import pytest

from tests import embedded, rabbitmq_servers, redis_servers, servers

__all__ = ["Server", "server"]


class Server(Protocol):
    """A server of our own."""

    @property
    def url(self) -> str: ...
    @property
    def log(self) -> str: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def _postgresql() -> AbstractContextManager[Server]:
    return embedded.running() if embedded.find() else servers.absent(embedded.ABSENT)


#: Redis keeps everything that it has answered to.
_RUN: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "postgresql": _postgresql,
    "redis": partial(redis_servers.running, appendonly="yes", appendfsync="always"),
    "rabbitmq": rabbitmq_servers.running,
}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the kind that the test names."""
    with _RUN[request.param]() as server:
        yield server
