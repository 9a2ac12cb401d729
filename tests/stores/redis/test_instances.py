"""Pages of instances: over several shards, over large records, and over what code of the layout before has left."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_sagas.errors import StoreUnavailable, UnreadableState
from celery_sagas.stores.instances import SLOT_BITS, Glance, Page, place
from celery_sagas.stores.records import KEY, Lookup, NewRecord, Record
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.packing import key_path, pack_change, pack_new
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import (
    HOUR,
    by_key,
    change,
    complete,
    effects,
    entry,
    found,
    new_record,
    start,
    update,
)
from tests import redis_servers
from tests.redis_servers import RedisServer
from tests.stores.redis.conftest import SERVER, Open, OpenAt, urls_of
from tests.stores.redis.damage import script

url = urls_of(SERVER, "redis_cluster")
_MEMBERS = script("return redis.call('ZRANGE', KEYS[1], 0, -1)")
NAME = "order"
NEW, PAID = ("status", "new"), ("status", "paid")
T1, T2 = (("tracking", "T1"),), (("tracking", "T2"),)


@pytest.fixture
def clock() -> Clock:
    """The backend's clock."""
    return Clock()


@pytest.fixture
def backend(open_redis: Open, clock: Clock) -> RedisBackend:
    """A backend of one shard."""
    return open_redis(clock=clock)


