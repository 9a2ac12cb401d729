"""What the tests count, when servers lose it."""

from contextlib import closing

from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.samples import effects, entry
from tests import redis_servers
from tests.integration.handled import counting


def test_what_a_server_has_lost_is_not_counted() -> None:
    """Neither are the entries passed over that stand in its place, as after a fail-over."""
    with redis_servers.running() as server, closing(RedisBackend(server.url, prefix="shop")) as backend:
        handled = counting(backend, "shop")
        _handle(backend, "lost", "kept")
        assert [handled("lost"), handled("kept")] == [1, 1]
        server.restart()  # it keeps nothing on disk
        _handle(backend, "kept", "new", "new")
        assert [handled("lost"), handled("kept"), handled("new")] == [0, 1, 2]


def _handle(backend: RedisBackend, *steps: str) -> None:
    for step in steps:
        backend.sagas.record(effects(line=entry(step=step)))
