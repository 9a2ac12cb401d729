"""The audit over several shards, over large and damaged entries, and on a server without memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.audit import AuditPage
from celery_sagas.stores.records import KEY, AuditEntry, Lookup
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import HOUR, audited, by_key, change, effects, entry, is_there, new_record, operate, start
from tests import redis_servers
from tests.redis_servers import RedisServer
from tests.stores.redis.conftest import EVERY_SERVER, Dump, Open, OpenAt, urls_of

url = urls_of(*EVERY_SERVER)
NAME, OTHER = "order", "parcel"


@pytest.fixture
def clock() -> Clock:
    """The backend's clock."""
    return Clock()


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server whose settings the tests change."""
    with redis_servers.running() as server:
        yield server


@pytest.fixture
def backend(open_redis: Open, clock: Clock) -> RedisBackend:
    """A backend of one shard."""
    return open_redis(clock=clock)


def _pages(
    backend: RedisBackend, limit: int, names: Sequence[str] = (), key: str | None = None, after: str = ""
) -> Iterator[AuditPage]:
    page = backend.audit.recent(limit, after, names, key)
    yield page
    while page.after:
        page = backend.audit.recent(limit, page.after, names, key)
        yield page


def _all(backend: RedisBackend, limit: int, names: Sequence[str] = (), key: str | None = None) -> list[AuditEntry]:
    return [each for page in _pages(backend, limit, names, key) for each in page.entries]


class TestShards:
    """The entries of all shards are merged by their times and ids."""

    @pytest.fixture
    def sharded(self, open_redis: Open, clock: Clock) -> RedisBackend:
        """A backend of three shards."""
        return open_redis(clock=clock, options={"shards": 3})

    @pytest.fixture
    def made(self, sharded: RedisBackend, clock: Clock) -> list[AuditEntry]:
        """Entries, three at a time, the newest first; every third one is of another saga."""
        made = []
        for number in range(60):
            clock.advance(number % 3 == 0)
            made.append(self._operate(sharded, number)._replace(at=clock.now))
        return sorted(made, key=lambda each: (each.at, each.id), reverse=True)

    def _operate(self, backend: RedisBackend, number: int) -> AuditEntry:
        """Commit an entry as the engine does: under the id that find has returned, in the shard of its key."""
        saga, key = OTHER if number % 3 == 2 else NAME, str(number % 20)
        found = backend.sagas.find(Lookup((saga,), KEY, key, has_alternate_keys=False))
        return operate(backend, entry(key=key, saga=saga, attempt=found.new_id))

    def test_entries_are_in_several_shards(self, sharded: RedisBackend, made: list[AuditEntry], server: Any, prefix: str) -> None:
        counts = [server.hlen(f"{{{prefix}:{number}}}:audit") for number in range(3)]
        assert sum(counts) == 60
        assert min(counts) > 0

    @pytest.mark.parametrize("limit", [1, 7, 60, 61])
    def test_newest_first(self, sharded: RedisBackend, made: list[AuditEntry], limit: int) -> None:
        assert _all(sharded, limit) == made
        assert len(sharded.audit.recent(limit).entries) == min(limit, 60)

    @pytest.mark.parametrize("limit", [1, 7, 60])
    def test_of_one_saga(self, sharded: RedisBackend, made: list[AuditEntry], limit: int) -> None:
        assert _all(sharded, limit, [OTHER]) == [each for each in made if each.saga == OTHER]

    @pytest.mark.parametrize("limit", [1, 2, 9])
    def test_of_one_key(self, sharded: RedisBackend, made: list[AuditEntry], limit: int) -> None:
        for key in map(str, range(20)):
            assert _all(sharded, limit, [NAME, OTHER], key) == [each for each in made if each.key == key]
            assert _all(sharded, limit, [OTHER], key) == [each for each in made if (each.saga, each.key) == (OTHER, key)]

    def test_entries_that_are_added_and_purged_move_no_others(
        self, sharded: RedisBackend, made: list[AuditEntry], clock: Clock
    ) -> None:
        first = sharded.audit.recent(10)
        clock.advance(1)
        self._operate(sharded, 7)
        assert sharded.audit.purge(15, 100) == 15
        rest = [each for page in _pages(sharded, 4, after=first.after) for each in page.entries]
        assert [*first.entries, *rest] == made[:45]

    def test_purge_walks_all_shards_within_its_limit(self, sharded: RedisBackend, made: list[AuditEntry], clock: Clock) -> None:
        clock.advance(HOUR)
        assert [sharded.audit.purge(1_000, limit=25) for _ in range(4)] == [25, 25, 10, 0]

    def test_a_page_is_one_trip(self, sharded: RedisBackend, made: list[AuditEntry]) -> None:
        sharded.audit.recent(9)  # the script is loaded
        trips: list[str] = []
        sharded.client.observers.append(trips.append)
        sharded.audit.recent(9)
        servers = {sharded.client.holder_of(shard.journal) for shard in sharded._placement.shards}
        # a connection that was lost has the layout looked at again
        assert len([trip for trip in trips if trip != "layout_register"]) <= len(servers)


class TestPieces:
    """What one call reads, and removes."""

    def test_large_entries_end_it_early(self, backend: RedisBackend) -> None:
        """The server is not held up by more than a few of them."""
        for number in range(6):
            line = entry(key=str(number))
            backend.sagas.record(effects(line=line, audit=audited(line, reason="x" * 2_000_000, id=str(number))))
        pages = list(_pages(backend, 500))
        assert [each.id for page in pages for each in page.entries] == ["5", "4", "3", "2", "1", "0"]
        assert len(pages) > 1

    @pytest.mark.parametrize(("names", "key"), [((), None), ((NAME,), "42")])
    def test_one_call_looks_at_few_however_many_are_asked_for(
        self, backend: RedisBackend, names: tuple[str, ...], key: str | None
    ) -> None:
        ids = [operate(backend, id=f"{number:04}").id for number in range(1_100)]
        pages = list(_pages(backend, 5_000, names, key))
        assert [each.id for page in pages for each in page.entries] == ids[::-1]
        assert [len(page.entries) for page in pages] == [500, 500, 100]

    def test_last_page_says_so(self, backend: RedisBackend) -> None:
        for _ in range(4):
            operate(backend)
        for names, key in (((), None), ((NAME,), None), ((NAME,), "42")):
            assert [len(page.entries) for page in _pages(backend, 2, names, key)] == [2, 2]

    def test_purge_of_everything_leaves_no_key(self, backend: RedisBackend, clock: Clock, dump: Callable[[], Dump]) -> None:
        for number in range(700):
            operate(backend, entry(key=f"{number % 9}"))
        clock.advance(HOUR)
        assert backend.audit.purge(1_000, 1_000) == 700
        assert not [key for key in dump() if "}:audit" in key]

    @pytest.mark.parametrize(("names", "key"), [((), None), ((NAME,), None), (("nobody",), None), ((NAME,), "42")])
    @pytest.mark.parametrize("text", [b"nonsense", b"1 2 3 4 5 6\n", b"9 d 3 3 3 3 3 3 3 1\nab"])
    def test_damaged_entry_hides_no_others(
        self, backend: RedisBackend, server: Any, prefix: str, clock: Clock, text: bytes, names: tuple[str, ...], key: str | None
    ) -> None:
        for id in "abc":
            operate(backend, id=id)
        server.hset(f"{{{prefix}:0}}:audit", "b", text)
        found = _all(backend, 1, names, key)
        damaged = AuditEntry("b", "", "", "", "", "", "", 0, "", clock.now)
        assert found.count(damaged) == 1
        assert [each.id for each in found] == (["b"] if names == ("nobody",) else ["c", "b", "a"])
        clock.advance(HOUR)
        assert backend.audit.purge(1_000, 9) == 3

    def test_entry_that_was_removed_by_hand_is_passed_over(self, backend: RedisBackend, server: Any, prefix: str) -> None:
        for id in "abc":
            operate(backend, id=id)
        server.hdel(f"{{{prefix}:0}}:audit", "b")
        assert [each.id for each in _all(backend, 1)] == [each.id for each in _all(backend, 1, [NAME], "42")] == ["c", "a"]


class TestFull:
    """A server without memory."""

    @pytest.fixture
    def full(self, own_server: RedisServer, open_at: OpenAt, clock: Clock) -> Iterator[RedisBackend]:
        """A backend on it."""
        backend = open_at(own_server.url, clock=clock)
        start(backend)
        operate(backend, id="before")
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            yield backend
            client.config_set("maxmemory", 0)

    def test_commit_writes_nothing(self, full: RedisBackend) -> None:
        record, new = full.sagas.find(by_key()).record, new_record("43")
        assert record is not None
        changed, begun, recorded = (entry(each) for each in (record, new, None))
        with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
            full.sagas.update(record, change(), effects(line=changed, audit=audited(changed)))
        with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
            full.sagas.insert(new, effects(line=begun, audit=audited(begun)))
        with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
            full.sagas.record(effects(line=recorded, audit=audited(recorded)))
        assert full.sagas.find(by_key()).record == record
        assert [each.id for each in _all(full, 9)] == ["before"]

    def test_end_of_an_instance_is_written_with_its_entry(self, full: RedisBackend) -> None:
        record = full.sagas.find(by_key()).record
        assert record is not None
        line = entry(record, outcome="completed")
        full.sagas.delete(record, effects(line=line, audit=audited(line, id="end")))
        assert not is_there(full, by_key())
        assert [each.id for each in _all(full, 9, [NAME], "42")] == ["end", "before"]

    def test_old_entries_are_purged(self, full: RedisBackend, clock: Clock) -> None:
        clock.advance(HOUR)
        assert full.audit.purge(1_000, 9) == 1
        assert _all(full, 9) == []
