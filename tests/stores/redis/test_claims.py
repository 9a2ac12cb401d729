"""Leasing due rows where a server is silent, or a row is damaged: the other rows come all the same."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.cluster import ClusterClient
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.turns import Turns
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import HOUR, MINUTE, claim, effects, entry, ids, new_id, outgoing, send
from tests import redis_servers
from tests.redis_servers import RedisServer
from tests.stores.redis.conftest import Open, OpenAt
from tests.stores.redis.damage import DAMAGE, script

SHARDS = [Shard("test", number, str(number)) for number in range(6)]

#: Claims of all shards, beginning with one; returns those that had rows.
Claimed = Callable[..., list[int]]


class Nodes:
    """A client of three nodes, of which some are silent; shard 0 and 3 are on the first. Each shard has one due row."""

    total_timeout = 10.0

    def __init__(self) -> None:
        self.now = 1_000.0
        self.silent: set[int] = set()
        self.refusing: set[int] = set()
        self.asked: list[int] = []
        self.empty = False

    def holder_of(self, key: str) -> object:
        """Return the node."""
        return self._number(key) % 3

    def take(self, shard: Shard, limit: int) -> Iterator[list[int]]:
        """Answer, or take the time that nobody answers."""
        number = self._number(shard.rows[0])
        self.asked.append(number)
        if number in self.refusing:
            raise StoreUnavailable("redis", "READONLY") from redis.ReadOnlyError("no")
        if number % 3 in self.silent:
            self.now += self.total_timeout
            raise StoreUnavailable("redis", f"no answer of {number % 3}") from redis.TimeoutError("timed out")
        yield [] if self.empty else [number]

    def _number(self, key: str) -> int:
        return int(key.partition(":")[2][0])


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def turns(nodes: Nodes) -> Turns:
    return Turns(nodes, clock=lambda: nodes.now)  # type: ignore[arg-type]


@pytest.fixture
def claimed(nodes: Nodes, turns: Turns) -> Claimed:
    """Claim of all shards, beginning with one; return of which there were rows."""
    return lambda first=0: turns.take([*SHARDS[first:], *SHARDS[:first]], 100, nodes.take)


class TestSilent:
    """A server that gives no answer."""

    def test_no_other_is_asked_after_it_once_there_are_rows(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent = {1}
        assert claimed() == [0]
        assert (nodes.asked, nodes.now) == ([0, 1], 1_010.0)

    def test_it_is_passed_over_for_a_while_with_all_of_its_shards(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent = {1}
        claimed()
        nodes.asked.clear()
        assert claimed(1) == [2, 3, 5, 0]
        assert (nodes.asked, nodes.now) == ([2, 3, 5, 0], 1_010.0)

    def test_it_is_asked_again_after_a_while(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent = {1}
        claimed()
        nodes.silent = set()
        nodes.now += 29
        assert claimed() == [0, 2, 3, 5]
        nodes.now += 1
        assert claimed() == [0, 1, 2, 3, 4, 5]

    def test_one_claim_waits_for_one_only(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent = {0, 1}
        with pytest.raises(StoreUnavailable, match="no answer of 0"):
            claimed()
        assert nodes.now == 1_010.0
        with pytest.raises(StoreUnavailable, match="no answer of 1"):
            claimed()
        assert nodes.now == 1_020.0
        assert claimed() == [2, 5]
        assert nodes.now == 1_020.0

    def test_error_is_raised_if_the_others_have_nothing(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent, nodes.empty = {1}, True
        for first in (0, 0, 2, 3):
            with pytest.raises(StoreUnavailable, match="no answer of 1"):
                claimed(first)
        assert nodes.now == 1_010.0

    def test_all_are_asked_again_if_no_other_is_left(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent = {0, 1, 2}
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                claimed()
        nodes.silent = {1, 2}
        assert claimed() == [0]

    def test_error_does_not_grow(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.silent, nodes.empty = {1}, True
        assert len({_length_of_traceback(claimed) for _ in range(4)}) <= 2

    def test_one_that_refuses_is_asked_each_time(self, claimed: Claimed, nodes: Nodes) -> None:
        nodes.refusing = {0}
        assert claimed() == [1, 2, 3, 4, 5]
        assert claimed(5) == [5]
        nodes.refusing = set()
        assert claimed() == [0, 1, 2, 3, 4, 5]


def _length_of_traceback(claimed: Claimed) -> int:
    with pytest.raises(StoreUnavailable) as raised:
        claimed()
    return len(raised.traceback)


@pytest.fixture
def cluster(open_at: OpenAt) -> Iterator[tuple[list[RedisServer], RedisBackend]]:
    """Three nodes of a cluster that serves what it has though a node is away, and a backend of 12 shards, each with a due row."""
    with redis_servers.cluster() as nodes:
        for node in nodes:
            with node.client() as client:
                client.config_set("cluster-require-full-coverage", "no")
        url = "redis+cluster://" + ",".join(f"{redis_servers.HOST}:{node.port}" for node in nodes)
        backend = open_at(url, options={"shards": 12, "retries": 1})
        backend.prepare(create_schema=True, processes=1)
        for number in range(12):
            attempt = f"{new_id()}.{number}"
            backend.sagas.record(effects(None, outgoing(id=attempt), line=entry(attempt=attempt)))
        yield nodes, backend


def test_healthy_nodes_of_a_cluster_are_relayed(
    cluster: tuple[list[RedisServer], RedisBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call waits for the silent one, of one claim: what the others have claimed is not spoilt by waiting."""
    nodes, backend = cluster
    client, second = backend.client, ("127.0.0.1", nodes[1].port)
    assert isinstance(client, ClusterClient)
    asked, server = list[bytes](), client._server_at(second)
    ask = server.ask

    def note(commands: Sequence[bytes], timeout: float = math.inf) -> Any:
        asked.extend(commands)
        return ask(commands, timeout)

    monkeypatch.setattr(server, "ask", note)
    monkeypatch.setattr(server, "_arguments", {**server._arguments, "socket_timeout": 0.2, "socket_connect_timeout": 0.2})
    server.connections.close_idle()
    monkeypatch.setattr(backend.outbox._turns, "_clock", lambda: 0.0)  # it is passed over until the end
    on_second = {shard.suffix for shard in backend._placement.shards if _port_of(backend, shard) == nodes[1].port}
    assert 0 < len(on_second) < 12
    got: set[str] = set()
    with nodes[1].silent():
        for _ in range(4):
            with suppress(StoreUnavailable):  # of the claim that begins with the silent node, which has no rows yet
                got |= {row.id.rpartition(".")[2] for row in claim(backend)}
    assert len([command for command in asked if b"EVALSHA" in command]) == 2  # it is asked once more
    assert got == {shard.suffix for shard in backend._placement.shards} - on_second


