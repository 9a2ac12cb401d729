"""A server that answers, but serves nobody or takes no writes for now, counts as one that is away."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis

from tests import redis_servers
from tests.processes import HOST, free_port
from tests.redis_servers import RedisServer
from tests.waiting import wait_until
from tests.worker.transport.conftest import Consumer, Queue


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Have a script of another program run."""
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as threads:
        client.config_set("lua-time-limit", 10)
        script = threads.submit(other.eval, "while true do end", 0)
        wait_until(lambda: is_refused(client, "BUSY"), "a server that is busy")
        yield
        client.script_kill()
        assert script.exception()


def is_refused(client: Any, code: str) -> bool:
    """Whether a server refuses a write with this code."""
    try:
        client.execute_command("SET", "any", "")
    except redis.ResponseError as exc:
        return code in str(exc)
    return False


@contextmanager
def cut_off(server: RedisServer) -> Iterator[None]:
    """Have the server be the replica of one that is not there."""
    with server.client() as client:
        client.replicaof(HOST, free_port())
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def stale(server: RedisServer) -> Iterator[None]:
    """Have the server answer nothing since it is such a replica."""
    with server.client() as client, cut_off(server):
        client.config_set("replica-serve-stale-data", "no")
        yield
        client.config_set("replica-serve-stale-data", "yes")


@contextmanager
def without_replicas(server: RedisServer) -> Iterator[None]:
    """Have the server want more replicas than it has."""
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def without_disk(server: RedisServer) -> Iterator[None]:
    """Have the server fail to write its data to the disk."""
    (server.folder / "dump.rdb").mkdir()
    with server.client() as client:
        client.config_set("save", "3600 1000000")
        client.bgsave()
        wait_until(lambda: is_refused(client, "MISCONF"), "a server that cannot save")
        yield
        client.config_set("save", "")
    (server.folder / "dump.rdb").rmdir()


@pytest.mark.parametrize("away", [busy, cut_off, stale, without_replicas, without_disk])
def test_server_that_serves_nobody_for_now_is_away(away: Callable[[RedisServer], AbstractContextManager[None]]) -> None:
    with redis_servers.running() as server, server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a", "b")
        consumer = Consumer(server.url, [queue.name], prefetch=1)
        with consumer.connection:
            consumer.drain(1)
            with away(server):
                with pytest.raises(redis.ConnectionError):
                    consumer.got[0].ack()
                with pytest.raises(redis.ConnectionError):
                    consumer.drain(2)
            assert consumer.drain(2) == ["a", "b"]
            consumer.got[1].ack()


@pytest.mark.parametrize("away", [busy, stale])
def test_server_that_answers_nothing_for_now_cannot_be_connected_to(
    away: Callable[[RedisServer], AbstractContextManager[None]],
) -> None:
    with redis_servers.running() as server, away(server), pytest.raises(redis.ConnectionError):
        Consumer(server.url, ["q"])
