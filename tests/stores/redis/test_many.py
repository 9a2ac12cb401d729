"""Operations of several messages at once: one round trip to each server, and each operation has its own answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from celery_sagas.errors import AlreadyHandled, StoreError, StoreUnavailable, UnreadableState
from celery_sagas.stores.operations import CountDelivery, Find, Insert, Lock, OutcomeOf, Update, Write
from celery_sagas.stores.ports import Operation
from celery_sagas.stores.records import Found, Handling, Lookup
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.samples import (
    MINUTE,
    NAMES,
    STEP,
    by_key,
    change,
    effects,
    entry,
    found,
    new_record,
    outgoing,
    start,
)
from tests import redis_servers
from tests.integration.proxy import Proxy
from tests.redis_servers import RedisServer
from tests.stores.redis.conftest import PATIENT, Open, OpenAt, on_every_server
from tests.stores.redis.test_client import CONFIRMED_SOON, replica_of
from tests.stores.redis.times import command

KEYS = tuple(map(str, range(25)))
IN_ALL = ("parcel",)


def lookups(names: tuple[str, ...], keys: Sequence[str] = KEYS) -> list[Operation]:
    """Return a find for each key, of a saga without alternate keys."""
    return [Find(Lookup(names, "$key", key, has_alternate_keys=False), Handling((STEP,), f"{key} of {names}")) for key in keys]


def insert_found(names: tuple[str, ...], answers: Sequence[Found], keys: Sequence[str] = KEYS) -> list[Operation]:
    """Return the inserts of what was not found."""
    inserts: list[Operation] = []
    for key, answer in zip(keys, answers, strict=True):
        new = new_record(key)._replace(id=answer.new_id, names=names)
        line = entry(new, saga=names[0], outcome="started", version=1, attempt=answer.new_id, message_id=f"{key} of {names}")
        inserts.append(Insert(new, effects(None, outgoing(id=f"{answer.new_id}-0"), line=line, owner="me", grace_ms=MINUTE)))
    return inserts


def updates(answers: Sequence[Found]) -> list[Operation]:
    """Return an update of each instance that was found."""
    records = [answer.record for answer in answers if answer.record]
    lines = [entry(record, attempt=answer.new_id) for record, answer in zip(records, answers, strict=True)]
    return [Update(record, change(), effects(record, line=line)) for record, line in zip(records, lines, strict=True)]


@pytest.fixture
def trips_of() -> Callable[[RedisBackend], list[str]]:
    """Note the round trips of a backend from now on."""

    def note(backend: RedisBackend) -> list[str]:
        trips: list[str] = []
        backend.client.observers.append(trips.append)
        return trips

    return note


Trips = Callable[[RedisBackend], list[str]]


@on_every_server
class TestTrips:
    """Round trips."""

    @pytest.mark.parametrize("shards", [1, 4])
    def test_a_wave_is_one_round_trip_to_each_server(self, open_redis: Open, shards: int, trips_of: Trips) -> None:
        backend = open_redis(options={"shards": shards})
        backend.many(updates(self._start_all(backend, ("first",))))  # the scripts are loaded
        answers = self._start_all(backend, ("second",))
        assert all(answer.handled for answer in answers)
        trips = trips_of(backend)
        answers = backend.many(lookups(("second",)))
        finds = len(trips)
        assert [answer.record.key for answer in answers] == list(KEYS)
        assert backend.many(updates(answers)) == [None] * 25
        assert (finds, len(trips) - finds) == (self._servers(backend), self._servers(backend))
        assert {answer.record.version for answer in backend.many(lookups(("second",)))} == {2}

    def _start_all(self, backend: RedisBackend, names: tuple[str, ...]) -> list[Found]:
        """Start an instance under each key, and find them."""
        assert backend.many(insert_found(names, backend.many(lookups(names)))) == [None] * 25
        return backend.many(lookups(names))

    def _servers(self, backend: RedisBackend) -> int:
        """Count the servers that keep the shards."""
        return len({backend.client.holder_of(shard.journal) for shard in backend._placement.shards})

    def test_different_operations_share_a_trip(self, redis_backend: RedisBackend, trips_of: Trips) -> None:
        record, other = start(redis_backend, "1"), start(redis_backend, "2")
        operations: list[Operation] = [
            Lock(other, "me", MINUTE),
            Update(record, change(), effects(record)),
            Write(effects(line=entry(key="3"))),
            Find(by_key("2")),
        ]
        redis_backend.many(operations)
        trips = trips_of(redis_backend)
        has_lock, *committed, answer = redis_backend.many(operations)
        assert (has_lock, committed, answer.record.locked_by) == (True, [None, None], "me")
        assert trips == ["saga_lock, saga_update, saga_record, saga_find"]

    def test_no_operation_makes_no_trip(self, redis_backend: RedisBackend, trips_of: Trips) -> None:
        trips = trips_of(redis_backend)
        assert redis_backend.many([]) == []
        assert trips == []


@on_every_server
class TestOneIsRefused:
    """One operation fails, and the others do not."""

    def test_a_text_that_is_no_utf8(self, redis_backend: RedisBackend) -> None:
        record, other = start(redis_backend, "1"), start(redis_backend, "2")
        lone = "\ud800"
        answers = redis_backend.many(
            [
                Find(by_key(lone)),
                Find(by_key("1"), Handling((STEP,), lone)),
                Find(by_key("1", (lone,))),
                Update(record, change(data=lone), effects(record)),
                Update(record, change(), effects(record, lock_owner=lone)),
                Lock(record, lone, MINUTE),
                CountDelivery(STEP, lone),
                OutcomeOf(NAMES, lone),
                Update(other, change(), effects(other)),
                Find(by_key("1")),
            ]
        )
        *refused, committed, answer = answers
        assert {type(each) for each in refused} == {StoreError}
        assert (committed, answer.record) == (None, record)
        assert found(redis_backend, by_key("2")).version == 2

    def test_a_key_of_another_type(self, redis_backend: RedisBackend, server: Any) -> None:
        record = start(redis_backend, "1")
        tag = redis_backend._placement.shards[0].tag
        for kind in ("instances", "keys"):
            server.set(f"{tag}:{kind}:foreign", "")
        foreign = record._replace(saga="foreign")
        *refused, answer = redis_backend.many(
            [
                Find(by_key("1", ("foreign",))),
                Lock(foreign, "me", MINUTE),
                Update(foreign, change(), effects(foreign)),
                Find(by_key("1")),
            ]
        )
        assert [type(each) for each in refused] == [StoreError] * 3
        assert all(f"{tag}:instances:foreign" in str(each) for each in refused)
        assert answer.record == record

    def test_a_damaged_instance(self, redis_backend: RedisBackend, server: Any) -> None:
        damaged, whole = start(redis_backend, "1"), start(redis_backend, "2")
        server.hset(redis_backend._placement.shards[0].instances(damaged.saga), damaged.id, "damaged")
        unreadable, answer = redis_backend.many([Find(by_key("1")), Find(by_key("2"))])
        assert isinstance(unreadable, UnreadableState)
        assert answer.record == whole

    def test_sagas_whose_shards_differ_from_their_classes(self, open_redis: Open) -> None:
        """One was registered in one shard; its class has no alternate keys any more."""
        backend = open_redis(options={"shards": 4})
        backend.sagas.find(Lookup(("moved",), "$key", "1", has_alternate_keys=True))
        answers = backend.many([*lookups(("moved",)), *lookups(IN_ALL)])
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 25 + [Found] * 25


class TestUnavailable:
    """A server that is away, or silent, is waited for once, not for each operation."""

    @pytest.fixture
    def server(self) -> Iterator[RedisServer]:
        """A server that the test stops."""
        with redis_servers.running() as server:
            yield server

    @pytest.mark.parametrize("shards", [1, 4])
    def test_a_server_that_is_away(self, server: RedisServer, open_at: OpenAt, shards: int, trips_of: Trips) -> None:
        backend = open_at(server.url, options={"shards": shards, "retries": 1})
        new = backend.many(lookups(IN_ALL))
        server.kill()
        trips = trips_of(backend)
        for operations in (lookups(IN_ALL), insert_found(IN_ALL, new)):
            for _ in range(2):  # the second time it is known that a connection was lost
                trips.clear()
                answers = backend.many(operations)
                assert {type(answer) for answer in answers} == {StoreUnavailable}
                assert len(trips) <= 2 * 3  # the layout, where a saga's instances are, and the operations
        server.start()
        new = backend.many(lookups(IN_ALL))
        assert backend.many(insert_found(IN_ALL, new)) == [None] * 25

    def test_a_backend_that_was_never_connected(self, server: RedisServer, open_at: OpenAt, trips_of: Trips) -> None:
        backend = open_at(server.url, options={"retries": 1})
        server.kill()
        trips = trips_of(backend)
        assert {type(answer) for answer in backend.many(lookups(IN_ALL))} == {StoreUnavailable}
        assert len(trips) == 2

    def test_a_lost_reply_is_asked_for_again(self, server: RedisServer, open_at: OpenAt) -> None:
        with closing(Proxy(server.url, 6379)) as proxy:
            backend = open_at(proxy.url)
            new = backend.many(lookups(IN_ALL))
            proxy.swallow(b"me")
            inserts = insert_found(IN_ALL, new)
            assert backend.many(inserts) == [None] * 25
            assert proxy.swallowed == 1
            assert backend.outbox.count() == 25
            again = insert_found(IN_ALL, backend.many(lookups(IN_ALL, ["25", "0"])), ["25", "0"])
            proxy.swallow(b"me")
            inserted, refused = backend.many(again)
            assert inserted is None
            assert isinstance(refused, AlreadyHandled)
            assert proxy.swallowed == 2

    def test_forgotten_scripts(self, server: RedisServer, open_at: OpenAt, trips_of: Trips) -> None:
        backend = open_at(server.url)
        assert backend.many(insert_found(IN_ALL, backend.many(lookups(IN_ALL)))) == [None] * 25
        answers = backend.many(lookups(IN_ALL))
        command(backend.client, "SCRIPT", "FLUSH")
        trips = trips_of(backend)
        assert backend.many(updates(answers)) == [None] * 25
        assert trips == ["saga_update"] * 2


class TestReplicas:
    """Commits that too few replicas confirm."""

    def test_what_was_found_is_waited_for_once(self) -> None:
        with redis_servers.running() as master, replica_of(master) as replica:
            with closing(RedisBackend(master.url, prefix="shop", options=PATIENT)) as backend:
                backend.many(insert_found(IN_ALL, backend.many(lookups(IN_ALL))))
            with closing(RedisBackend(master.url, prefix="shop", options=CONFIRMED_SOON)) as backend:
                backend.client.observers.append((trips := list[str]()).append)
                backend.many([*lookups(("another",)), *lookups(IN_ALL)])
                trips.clear()
                with replica.silent():
                    answers = backend.many([*lookups(("another",)), *lookups(IN_ALL)])
                assert trips == ["saga_find", "WAIT"]
                assert {type(answer) for answer in answers[:25]} == {Found}
                assert {type(answer) for answer in answers[25:]} == {StoreUnavailable}

    def test_commits_have_the_shortfall_as_their_answer(self) -> None:
        with (
            redis_servers.running() as master,
            replica_of(master) as replica,
            closing(RedisBackend(master.url, prefix="shop", options=CONFIRMED_SOON)) as backend,
        ):
            record = start_patiently(master)
            with replica.silent():
                answer, none = backend.many([Update(record, change(), effects(record)), Find(by_key("43"))])
            assert isinstance(answer, StoreUnavailable)
            assert "0 replicas confirmed" in str(answer)
            assert none.record is None
            assert found(backend, by_key()).version == 2


def start_patiently(master: RedisServer) -> Any:
    """Start an instance without waiting for replicas."""
    with closing(RedisBackend(master.url, prefix="shop", options=PATIENT)) as backend:
        return start(backend)
