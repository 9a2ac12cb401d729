"""The scripts of buffers: what is foreign or damaged stops them, nothing is left behind, and groups are spread over shards."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_sagas.errors import StoreError, UnreadableState
from celery_sagas.stores.items import Added, Addition, Item, Rules
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.testing.batches import sends_of
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import HOUR, MINUTE, entry
from tests.stores.redis.buffer_plays import RULES, addition, divided, empty_buffers
from tests.stores.redis.catalogue import SHARD_KEYS
from tests.stores.redis.conftest import EVERY_SERVER, Dump, Open, urls_of
from tests.stores.redis.damage import foreign

url = urls_of(*EVERY_SERVER)
_KEYS = [name for name in SHARD_KEYS if name.startswith(("buffer:", "dead_letters", "outbox"))]
_GROUP = "a group {}: é"


def _writes(backend: RedisBackend) -> list[Callable[[], object]]:
    """Return every writing operation on one group, each with everything that it can write."""
    aggregates, buffers = backend.aggregates, backend.buffers
    once = RULES._replace(size=2)
    aggregates.insert(once, [addition(_GROUP, "abcdefghi")])
    first = aggregates.claim(once._replace(size=3), _GROUP, "first")
    second = aggregates.claim(once._replace(size=3), _GROUP, "second")
    assert first
    assert second
    exceptions = divided(first, _GROUP)
    aggregates.remove(once, _GROUP, "first", **exceptions)
    sends = sends_of(backend, "m1", group=_GROUP, run="second", rules=once)
    joined = RULES._replace(size=0, within_ms=0, idle_ms=0)
    aggregates.insert(joined, [addition("joined", "a")])
    return [
        lambda: aggregates.insert(RULES, [addition(_GROUP, "xy", ends_unreadable=True), addition("new", "z")]),
        lambda: aggregates.insert(joined, [addition("joined", "b")]),
        lambda: aggregates.claim(once, _GROUP, "third"),
        lambda: aggregates.renew(once, _GROUP, "second"),
        lambda: aggregates.remove(once, _GROUP, "second", **divided(second, _GROUP), sends=sends),
        lambda: aggregates.release(once, _GROUP, "third"),
        lambda: aggregates.claim_due(["agg"], 9, MINUTE),
        lambda: buffers.fire(once, _GROUP),
        lambda: buffers.remove(once, _GROUP, "b"),
        lambda: aggregates.resolve(once, _GROUP, exceptions["unreadable"]),
        lambda: aggregates.restore(once, exceptions["rejected"][0]),
        lambda: buffers.clear(once, _GROUP),
    ]


class TestForeignKeys:
    """Somebody else's data under one of our keys: a clear error, and nothing half-written."""

    @pytest.mark.parametrize("name", _KEYS)
    def test_foreign_key_stops_an_operation_before_its_first_write(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump], name: str
    ) -> None:
        key = f"{{{prefix}:0}}:{name}".replace("<aggregator>", "agg").replace("<group>", f"3:agg:{_GROUP}")
        stopped = 0
        for write in _writes(redis_backend):
            with foreign(server, key):
                before = dump()
                try:
                    write()
                except StoreError:
                    stopped += 1
                    assert dump() == before
        assert stopped


