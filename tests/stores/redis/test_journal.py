"""What was handled lately: over several shards, over large and damaged entries, and beside the purge."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.records import KEY, Entries, Entry, Lookup
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import effects, entry, send
from tests import redis_servers
from tests.stores.redis.conftest import EVERY_SERVER, Open, OpenAt, urls_of

url = urls_of(*EVERY_SERVER)
NAME, OTHER = "order", "parcel"


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


def _handle(backend: RedisBackend, number: int, saga: str = NAME, outcome: str = "handled") -> Entry:
    """Commit an entry as the engine does: under the id that find has returned, in the shard of its key."""
    found = backend.sagas.find(Lookup((saga,), KEY, str(number), has_alternate_keys=False))
    line = entry(key=str(number), saga=saga, attempt=found.new_id, outcome=outcome)
    backend.sagas.record(effects(line=line))
    return line


def _pages(backend: RedisBackend, limit: int, names: Sequence[str] = (), after: str = "") -> Iterator[Entries]:
    page = backend.journal.recent(limit, after, names)
    yield page
    while page.after:
        page = backend.journal.recent(limit, page.after, names)
        yield page


def _numbers(pages: Iterator[Entries]) -> list[int]:
    return [int(line.key) for page in pages for line in page.entries]


class TestShards:
    """The entries of all shards are merged by their times."""

    @pytest.fixture
    def handled(self, sharded: RedisBackend, clock: Clock) -> list[Entry]:
        """Entries of two sagas in turn, in all shards, of different times."""
        lines = []
        for number in range(60):
            clock.advance(1)
            lines.append(_handle(sharded, number, OTHER if number % 2 else NAME))
        return lines

    @pytest.mark.parametrize("limit", [1, 2, 7, 59, 60, 61])
    def test_newest_first(self, sharded: RedisBackend, handled: list[Entry], limit: int) -> None:
        pages = list(_pages(sharded, limit))
        assert _numbers(iter(pages)) == list(range(59, -1, -1))
        assert len(pages) == -(-60 // limit)
        assert {line.attempt.rpartition(".")[2] for line in handled} == {"0", "1", "2"}

    @pytest.mark.parametrize("limit", [1, 2, 7, 29, 30, 31])
    def test_of_one_saga(self, sharded: RedisBackend, handled: list[Entry], limit: int) -> None:
        assert _numbers(_pages(sharded, limit, [NAME])) == list(range(58, -1, -2))

    def test_entries_that_are_added_and_purged_move_no_others(self, sharded: RedisBackend, handled: list[Entry]) -> None:
        """Not in the shards either of which the first call has returned nothing."""
        first = sharded.journal.recent(2)
        assert sharded.journal.purge(49, limit=99) == 10
        for number in range(60, 90):
            _handle(sharded, number)
        assert _numbers(iter([first, *_pages(sharded, 5, after=first.after)])) == list(range(59, 9, -1))

    def test_entry_that_is_added_comes_in_no_later_page(self, sharded: RedisBackend) -> None:
        """Not in a shard either that had nothing for the first one: it is newer than all that follows."""
        own, *others = (str(number) for number in range(100))
        shard_of = sharded._placement._number
        _handle(sharded, int(own))
        for key in others:
            if shard_of(key) != shard_of(own):
                _handle(sharded, int(key))
        first = sharded.journal.recent(1, names=[OTHER])
        assert (first.entries, bool(first.after)) == ((), True)
        _handle(sharded, int(own), OTHER)
        assert _numbers(_pages(sharded, 1, [OTHER], first.after)) == []

    def test_times_that_are_looked_back_to(self, sharded: RedisBackend, handled: list[Entry], clock: Clock) -> None:
        times = [page.since for page in _pages(sharded, 1, ["nobody"])]
        assert times[-1] == 0
        assert times[:-1] == sorted(times[:-1], reverse=True)
        assert clock.now >= times[0] >= times[-2] > clock.now - 60

    def test_a_page_is_one_trip(self, sharded: RedisBackend, handled: list[Entry]) -> None:
        sharded.journal.recent(9)  # the script is loaded
        trips: list[str] = []
        sharded.client.observers.append(trips.append)
        sharded.journal.recent(9)
        servers = {sharded.client.holder_of(shard.journal) for shard in sharded._placement.shards}
        # a connection that was lost has the layout looked at again
        assert len([trip for trip in trips if trip != "layout_register"]) <= len(servers)

    @pytest.mark.parametrize(
        "after", ["1", "1.2", "1.2.3.4", "1..3", "1.2.x", "1.2.-3", "1.2.3\n", "1.2.\u0663", f"1.2.{'9' * 16}"]
    )
    def test_wrong_place(self, sharded: RedisBackend, after: str) -> None:
        with pytest.raises(ValueError, match="no place"):
            sharded.journal.recent(9, after)

    def test_place_that_is_not_there_yet(self, sharded: RedisBackend, handled: list[Entry]) -> None:
        """Such as one that a server had, and has lost with the last second."""
        assert _numbers(_pages(sharded, 60, after=".".join(["9" * 15] * 3))) == list(range(59, -1, -1))


class TestPieces:
    """What one call reads."""

    def test_large_entries_end_it_early(self, backend: RedisBackend) -> None:
        """The server is not held up by more than a few of them."""
        for number in range(6):
            send(backend, line=entry(key=str(number))._replace(detail='"' + "x" * 2_000_000 + '"'))
        pages = list(_pages(backend, 500))
        assert _numbers(iter(pages)) == [5, 4, 3, 2, 1, 0]
        assert len(pages) > 1

    def test_one_call_looks_at_few_however_many_are_asked_for(self, backend: RedisBackend) -> None:
        lines = [send(backend, line=entry(key=str(number))).key for number in range(1_100)]
        pages = list(_pages(backend, 5_000))
        assert [line.key for page in pages for line in page.entries] == lines[::-1]
        assert [len(page.entries) for page in pages] == [500, 500, 100]

    def test_last_page_says_so(self, backend: RedisBackend) -> None:
        for number in range(4):
            send(backend, line=entry(key=str(number)))
        assert [len(page.entries) for page in _pages(backend, 2)] == [2, 2]
        assert [len(page.entries) for page in _pages(backend, 2, [NAME])] == [2, 2]

    @pytest.mark.parametrize("names", [[], [NAME], ["nobody"]])
    @pytest.mark.parametrize("text", [b"nonsense", b"1 2 3 4 5 6\n", b"1700000000000 1 - 3 3 3 3 3 3 3 1\nab"])
    def test_damaged_entry_hides_no_others(
        self, backend: RedisBackend, server: Any, prefix: str, text: bytes, names: list[str]
    ) -> None:
        for number in range(3):
            send(backend, line=entry(key=str(number)))
        server.hset(f"{{{prefix}:0}}:journal", server.lindex(f"{{{prefix}:0}}:journal:order", 1), text)
        found = [line for page in _pages(backend, 1, names) for line in page.entries]
        damaged = Entry("", "", "", "", "", "", "", 0, "", at=1 if text.startswith(b"1 ") else 1_700_000_000_000)
        assert found.count(damaged) == 1
        assert [line.key for line in found if line != damaged] == ([] if names == ["nobody"] else ["2", "0"])

    def test_entry_that_was_removed_by_hand_is_passed_over(self, backend: RedisBackend, server: Any, prefix: str) -> None:
        for number in range(3):
            send(backend, line=entry(key=str(number)))
        server.hdel(f"{{{prefix}:0}}:journal", server.lindex(f"{{{prefix}:0}}:journal:order", 1))
        assert _numbers(_pages(backend, 1)) == [2, 0]


class TestPurge:
    """Positions stay, whatever was purged before them."""

    def _purged(self, server: Any, prefix: str) -> bytes | None:
        count: bytes | None = server.hget(f"{{{prefix}:0}}:journal:heads", "purged")
        return count

    def test_it_is_counted_until_nothing_is_left(self, backend: RedisBackend, clock: Clock, server: Any, prefix: str) -> None:
        for number in range(5):
            clock.advance(1)
            send(backend, line=entry(key=str(number)))
        assert self._purged(server, prefix) is None
        for most, count in ((1, b"1"), (2, b"3"), (1, b"4"), (9, None)):
            backend.journal.purge(-9, limit=most)
            assert self._purged(server, prefix) == count

    def test_purge_of_nothing_counts_nothing(self, backend: RedisBackend, server: Any, prefix: str) -> None:
        send(backend)
        assert backend.journal.purge(9, limit=9) == 0
        assert self._purged(server, prefix) is None

    def test_place_behind_what_was_all_purged(self, backend: RedisBackend, clock: Clock) -> None:
        """Positions begin anew then: nothing comes twice."""
        for number in range(5):
            clock.advance(1)
            send(backend, line=entry(key=str(number)))
        first = backend.journal.recent(2)
        backend.journal.purge(-9, limit=9)
        send(backend, line=entry(key="5"))
        assert _numbers(iter([first])) == [4, 3]
        assert _numbers(_pages(backend, 2, after=first.after)) in ([], [5])

    def test_history_knows_no_key_of_the_count(self, backend: RedisBackend, clock: Clock) -> None:
        """It stands among the keys' newest entries, whose names have an equals sign."""
        for number in range(3):
            clock.advance(1)
            send(backend, line=entry(key="", saga="purged", version=number))
        backend.journal.purge(1, limit=1)
        assert [line.version for line in backend.journal.history(["purged"], "", 9)] == [1, 2]


def test_server_that_is_away(open_at: OpenAt) -> None:
    with redis_servers.running() as server:
        backend = open_at(server.url, options={"shards": 2, "retries": 1})
        _handle(backend, 1)
    with pytest.raises(StoreUnavailable):
        backend.journal.recent(9)


def test_entries_of_many_names(backend: RedisBackend) -> None:
    line = send(backend)
    names, outcomes = [f"saga {number}" for number in range(1_000)], ["failed", "handled"]
    assert backend.journal.recent(9, "", names, outcomes).entries == ()
    assert [each.message_id for each in backend.journal.recent(9, "", [*names, NAME], outcomes).entries] == [line.message_id]
