"""Commands to the server, and its clock, by which leases end unless a backend has another."""

from typing import Any

from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.client import Client
from tests.waiting import wait_until


def command(client: Client, *words: str | int) -> Any:
    """Run a command on one of the masters."""
    return next(iter(client.on_masters(*words).values()))


def servers_now(backend: RedisBackend) -> int:
    """Return the server's time in milliseconds since the epoch."""
    seconds, microseconds = map(int, command(backend.client, "TIME"))
    return seconds * 1_000 + microseconds // 1_000


def let_time_pass(backend: RedisBackend) -> None:
    """Wait until what lasts a millisecond has ended on the server."""
    over = servers_now(backend) + 2
    wait_until(lambda: servers_now(backend) > over, "the server's clock goes on")
