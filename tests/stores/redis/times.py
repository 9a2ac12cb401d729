"""The server's clock, by which leases end unless a backend has another."""

from celery_sagas.stores.redis.backend import RedisBackend
from tests.waiting import wait_until


def servers_now(backend: RedisBackend) -> int:
    """Return the server's time in milliseconds since the epoch."""
    seconds, microseconds = map(int, backend.client.command("TIME"))
    return seconds * 1_000 + microseconds // 1_000


def let_time_pass(backend: RedisBackend) -> None:
    """Wait until what lasts a millisecond has ended on the server."""
    over = servers_now(backend) + 2
    wait_until(lambda: servers_now(backend) > over, "the server's clock goes on")