def _port_of(backend: RedisBackend, shard: Shard) -> int:
    address: Any = backend.client.holder_of(shard.rows[0])
    return int(address[1])


class TestDamaged:
    """A row that cannot be read."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def backend(self, open_redis: Open, clock: Clock) -> RedisBackend:
        return open_redis(clock=clock)

    def test_it_is_claimed_once_and_kept(self, backend: RedisBackend, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        sound, damaged = outgoing(), outgoing()
        send(backend, damaged, sound)
        backend.client.run(DAMAGE, backend._placement.shards[0].rows, [damaged.id])
        for _ in range(3):
            assert ids(claim(backend)) == [sound.id]
            clock.advance(HOUR)
        (record,) = caplog.records
        assert "set aside" in record.getMessage()
        assert damaged.id in record.getMessage()
        assert backend.outbox.count() == 2

    def test_nobody_waits_for_it(self, backend: RedisBackend, clock: Clock) -> None:
        line = send(backend, damaged := outgoing(), owner="me", grace_ms=MINUTE)
        cause = line
        backend.client.run(DAMAGE, backend._placement.shards[0].rows, [damaged.id])
        assert backend.outbox.count_leased(cause) == 1
        clock.advance(MINUTE)
        assert backend.outbox.claim_due("me", 9, MINUTE, cause) == []
        assert backend.outbox.count_leased(cause) == 0

    def test_it_comes_again_once_it_is_fixed(self, backend: RedisBackend) -> None:
        send(backend, damaged := outgoing())
        rows = backend._placement.shards[0].rows
        whole = backend.client.run(script("return redis.call('HGET', KEYS[1], ARGV[1])"), rows, [damaged.id])
        backend.client.run(DAMAGE, rows, [damaged.id])
        assert claim(backend) == []
        fix = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return redis.call('ZADD', KEYS[2], 0, ARGV[1])"
        backend.client.run(script(fix), rows, [damaged.id, whole])
        assert ids(claim(backend)) == [damaged.id]