class TestDamage:
    """What was cut or edited by hand is not taken for something else."""

    @pytest.mark.parametrize("damaged", [b"", b"{}", b"nonsense"])
    def test_damaged_item_is_unreadable(self, redis_backend: RedisBackend, server: Any, prefix: str, damaged: bytes) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "abc")])
        for position in (1, 3, 5):
            server.lset(f"{{{prefix}:0}}:buffer:fresh:3:agg:", position, damaged)
        for read, place in (
            (lambda: redis_backend.buffers.read("agg", "", 9), "buffer:fresh:3:agg:"),
            (lambda: redis_backend.aggregates.claim(RULES, "", "token"), "buffer:items:agg"),
            (lambda: redis_backend.buffers.read("agg", "", 9), "buffer:items:agg"),
        ):
            with pytest.raises(UnreadableState, match=place):
                read()
        assert redis_backend.buffers.clear(RULES, "") == 3

    def test_lost_item_is_unreadable(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "abc")])
        redis_backend.aggregates.claim(RULES, "", "token")
        server.delete(f"{{{prefix}:0}}:buffer:items:agg")
        with pytest.raises(UnreadableState, match="buffer:items:agg"):
            redis_backend.aggregates.claim(RULES, "", "token")

    def test_lost_list_is_of_no_items(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "abc")])
        server.delete(f"{{{prefix}:0}}:buffer:fresh:3:agg:")
        assert redis_backend.aggregates.claim(RULES, "", "token") is None
        assert redis_backend.buffers.groups("agg", 9) == []

    @pytest.mark.parametrize("damaged", [b"", b"{}", b"nonsense"])
    def test_damaged_unresolved_item_is_unreadable(
        self, redis_backend: RedisBackend, server: Any, prefix: str, damaged: bytes
    ) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "a", ends_unreadable=True)])
        server.hset(f"{{{prefix}:0}}:buffer:items:agg", 1, damaged)
        with pytest.raises(UnreadableState, match="buffer:items:agg"):
            redis_backend.buffers.unresolved("agg", 9)
        assert redis_backend.buffers.clear(RULES, "") == 1

    def test_damaged_dead_letter_is_told_with_its_key(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "abc")])
        snapshot = redis_backend.aggregates.claim(RULES, "", "token")
        assert snapshot
        exceptions = divided(snapshot)
        redis_backend.aggregates.remove(RULES, "", "token", **exceptions)
        [dead_letter] = exceptions["rejected"]
        server.hset(f"{{{prefix}:0}}:dead_letters", dead_letter.id, b"nonsense")
        with pytest.raises(StoreError, match=f"{prefix}:0}}:dead_letters"):
            redis_backend.dead.list(9)
        assert redis_backend.dead.remove(dead_letter.id)


class TestTraces:
    """What is left of groups that are empty."""

    def test_nothing_is_left_but_names_numbers_and_remembered_ids(
        self, redis_backend: RedisBackend, dump: Callable[[], Dump]
    ) -> None:
        for write in _writes(redis_backend):
            write()
        assert _kinds(dump()) >= {"fresh", "fresh_ids", "groups"}
        empty_buffers(redis_backend)
        assert _kinds(dump()) == {"names", "sequence"}

    def test_removed_items_are_remembered_in_one_key(self, redis_backend: RedisBackend, dump: Callable[[], Dump]) -> None:
        redis_backend.aggregates.insert(RULES, [addition("", "abc")])
        redis_backend.aggregates.claim(RULES, "", "token")
        redis_backend.aggregates.remove(RULES, "", "token")
        assert _kinds(dump()) == {"names", "sequence", "seen"}


def _kinds(dump: Dump) -> set[str]:
    return {key.partition(":buffer:")[2].partition(":")[0] for key in dump if ":buffer:" in key}


class TestTrips:
    """What a call costs."""

    def test_each_call_is_one_trip_once_its_script_is_there(self, redis_backend: RedisBackend) -> None:
        """Nothing is prepared for a name or a group, neither at first nor again."""
        aggregates, trips = redis_backend.aggregates, _trips(redis_backend)
        for number in range(3):
            aggregates.insert(RULES, [addition("", "ab"), addition(f"group {number}", "ab")])
            aggregates.claim(RULES._replace(size=2), "", f"{number}")
            aggregates.remove(RULES._replace(size=2, remember_ms=0), "", f"{number}")
        calls = ["aggregate_insert", "aggregate_claim", "aggregate_remove"]
        # a connection that was lost, which fakeredis's server does now and then, has the layout looked at again
        assert [trip for trip in trips if trip != "layout_register"] == calls * 3


