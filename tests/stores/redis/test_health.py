"""What a Redis server says of its health."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.health import Level, Subject
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.health import memory_of
from celery_sagas.testing.samples import start
from tests import redis_servers
from tests.redis_servers import HOST, RedisServer
from tests.stores.redis.conftest import Dump, Open, OpenAt, on_every_server
from tests.stores.redis.test_prepare import DURABLE, prepare, set_to


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    """A server to which there is nothing to say."""
    with redis_servers.running(**DURABLE) as server:
        yield server


def said(backend: RedisBackend, subject: Subject) -> list[tuple[Level, str]]:
    """Return what a backend says about a subject."""
    return [(each.level, each.sentence) for each in backend.health() if each.subject is subject]


def test_server_that_is_well(durable: RedisServer, open_at: OpenAt) -> None:
    backend = open_at(durable.url)
    prepare(backend)
    assert backend.health() == []


@on_every_server
def test_nothing_is_registered(open_redis: Open, dump: Callable[[], Dump]) -> None:
    backend = open_redis()
    assert said(backend, Subject.LAYOUT) == [(Level.FAIL, "nothing is stored yet under this saga_prefix")]
    assert dump() == {}
    prepare(backend)
    start(backend)
    before = dump()
    assert said(backend, Subject.LAYOUT) == []
    assert dump() == before


def test_other_number_of_shards(durable: RedisServer, open_at: OpenAt) -> None:
    prepare(open_at(durable.url, options={"shards": 2}))
    [(level, sentence)] = said(open_at(durable.url, options={"shards": 3}), Subject.LAYOUT)
    assert level is Level.FAIL
    assert sentence.startswith("workers do not start: saga_backend_options has shards=3")


def test_what_a_worker_warns_of(open_at: OpenAt) -> None:
    with redis_servers.running(appendonly="no", save="") as server:
        [(level, sentence)] = said(open_at(server.url), Subject.SAFETY)
    assert level is Level.WARN
    assert "keeps nothing on disk" in sentence


def test_server_that_throws_sagas_away(durable: RedisServer, open_at: OpenAt) -> None:
    with set_to(durable, "maxmemory-policy", "allkeys-lru", "noeviction"):
        [(level, sentence)] = said(open_at(durable.url), Subject.SAFETY)
    assert level is Level.FAIL
    assert "throws sagas away" in sentence


def test_replica(durable: RedisServer, open_at: OpenAt) -> None:
    with redis_servers.running() as replica, replica.client() as client:
        client.replicaof(HOST, durable.port)
        found = said(open_at(replica.url), Subject.SAFETY)
    assert any(level is Level.FAIL and "is a replica" in sentence for level, sentence in found)


def test_memory_that_is_short(durable: RedisServer, open_at: OpenAt) -> None:
    with durable.client() as client:
        used = int(client.info("memory")["used_memory"])
    with set_to(durable, "maxmemory", str(int(used * 1.01)), "0"):
        [(_, sentence)] = said(open_at(durable.url), Subject.MEMORY)
    assert "of its maxmemory: when it is full, it refuses every commit" in sentence


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({}, []),
        ({"used_memory": "100", "maxmemory": "0"}, []),
        ({"used_memory": "80", "maxmemory": "100", "aof_last_write_status": "ok"}, []),
        ({"used_memory": "81", "maxmemory": "100"}, [(Level.WARN, "redis uses 81% of its maxmemory")]),
        ({"used_memory": "96", "maxmemory": "100"}, [(Level.FAIL, "redis uses 96% of its maxmemory")]),
        ({"aof_last_write_status": "err"}, [(Level.FAIL, "redis could not write to its append-only file")]),
        ({"rdb_last_bgsave_status": "err"}, [(Level.FAIL, "redis could not save its last snapshot")]),
    ],
)
def test_what_follows(info: Mapping[str, str], said: list[tuple[Level, str]]) -> None:
    found = list(memory_of("redis", info))
    assert [each.level for each in found] == [level for level, _ in said]
    assert all(each.sentence.startswith(begin) and each.remedy for each, (_, begin) in zip(found, said, strict=True))


def test_server_that_is_away(open_at: OpenAt) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        open_at("redis://127.0.0.1:1", options={"retries": 0}).health()


def test_wrong_password(durable: RedisServer, open_at: OpenAt) -> None:
    with redis_servers.running(requirepass="s3cret") as server, pytest.raises(ConfigurationError, match="user and the password"):
        open_at(f"redis://:wrong@{HOST}:{server.port}").health()
