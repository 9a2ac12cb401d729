"""What damages what Redis keeps: scripts of the tests' own, and keys of somebody else."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from typing import Any

from celery_sagas.stores.redis.connection.scripts import Script


def script(source: str) -> Script:
    """Return a script."""
    return Script("of_the_test", source, sha1(source.encode()).hexdigest())


#: Takes the last character off a row.
DAMAGE = script("return redis.call('HSET', KEYS[1], ARGV[1], string.sub(redis.call('HGET', KEYS[1], ARGV[1]), 1, -2))")
#: Forgets the ids of removed items, however long they are to be remembered.
FORGET = script("return redis.call('ZREMRANGEBYSCORE', KEYS[1], '(0', '+inf')")


@contextmanager
def foreign(server: Any, key: str) -> Iterator[None]:
    """Put a text in the place of a key until the end of the block."""
    aside = f"{key}:aside"
    was_there = server.exists(key)
    if was_there:
        server.rename(key, aside)
    server.set(key, "foreign")
    yield
    server.delete(key)
    if was_there:
        server.rename(aside, key)