class TestFresh:
    """Items that no flush has taken stand in a list, beside those that come back, and those that were removed by their ids."""

    def test_removed_item_that_is_buffered_again_is_the_last(self, redis_backend: RedisBackend) -> None:
        rules = RULES._replace(remember_ms=0, size=9)
        redis_backend.aggregates.insert(rules, [addition("", "abcd")])
        redis_backend.buffers.remove(rules, "", "b")
        assert redis_backend.aggregates.insert(rules, [addition("", "bc")]) == [Added(1)]
        assert _ids(redis_backend) == "acdb"
        redis_backend.buffers.fire(rules, "")
        assert _claimed(redis_backend, rules) == "acdb"

    def test_items_that_come_back_stand_among_the_fresh_ones(self, redis_backend: RedisBackend) -> None:
        rules = RULES._replace(size=4)
        redis_backend.aggregates.insert(rules, [addition("", "abc", ends_unreadable=True), addition("", "defghi")])
        [(_, third)] = redis_backend.buffers.unresolved("agg", 9)
        assert redis_backend.aggregates.resolve(rules, "", [third.number]) == 1
        assert _ids(redis_backend) == "abcdefghi"
        assert _claimed(redis_backend, rules) == "abcd"
        assert _claimed(redis_backend, rules, "other") == "efgh"
        redis_backend.aggregates.release(rules, "", "other")
        redis_backend.aggregates.release(rules, "", "token")
        assert _claimed(redis_backend, rules._replace(size=3), "third") == "abc"
        assert _claimed(redis_backend, rules._replace(size=6), "fourth") == "defghi"

    def test_age_is_that_of_the_first_that_was_not_removed(self, open_redis: Open) -> None:
        clock = Clock()
        backend = open_redis(clock=clock)
        for id in "abcd":
            backend.aggregates.insert(RULES._replace(size=9), [addition("", id)])
            clock.advance(1_000)
        for id in "bca":
            backend.buffers.remove(RULES, "", id)
        clock.advance(MINUTE - 2_000)
        assert backend.aggregates.claim(RULES, "", "token") is None
        clock.advance(1_000)
        assert _claimed(backend, RULES, "later") == "d"

    def test_nothing_is_left_when_the_last_is_removed(self, redis_backend: RedisBackend, dump: Callable[[], Dump]) -> None:
        rules = RULES._replace(remember_ms=0)
        redis_backend.aggregates.insert(rules, [addition("", "abc")])
        for id in "bca":
            redis_backend.buffers.remove(rules, "", id)
        assert _kinds(dump()) == {"names", "sequence"}

    @pytest.mark.parametrize("damage", ["", "9 9 9"])
    def test_nothing_is_lost_with_the_state_of_a_group(
        self, redis_backend: RedisBackend, server: Any, prefix: str, damage: str
    ) -> None:
        """What is there is counted again when the next item comes."""
        rules = RULES._replace(size=2)
        redis_backend.aggregates.insert(rules._replace(size=9), [addition("", "abcd")])
        groups = f"{{{prefix}:0}}:buffer:groups:agg"
        if damage:
            server.hset(groups, "", damage)
        else:
            server.hdel(groups, "")
        redis_backend.aggregates.insert(rules, [addition("", "e")])
        redis_backend.buffers.fire(rules, "")
        assert [_claimed(redis_backend, rules, token) for token in ("first", "second", "third")] == ["ab", "cd", "e"]

    def test_one_that_was_removed_deep_in_the_list_is_met_there(self, redis_backend: RedisBackend) -> None:
        rules = RULES._replace(size=3)
        redis_backend.aggregates.insert(rules, [addition("", "abcdefgh")])
        for id in "fe":
            redis_backend.buffers.remove(rules, "", id)
        assert _claimed(redis_backend, rules, "first") == "abc"
        redis_backend.aggregates.release(rules, "", "first")
        assert _claimed(redis_backend, rules._replace(size=5), "second") == "abcdg"

    def test_thousands_are_read_but_for_those_that_were_removed(self, redis_backend: RedisBackend) -> None:
        ids = [f"{number}" for number in range(3_500)]
        redis_backend.aggregates.insert(RULES, [addition("", ids)])
        gone = {*ids[:40:2], *ids[1_500:1_540], "999", "1000", "3499"}
        for id in gone:
            redis_backend.buffers.remove(RULES, "", id)
        redis_backend.aggregates.release(RULES, "", _claim(redis_backend))
        left = [id for id in ids if id not in gone]
        assert [item.id for item in redis_backend.buffers.read("agg", "", 9_000)] == left
        assert redis_backend.buffers.count("agg") == redis_backend.buffers.count("agg", "") == (1, len(left), 0)
        snapshot = redis_backend.aggregates.claim(RULES._replace(size=3_000), "", "other")
        assert snapshot
        assert [item.id for item in snapshot.items] == left[:3_000]
        assert redis_backend.buffers.clear(RULES, "") == len(left)


