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
#: Sets a field of a hash.
SET = script("return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])")
#: Adds members to a sorted set, without scores.
ENLIST = script("for _, member in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 0, member) end")
#: Removes a key.
FORGET_ALL = script("return redis.call('DEL', KEYS[1])")
#: None of these is the library's.
OF_THE_TESTS = (DAMAGE, FORGET, SET, ENLIST, FORGET_ALL)


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
