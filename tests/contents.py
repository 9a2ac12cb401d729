"""Everything that an app has stored, read past the library, to be compared."""

from contextlib import closing
from dataclasses import fields
from typing import Any

import redis
from celery import Celery
from sqlalchemy import text

from celery_sagas.settings import read_settings
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.tables import metadata
from tests.apps import backend_of

#: Every key of a prefix in Redis, with its type and what it holds.
Dump = dict[str, tuple[str, object]]


def contents_of(app: Celery) -> Any:
    """Return everything that is stored under the prefix of an app."""
    backend, prefix = backend_of(app), read_settings(app.conf).prefix
    if isinstance(backend, MemoryBackend):
        state = backend._state
        return {each.name: repr(getattr(state, each.name)) for each in fields(state)} | {"outbox": list(state.outbox)}
    if isinstance(backend, SqlBackend):
        with backend.database.connect() as connection:
            names = [table.name for table in metadata.sorted_tables if "prefix" in table.c]
            query = "SELECT * FROM {} WHERE prefix = :prefix"
            rows = {name: connection.execute(text(query.format(name)), {"prefix": prefix}) for name in names}
            return {name: sorted(map(repr, found)) for name, found in rows.items()}
    with closing(client_of(app.conf.saga_backend)) as server:
        return dump_of(server, prefix)


def client_of(url: str) -> Any:
    """Return a client of a Redis, or of a cluster, without the library in between."""
    first, *_ = url.split(",")
    is_cluster = first.startswith("redis+cluster")
    return redis.RedisCluster.from_url(first.replace("+cluster", "")) if is_cluster else redis.Redis.from_url(url)


def dump_of(server: Any, prefix: str) -> Dump:
    """Return every key of a prefix."""
    return {key.decode(): _content(server, key) for key in server.scan_iter(f"{{{prefix}:*", count=1_000)}


def _content(server: Any, key: bytes) -> tuple[str, object]:
    type = server.type(key).decode()
    if type == "hash":
        return type, server.hgetall(key)
    if type == "zset":
        return type, server.zrange(key, 0, -1, withscores=True)
    return type, server.lrange(key, 0, -1) if type == "list" else server.get(key)