def _claim(backend: RedisBackend) -> str:
    assert backend.aggregates.claim(RULES._replace(size=500), "", "token")
    return "token"


def _claimed(backend: RedisBackend, rules: Rules, token: str = "token") -> str:
    snapshot = backend.aggregates.claim(rules, "", token)
    return "".join(item.id for item in snapshot.items) if snapshot else ""


def _ids(backend: RedisBackend) -> str:
    return "".join(item.id for item in backend.buffers.read("agg", "", 99))


class TestShards:
    """Groups on several shards."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def backend(self, open_redis: Open, clock: Clock) -> RedisBackend:
        return open_redis(options={"shards": 3}, clock=clock)

    @pytest.fixture
    def groups(self, backend: RedisBackend) -> list[str]:
        """Thirty groups, each with three items."""
        groups = [f"group {number:02}" for number in range(30)]
        added = backend.aggregates.insert(RULES, [addition(group, "abc") for group in groups])
        assert [(each.added, each.needs_flush) for each in added] == [(3, True)] * 30
        return groups

    def test_groups_are_spread_and_found_again(self, backend: RedisBackend, groups: list[str]) -> None:
        shards = [backend._placement.of_group("agg", group).suffix for group in groups]
        assert {shards.count(shard) > 3 for shard in "012"} == {True}
        assert backend.buffers.names() == ["agg"]
        assert backend.buffers.count("agg")[:2] == (30, 90)
        assert [each.group for each in backend.buffers.groups("agg", 9, after="group 11")] == groups[12:21]

    def test_what_a_group_sends_lies_in_its_shard(self, backend: RedisBackend, groups: list[str], clock: Clock) -> None:
        """It is found there by its id, by what has decided it, and when it is due."""
        for group in groups:
            assert backend.aggregates.claim(RULES, group, group)
            sends = sends_of(backend, group, group=group, run=group, rules=RULES)._replace(owner="owner", grace_ms=MINUTE)
            assert backend.aggregates.remove(RULES, group, group, sends=sends) is False
            [row] = sends.outgoing
            assert backend._placement.of_id(row.id) is backend._placement.of_group("agg", group)
            assert backend.outbox.count_leased(entry(step="agg", message_id=group, attempt=row.id)) == 1
        clock.advance(MINUTE + 1)
        rows = backend.outbox.claim_due("relay", 99, MINUTE)
        assert sorted(row.message_id for row in rows) == groups
        assert backend.outbox.confirm("relay", [row.id for row in rows]) == len(groups)
        assert backend.outbox.count() == 0

    def test_many_groups_take_one_trip_for_each_shard(self, backend: RedisBackend, groups: list[str]) -> None:
        trips = _trips(backend)
        backend.aggregates.insert(RULES, [addition(group, "xyz") for group in groups])
        # a connection that was lost, which fakeredis's server does now and then, has the layout looked at again
        assert [trip for trip in trips if trip != "layout_register"] == ["aggregate_insert"] * 3

    def test_additions_to_one_group_follow_each_other(self, backend: RedisBackend) -> None:
        additions = [addition(group, ids) for ids in ("ab", "bc", "cd") for group in ("one", "two")]
        assert [each.added for each in backend.aggregates.insert(RULES, additions)] == [2, 2, 1, 1, 1, 1]
        assert [item.id for item in backend.buffers.read("agg", "two", 9)] == list("abcd")

    def test_more_items_than_one_script_inserts(self, backend: RedisBackend) -> None:
        many = [Addition(f"{number}", addition("", [f"{id}" for id in range(900)]).items) for number in range(20)]
        assert sum(each.added for each in backend.aggregates.insert(RULES, many)) == 18_000
        assert backend.buffers.count("agg")[:2] == (20, 18_000)

    def test_a_thousand_items_are_claimed_in_one_trip(self, backend: RedisBackend) -> None:
        backend.aggregates.insert(RULES, [addition("one", [f"{id}" for id in range(1_000)])])
        trips = _trips(backend)
        snapshot = backend.aggregates.claim(RULES._replace(size=1_000), "one", "token")

        assert snapshot
        assert len(snapshot.items) == 1_000
        assert [trip for trip in trips if trip != "layout_register"] == ["aggregate_claim"]

    @pytest.mark.parametrize(("most", "trips"), [(0, 3), (20_000, 1)], ids=["in parts", "all or nothing"])
    def test_more_items_of_one_group_than_one_script_inserts(self, backend: RedisBackend, most: int, trips: int) -> None:
        names, ids = _trips(backend), [f"{number}" for number in range(10_001)]
        rules = RULES._replace(max_buffered=most)
        assert backend.aggregates.insert(rules, [addition("large", ids)]) == [Added(10_001, needs_flush=True)]
        assert names.count("aggregate_insert") == trips
        assert [item.id for item in backend.buffers.read("agg", "large", 20_000)] == ids
        assert backend.aggregates.insert(rules, [addition("large", [*ids, "last"])]) == [Added(1)]

    def test_long_addition_delays_no_others(self, backend: RedisBackend) -> None:
        names, long = _trips(backend), [f"{number}" for number in range(6_000)]
        others = [addition(f"{number}", "ab") for number in range(60)]
        added = backend.aggregates.insert(RULES, [*others, addition("0", [*long, "a"]), addition("0", "ac")])
        assert [each.added for each in added] == [2] * 60 + [6_000, 1]
        assert names.count("aggregate_insert") <= 6
        assert [item.id for item in backend.buffers.read("agg", "0", 9_000)] == ["a", "b", *long, "c"]

    def test_all_due_groups_are_marked(self, backend: RedisBackend, clock: Clock, groups: list[str]) -> None:
        clock.advance(HOUR)
        first, second = (backend.aggregates.claim_due(["other", "agg"], limit, MINUTE) for limit in (20, 99))
        assert (len(first), len(second)) == (20, 10)
        assert sorted(each.group for each in first + second) == groups

    def test_unresolved_items_and_dead_letters_are_listed_whatever_their_shard(
        self, backend: RedisBackend, clock: Clock, groups: list[str]
    ) -> None:
        dead_letters = []
        for group in groups:
            snapshot = backend.aggregates.claim(RULES, group, "token")
            assert snapshot
            exceptions = divided(snapshot, group)
            backend.aggregates.remove(RULES, group, "token", **exceptions)
            dead_letters += exceptions["rejected"]
            clock.advance(1)
        assert [dead_letter.key for dead_letter in backend.dead.list(99)] == groups[::-1]
        found = _pages(backend)
        assert sorted(group for group, _ in found) == groups
        assert sum(backend.aggregates.resolve(RULES, group, [item.number]) for group, item in found) == 30
        assert all(backend.aggregates.restore(RULES, dead_letter) for dead_letter in dead_letters)
        assert backend.buffers.count("agg") == (30, 60, 0)


def _trips(backend: RedisBackend) -> list[str]:
    """Return a list to which the name of each script is added that is called from now on; the servers know it already."""
    for name in ("aggregate_insert", "aggregate_claim", "aggregate_remove"):
        backend.client.on_masters("SCRIPT", "LOAD", load(name).source)
    trips: list[str] = []
    backend.client.observers.append(trips.append)
    return trips


def _pages(backend: RedisBackend) -> list[tuple[str, Item]]:
    """Read unresolved items page by page."""
    found: list[tuple[str, Item]] = []
    while page := backend.buffers.unresolved("agg", 7, (found[-1][0], found[-1][1].number) if found else None):
        found += page
    return found