@pytest.fixture
def sharded(open_redis: Open, clock: Clock) -> RedisBackend:
    """A backend of three shards."""
    return open_redis(clock=clock, options={"shards": 3})


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server whose settings the tests change."""
    with redis_servers.running() as server:
        yield server


@pytest.fixture
def former(server: Any, prefix: str, clock: Clock) -> "FormerWorker":
    """A worker of the layout before."""
    return FormerWorker(server, prefix, clock)


class FormerWorker:
    """Writes what the scripts of the layout before have written of an instance; these knew neither pages nor tags."""

    def __init__(self, server: Any, prefix: str, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._tag = f"{{{prefix}:0}}"

    def insert(self, key: str) -> NewRecord:
        """Begin an instance."""
        new, time = new_record(key, names=(NAME,)), b"%d" % self._clock.now
        head, tail = pack_new(new)
        self._server.hset(f"{self._tag}:instances:{NAME}", new.id, head + time + b" " + time + tail)
        self._server.hset(f"{self._tag}:keys:{NAME}", key_path(key), new.id)
        return new

    def update(self, record: Record) -> None:
        """Change an instance."""
        head, tail = pack_change(record, change())
        self._server.hset(f"{self._tag}:instances:{NAME}", record.id, head + b"%d" % self._clock.now + tail)

    def delete(self, record: Record) -> None:
        """End an instance."""
        self._server.hdel(f"{self._tag}:instances:{NAME}", record.id)
        self._server.hdel(f"{self._tag}:keys:{NAME}", key_path(record.key), f"#{record.id}")


def _index(backend: RedisBackend, limit: int = 2, between: Callable[[], object] = lambda: None) -> int:
    """Index everything; return the number of calls."""
    calls, after = 1, backend.instances.index(NAME, limit)
    while after:
        between()
        after = backend.instances.index(NAME, limit, after)
        calls += 1
    return calls


def _keys(page: Page) -> list[str]:
    return [glance.key for glance in page.instances]


def _page(backend: RedisBackend, **options: Any) -> list[str]:
    return _keys(backend.instances.page(NAME, 500, **options))


def _walk(read: Callable[[str], Page]) -> Iterator[Page]:
    page = read("")
    yield page
    while page.after:
        page = read(page.after)
        yield page


def _listed(backend: RedisBackend) -> dict[str, int]:
    """Return how many members the orders have in all shards: those of instances, and those of tags."""
    members = [member for shard in backend._placement.shards for member in backend.client.run(_MEMBERS, [shard.listed(NAME)], [])]
    return {"instances": sum(member[:1] != b"~" for member in members), "tags": sum(member[:1] == b"~" for member in members)}


class TestKept:
    """What the commits keep."""

    def test_what_is_not_declared_has_no_member(self, backend: RedisBackend, server: Any, prefix: str) -> None:
        order = start(backend)
        assert _listed(backend) == {"instances": 1, "tags": 0}
        assert not server.hexists(f"{{{prefix}:0}}:keys:{NAME}", f"#{order.id}")

    def test_instance_has_one_member_and_one_for_each_tag(self, backend: RedisBackend, clock: Clock) -> None:
        order = start(backend, tags=(("city", "Oslo"), NEW))
        for tag, before in ((PAID, NEW), (NEW, PAID)):
            clock.advance(HOUR)
            order = update(backend, order, added_tags=(tag,), removed_tags=(before,))
            assert _listed(backend) == {"instances": 1, "tags": 2}
        complete(backend, order)
        assert _listed(backend) == {"instances": 0, "tags": 0}

    def test_tag_that_is_added_again_is_had_once(self, backend: RedisBackend) -> None:
        order = update(backend, start(backend, tags=(NEW,)), added_tags=(NEW,))
        order = update(backend, order, removed_tags=(NEW,))
        assert _listed(backend) == {"instances": 1, "tags": 0}
        update(backend, order, removed_tags=(NEW,))
        assert backend.instances.count(NAME, 9) == 1

    def test_tags_do_not_change_the_alternate_keys(self, backend: RedisBackend) -> None:
        order = start(backend, keys=T1, tags=(NEW,))
        order = update(backend, order, added_tags=(PAID,), removed_tags=(NEW,))
        order = update(backend, order, added=T2, removed=T1)
        assert found(backend, Lookup((NAME,), "tracking", "T2")) == order
        assert backend.instances.count(NAME, 9, PAID) == 1
        complete(backend, order)
        start(backend, keys=(*T1, *T2))
        assert _listed(backend) == {"instances": 1, "tags": 0}


class TestPages:
    """What one call reads."""

    def test_page_is_one_round_trip(self, backend: RedisBackend) -> None:
        for number in range(9):
            start(backend, str(number), tags=(NEW,))
        reads: list[Callable[[], object]] = [
            lambda: backend.instances.page(NAME, 5),
            lambda: backend.instances.tagged(NAME, NEW, 5),
            lambda: backend.instances.count(NAME, 5, NEW),
        ]
        for read in reads:
            read()  # the script is loaded
            trips: list[str] = []
            backend.client.observers.append(trips.append)
            read()
            # a connection that was lost has the layout looked at again
            assert len([trip for trip in trips if trip != "layout_register"]) == 1

    def test_page_of_large_states_ends_early(self, backend: RedisBackend) -> None:
        """The server is not held up by more than a few of them."""
        for number in range(6):
            start(backend, str(number), data='"' + "x" * 2_000_000 + '"', id=str(number))
        pages = list(_walk(lambda after: backend.instances.page(NAME, 500, after)))
        assert [key for page in pages for key in _keys(page)] == ["5", "4", "3", "2", "1", "0"]
        assert len(pages) > 1

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_last_page_says_so(self, backend: RedisBackend, oldest_first: bool) -> None:
        for number in range(4):
            start(backend, str(number))
        pages = list(_walk(lambda after: backend.instances.page(NAME, 2, after, oldest_first=oldest_first)))
        assert [len(page.instances) for page in pages] == [2, 2]

    def test_many_records_are_read_in_their_order(self, backend: RedisBackend) -> None:
        orders = [start(backend, str(number)) for number in range(250)]
        ids = [order.id for order in orders[::-1]]
        assert backend.instances.read(NAME, ids) == orders[::-1]

    @pytest.mark.parametrize("text", [b"", b"{}", b"1 2 3 4 5 6\n", b"1 2 3 4 5 6 7\n", b"1 2 3 0004 1 1 1\nab"])
    def test_damaged_record_is_named(self, backend: RedisBackend, server: Any, prefix: str, text: bytes) -> None:
        order = start(backend, tags=(NEW,))
        server.hset(f"{{{prefix}:0}}:instances:{NAME}", order.id, text)
        assert backend.instances.tagged(NAME, NEW, 9) == ((Glance(order.id, NAME, "", 0, 0, 0, None, 0, 0),), "")
        with pytest.raises(UnreadableState, match=re.escape(f"{{{prefix}:0}}:instances:{NAME}")) as caught:
            backend.instances.read(NAME, [order.id])
        assert order.id in str(caught.value)

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_damaged_record_keeps_its_place(
        self, backend: RedisBackend, server: Any, prefix: str, clock: Clock, oldest_first: bool
    ) -> None:
        """Nothing is hidden behind it."""
        orders = []
        for key in ("1", "2", "3"):
            clock.advance(HOUR)
            orders.append(start(backend, key))
        server.hset(f"{{{prefix}:0}}:instances:{NAME}", orders[1].id, b"{}")
        found, after = [], ""
        for _ in orders:
            page = backend.instances.page(NAME, 1, after, oldest_first=oldest_first)
            found += page.instances
            after = page.after
        assert after == ""
        assert [(each.id, each.version) for each in (found if oldest_first else found[::-1])] == [
            (orders[0].id, 1),
            (orders[1].id, 0),
            (orders[2].id, 1),
        ]


class TestShards:
    """Pages are merged from what the shards have."""

    @pytest.fixture
    def orders(self, sharded: RedisBackend, clock: Clock) -> list[Record]:
        """Instances of all shards, three in a slot, in the order in which they began."""
        return [self._start(sharded, clock, number) for number in range(30)]

    def _start(self, backend: RedisBackend, clock: Clock, number: int) -> Record:
        """Start an instance as the engine does: under the id that find has returned."""
        clock.advance(1 << SLOT_BITS if number % 3 == 0 else 0)
        lookup = Lookup((NAME,), KEY, str(number), has_alternate_keys=False)
        id = backend.sagas.find(lookup).new_id
        tags = (NEW,) if number % 2 else ()
        new = NewRecord(id, (NAME,), str(number), 1, "{}", "{}", (), tags)
        backend.sagas.insert(new, effects(None, line=entry(new, outcome="started", version=1, attempt=id)))
        record = backend.sagas.find(lookup).record
        assert record is not None
        return record

    @pytest.mark.parametrize("oldest_first", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 7, 29, 30, 31])
    def test_pages(self, sharded: RedisBackend, orders: list[Record], limit: int, oldest_first: bool) -> None:
        pages = list(_walk(lambda after: sharded.instances.page(NAME, limit, after, oldest_first=oldest_first)))
        wanted = sorted((place(order.updated_at, order.id) for order in orders), reverse=not oldest_first)
        assert [glance.place for page in pages for glance in page.instances] == wanted
        assert len(pages) == -(-30 // limit)
        assert {order.id.rpartition(".")[2] for order in orders} == {"0", "1", "2"}

    @pytest.mark.parametrize("limit", [1, 2, 14, 15, 16])
    def test_pages_of_a_tag(self, sharded: RedisBackend, orders: list[Record], limit: int) -> None:
        pages = list(_walk(lambda after: sharded.instances.tagged(NAME, NEW, limit, after)))
        assert [glance.id for page in pages for glance in page.instances] == sorted(
            (order.id for order in orders[1::2]), reverse=True
        )

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_shard_whose_page_ends_early_hides_nothing_of_the_others(
        self, sharded: RedisBackend, orders: list[Record], clock: Clock, oldest_first: bool
    ) -> None:
        for order in orders:
            sharded.sagas.update(order, change(names=(NAME,), data='"' + "x" * 1_500_000 + '"'), effects(order))
        pages = list(_walk(lambda after: sharded.instances.page(NAME, 500, after, oldest_first=oldest_first)))
        places = [glance.place for page in pages for glance in page.instances]
        assert len(pages) > 1
        assert len(places) == 30
        assert places == sorted(places, reverse=not oldest_first)

    def test_counts_and_records(self, sharded: RedisBackend, orders: list[Record]) -> None:
        assert [sharded.instances.count(NAME, most) for most in (29, 30, 31)] == [29, 30, 30]
        assert sharded.instances.count(NAME, 99, NEW) == 15
        assert sharded.instances.read(NAME, [order.id for order in orders]) == orders

    def test_index_walks_all_shards(self, sharded: RedisBackend, orders: list[Record], server: Any, prefix: str) -> None:
        for number in range(3):
            server.delete(f"{{{prefix}:{number}}}:listed:{NAME}")
        assert _page(sharded) == []
        _index(sharded)
        assert len(_page(sharded)) == 30

    def test_rename_takes_places_and_tags_along(self, sharded: RedisBackend, orders: list[Record]) -> None:
        before, after = sharded.instances.page(NAME, 500).instances, sharded.sagas.rename("renamed", NAME, 9).after
        while after:
            after = sharded.sagas.rename("renamed", NAME, 9, after).after
        assert sharded.instances.page("renamed", 500).instances == tuple(each._replace(saga="renamed") for each in before)
        assert sharded.instances.count("renamed", 99, NEW) == 15
        assert _listed(sharded) == {"instances": 0, "tags": 0}


class TestFormerWorkers:
    """What workers of the layout before leave, which may go on beside those of this one."""

    def test_instance_that_they_begin_is_listed_once_it_is_indexed(
        self, backend: RedisBackend, former: FormerWorker, clock: Clock
    ) -> None:
        for key in ("1", "2", "3"):
            former.insert(key)
            clock.advance(HOUR)
        start(backend, "4", names=(NAME,))
        assert _page(backend) == ["4"]
        assert backend.instances.count(NAME, 9) == 4
        _index(backend)
        assert _page(backend) == ["4", "3", "2", "1"]

    def test_instance_that_they_change_is_passed_over_until_it_is_indexed(
        self, backend: RedisBackend, former: FormerWorker, clock: Clock
    ) -> None:
        order = start(backend, "1", tags=(NEW,))
        start(backend, "2")
        clock.advance(HOUR)
        former.update(order)
        assert _page(backend) == ["2"]
        assert _keys(backend.instances.tagged(NAME, NEW, 9)) == ["1"]
        _index(backend)
        assert _page(backend) == ["1", "2"]
        assert _listed(backend) == {"instances": 2, "tags": 1}

    def test_instance_that_they_end_is_passed_over_and_gone_once_it_is_indexed(
        self, backend: RedisBackend, former: FormerWorker
    ) -> None:
        orders = [start(backend, key, tags=(NEW, PAID)) for key in ("1", "2")]
        former.delete(orders[0])
        assert _page(backend) == _keys(backend.instances.tagged(NAME, NEW, 9)) == ["2"]
        _index(backend)
        assert _listed(backend) == {"instances": 1, "tags": 2}
        assert backend.instances.count(NAME, 9, NEW) == 1

    def test_page_of_what_is_passed_over_says_where_it_stopped(
        self, backend: RedisBackend, former: FormerWorker, clock: Clock
    ) -> None:
        orders = [start(backend, str(number), tags=(NEW,)) for number in range(6)]
        last = min(orders, key=lambda order: order.id)
        for order in orders:
            if order != last:
                former.delete(order)
        pages = _walk(lambda after: backend.instances.page(NAME, 2, after))
        assert [_keys(page) for page in pages] == [[], [], [last.key]]
        pages = _walk(lambda after: backend.instances.tagged(NAME, NEW, 2, after))
        assert [_keys(page) for page in pages] == [[], [], [last.key]]

    def test_commit_of_this_code_corrects_nothing_else(self, backend: RedisBackend, former: FormerWorker, clock: Clock) -> None:
        """Where they have moved an instance, its former place is left until it is indexed."""
        order = start(backend, "1")
        clock.advance(HOUR)
        former.update(order)
        clock.advance(HOUR)
        update(backend, found(backend, by_key("1")))
        assert _page(backend) == ["1"]
        assert _listed(backend) == {"instances": 2, "tags": 0}
        _index(backend)
        assert _listed(backend) == {"instances": 1, "tags": 0}

    def test_many_are_indexed_in_parts(self, backend: RedisBackend, former: FormerWorker) -> None:
        for number in range(700):
            former.insert(str(number))
        assert _index(backend, 100) > 7
        pages = _walk(lambda after: backend.instances.page(NAME, 500, after))
        assert sorted(int(key) for page in pages for key in _keys(page)) == list(range(700))

    def test_index_beside_commits_of_both(self, backend: RedisBackend, former: FormerWorker, clock: Clock) -> None:
        for number in range(150):
            former.insert(str(number))
        keys = iter(range(0, 30, 3))

        def go_on() -> None:
            clock.advance(HOUR)
            if (number := next(keys, None)) is None:
                return
            former.update(found(backend, by_key(str(number))))
            update(backend, found(backend, by_key(str(number + 1))))
            complete(backend, found(backend, by_key(str(number + 2))))
            start(backend, f"new {number}", names=(NAME,), tags=(NEW,))

        _index(backend, 20, go_on)
        assert next(keys, None) is None
        assert {str(number) for number in range(30, 150)} < {*_page(backend)}
        _index(backend, 20)
        assert _listed(backend) == {"instances": 150, "tags": 10}
        assert len(_page(backend)) == backend.instances.count(NAME, 500) == 150

    def test_instance_that_they_change_behind_the_first_walk_is_indexed_by_the_second(
        self, backend: RedisBackend, former: FormerWorker, clock: Clock
    ) -> None:
        order = start(backend, "1")
        after = backend.instances.index(NAME, 9)
        clock.advance(HOUR)
        former.update(order)
        assert _page(backend) == []
        assert backend.instances.index(NAME, 9, after) == ""
        assert _page(backend) == ["1"]

    def test_index_leaves_what_it_cannot_read(self, backend: RedisBackend, server: Any, prefix: str) -> None:
        order = start(backend)
        server.hset(f"{{{prefix}:0}}:instances:{NAME}", order.id, "{}")
        _index(backend)
        assert _listed(backend) == {"instances": 1, "tags": 0}

    def test_nothing_is_indexed_soon(self, backend: RedisBackend) -> None:
        assert _index(backend) == 2


class TestFull:
    """A server without memory."""

    @pytest.fixture
    def backend(self, own_server: RedisServer, open_at: OpenAt, clock: Clock) -> RedisBackend:
        """A backend on it."""
        return open_at(own_server.url, clock=clock)

    def test_commit_that_moves_an_instance_writes_nothing(
        self, own_server: RedisServer, backend: RedisBackend, clock: Clock
    ) -> None:
        order = start(backend, tags=(NEW,))
        before = backend.instances.page(NAME, 9)
        clock.advance(HOUR)
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
                    update(backend, order, added_tags=(PAID,), removed_tags=(NEW,))
                assert backend.instances.page(NAME, 9) == backend.instances.tagged(NAME, NEW, 9) == before
            finally:
                client.config_set("maxmemory", 0)
        update(backend, order, added_tags=(PAID,), removed_tags=(NEW,))
        assert _listed(backend) == {"instances": 1, "tags": 1}

    def test_end_of_an_instance_takes_all_along(self, own_server: RedisServer, backend: RedisBackend) -> None:
        order = start(backend, "ends", tags=(NEW, PAID))
        before = _listed(backend)
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                complete(backend, order)
            finally:
                client.config_set("maxmemory", 0)
        assert _listed(backend) == {"instances": before["instances"] - 1, "tags": before["tags"] - 2}

    def test_index_is_for_later(self, own_server: RedisServer, backend: RedisBackend, prefix: str) -> None:
        start(backend, "listed")
        with own_server.client() as client:
            client.delete(f"{{{prefix}:0}}:listed:{NAME}")
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreUnavailable, match="command not allowed when used memory"):
                    backend.instances.index(NAME, 9)
            finally:
                client.config_set("maxmemory", 0)
        _index(backend)
        assert _page(backend) == ["listed"]
