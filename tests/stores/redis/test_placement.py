"""Where things live: prefixes that never meet, and sagas on several shards."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_sagas.errors import ConfigurationError, RevisionConflict, StoreError, StoreUnavailable
from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.records import ID, KEY, Entry, Handling, Lookup, NewRecord, Outgoing, Record
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.keys import Shard, answer_to, tag_of
from celery_sagas.stores.redis.outbox import RedisOutbox
from celery_sagas.stores.redis.placement import LAYOUT
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import HOUR, MINUTE, Keys, change, claim, dead_letter, effects, entry, ids, new_id, outgoing
from tests.stores.redis.conftest import SERVER, Open, urls_of
from tests.stores.redis.damage import FORGET_ALL, SET, script

url = urls_of(SERVER, "redis_cluster")


_SPOIL = script("return redis.call('SET', KEYS[1], 'foreign')")
_GET = script("return redis.call('HGET', KEYS[1], ARGV[1])")
IN_ALL = ("parcel",)
WHOLE = ("order", "purchase")
T1 = (("tracking", "T1"),)
KEYS = tuple(f"{number}" for number in range(9))


@pytest.fixture
def sharded(open_redis: Open) -> RedisBackend:
    """A backend with three shards."""
    return open_redis(options={"shards": 3})


def _lookup(names: tuple[str, ...], key: str) -> Lookup:
    return Lookup(names, KEY, key, has_alternate_keys=names != IN_ALL)


def _start(
    backend: RedisBackend, key: str, *rows: str, names: tuple[str, ...] = IN_ALL, keys: Keys = (), outcome: str = "started"
) -> tuple[Record, str]:
    """Start an instance as the engine does: under the id that find has returned; return it with the message's id."""
    id = backend.sagas.find(_lookup(names, key), Handling(("step",), new_id())).new_id
    new = NewRecord(id, names, key, 1, "{}", "{}", keys)
    line = entry(new, outcome=outcome, saga=names[0], attempt=id)
    made = effects(None, *_rows(rows, id), line=line, owner="me", grace_ms=1_000)
    backend.sagas.insert(new, made)
    record = backend.sagas.find(_lookup(names, key)).record
    assert record is not None
    return record, made.entry.message_id


def _rows(kinds: tuple[str, ...], attempt: str) -> list[Outgoing]:
    return [outgoing(kind, id=f"{attempt}-{number:05}") for number, kind in enumerate(kinds)]


def _shard_of(id: str) -> str:
    return id.rpartition(".")[2]


def _rename(backend: RedisBackend, name: str, former: str) -> int:
    """Rename to the end, and return how many were moved."""
    moved, _, after = backend.sagas.rename(name, former, 2)
    while after:
        more, _, after = backend.sagas.rename(name, former, 2, after)
        moved += more
    return moved


class TestPrefixes:
    """Keys of two prefixes are never the same."""

    def test_every_prefix_has_its_own_tags(self) -> None:
        prefixes = ["", "celery-sagas", "shop", "shop.0", "0", "dead", "meta", "-", ".", "_"]
        tags = [tag_of(prefix, part) for prefix in prefixes for part in ("0", "1", "10", "dead", "meta")]
        assert len(set(tags)) == len(tags)
        assert {(tag[0], tag[-1], tag.count("{"), tag.count("}")) for tag in tags} == {("{", "}", 1, 1)}

    def test_sagas_whose_names_begin_alike_have_their_own_keys(self) -> None:
        shard = Shard("shop", 0, "")
        keys = [key for saga in ("order", "order.keys", "instances", "keys") for key in (shard.instances(saga), shard.keys(saga))]
        assert len(set(keys)) == len(keys)
        assert not set(keys) & {*shard.effects, shard.locks, answer_to("1", shard.tag)}


class TestOneShard:
    """Everything is in one shard, which needs no name."""

    def test_ids_name_no_shard_and_nothing_is_registered_for_sagas(self, redis_backend: RedisBackend) -> None:
        calls = _calls(redis_backend)
        record, _ = _start(redis_backend, "42", names=WHOLE, keys=T1)
        assert "." not in record.id
        assert "." not in redis_backend.sagas.find(_lookup(IN_ALL, "42")).new_id
        assert "shard_register" not in calls

    def test_step_of_an_existing_instance_takes_two_round_trips(self, redis_backend: RedisBackend) -> None:
        _start(redis_backend, "42")
        _step(redis_backend)  # fakeredis closes a connection on which it has refused something: an unknown script
        assert _step(redis_backend) == ["saga_find", "saga_update"]


def _handled_as(backend: RedisBackend, key: str, message_id: str) -> Entry:
    entry_of = backend.sagas.find(_lookup(IN_ALL, key), Handling((entry().step,), message_id)).handled
    assert entry_of is not None
    return entry_of


def _calls(backend: RedisBackend) -> list[str]:
    calls: list[str] = []
    backend.client.observers.append(calls.append)
    return calls


def _step(backend: RedisBackend) -> list[str]:
    """Run a step of an existing instance, once its scripts are loaded; return the round trips."""
    _update(backend)
    calls = _calls(backend)
    _update(backend)
    return calls


def _update(backend: RedisBackend) -> None:
    found = backend.sagas.find(_lookup(IN_ALL, "42"), Handling(("step",), new_id()))
    assert found.record is not None
    (row,) = _rows(("sent",), found.new_id)
    backend.sagas.update(found.record, change(names=IN_ALL), effects(found.record, row))


class TestShards:
    """Several shards."""

    def test_step_of_an_existing_instance_takes_two_round_trips(self, sharded: RedisBackend) -> None:
        _start(sharded, "42")
        assert _step(sharded) == ["saga_find", "saga_update"]

    def test_saga_without_alternate_keys_uses_all_shards(self, sharded: RedisBackend) -> None:
        shards = [_start(sharded, str(number))[0].id.rpartition(".")[2] for number in range(60)]
        assert set(shards) == {"0", "1", "2"}
        assert max(map(shards.count, shards)) < 40

    def test_saga_with_alternate_keys_lives_in_one_shard(self, sharded: RedisBackend) -> None:
        records = [_start(sharded, str(n), names=WHOLE, keys=(("tracking", f"T{n}"),))[0] for n in range(20)]
        assert len({record.id.rpartition(".")[2] for record in records}) == 1
        for number, record in enumerate(records):
            assert sharded.sagas.find(Lookup(WHOLE, "tracking", f"T{number}")).record == record
        with pytest.raises(RevisionConflict):
            _start(sharded, "another", names=WHOLE, keys=(("tracking", "T7"),))

    @pytest.mark.parametrize("names", [IN_ALL, WHOLE], ids=["all", "one"])
    def test_instance_is_found_changed_locked_and_deleted_where_it_lives(
        self, sharded: RedisBackend, names: tuple[str, ...]
    ) -> None:
        for number in range(12):
            record, _ = _start(sharded, str(number), "scheduled", "sent", names=names)
            found = sharded.sagas.find(Lookup(names, ID, record.id))
            assert (found.record, _shard_of(found.new_id)) == (record, _shard_of(record.id))
            assert sharded.sagas.lock(record, "me", MINUTE)
            made = effects(record, *_rows(("deadline",), found.new_id), lock_owner="me")
            sharded.sagas.update(record, change(names=names), made)
            changed = sharded.sagas.find(_lookup(names, str(number))).record
            assert changed is not None
            assert (changed.id, changed.version, changed.locked_by) == (record.id, 2, "")
            sharded.sagas.delete(changed, effects(changed, line=entry(changed, outcome="completed")))
            assert sharded.sagas.find(_lookup(names, str(number)), Handling((made.entry.step,), made.entry.message_id)).handled
            outcome = sharded.journal.outcome_of(names, str(number))
            assert outcome is not None
            assert outcome.instance_id == record.id
            assert [line.version for line in sharded.journal.history(names, str(number), 9)] == [0, 2, 3]
        assert sharded.outbox.count() == 12

    def test_instances_of_all_shards_began(self, sharded: RedisBackend) -> None:
        for number in range(12):
            line = entry(key=str(number), outcome="started", version=1)
            sharded.sagas.record(effects(line=line))
        assert set(sharded.journal.began(("order",), HOUR, 99)) == {str(number) for number in range(12)}
        assert len(sharded.journal.began(("order",), HOUR, 5)) == 5

    def test_strange_id_is_found_nowhere_and_always_in_the_same_shard(self, sharded: RedisBackend) -> None:
        for id in ("unknown", "unknown.3", "unknown.-1", "unknown.00", ""):
            first, second = (sharded.sagas.find(Lookup(IN_ALL, ID, id)) for _ in range(2))
            assert first.record is None
            assert _shard_of(first.new_id) == _shard_of(second.new_id)
            assert _shard_of(first.new_id) in {"0", "1", "2"}

    def test_rows_are_confirmed_released_and_failed_by_their_ids(self, open_redis: Open) -> None:
        clock = Clock()
        backend = open_redis(options={"shards": 3}, clock=clock)
        messages = [_start(backend, str(number), "sent", "sent")[1] for number in range(12)]
        assert backend.outbox.count() == 24
        assert claim(backend) == []
        decided_by = _handled_as(backend, "0", messages[0])
        assert backend.outbox.count_leased(decided_by) == 2
        clock.advance(1_001)
        assert len(backend.outbox.claim_due("relay", 9, MINUTE, decided_by)) == 2
        rows = ids(claim(backend, limit=15)) + ids(claim(backend))
        assert len(set(rows)) == 22
        assert backend.outbox.release("relay", rows[:5]) == 5
        claimed = claim(backend)
        assert sorted(ids(claimed)) == sorted(rows[:5])
        assert backend.outbox.fail("relay", rows[0], "broken", 0)
        assert [row.attempts for row in claim(backend)] == [1]
        _, *series = (row._replace(message_id=f"next of {row.id}", due_at=clock.now - 1) for row in claimed)
        assert backend.outbox.reschedule("relay", series) == 4
        assert sorted(claim(backend, "relay")) == sorted(series)
        assert backend.outbox.confirm("relay", rows) == 22
        assert backend.outbox.count() == 2

    def test_no_shard_starves_the_others(self, sharded: RedisBackend) -> None:
        for number in range(30):
            attempt = f"{new_id()}.{number % 3}"
            sharded.sagas.record(effects(None, *_rows(("sent",), attempt), line=entry(attempt=attempt)))
        first = {_shard_of(ids(claim(sharded, limit=1))[0]).partition("-")[0] for _ in range(3)}
        assert first == {"0", "1", "2"}

    def test_purge_walks_all_shards_within_its_limit(self, sharded: RedisBackend) -> None:
        for number in range(12):
            _start(sharded, str(number))
        assert [sharded.journal.purge(-HOUR, 5) for _ in range(4)] == [5, 5, 2, 0]

    def test_dead_letters_of_messages_are_in_no_shard(self, sharded: RedisBackend) -> None:
        dead_letters = [dead_letter() for _ in range(9)]
        for each in dead_letters:
            sharded.dead.add(each)
        assert {each.id for each in sharded.dead.list(9)} == {each.id for each in dead_letters}
        assert sharded.dead.count() == len(dead_letters)


class TestRegistered:
    """What was registered holds for every process."""

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 4)])
    def test_another_number_of_shards_is_refused(self, open_redis: Open, before: int, after: int) -> None:
        _start(open_redis(options={"shards": before}), "42")
        changed = open_redis(options={"shards": after})
        with pytest.raises(ConfigurationError, match=f"Set shards back to {before}"):
            changed.prepare(create_schema=True, processes=1)
        operations: list[Callable[[], Any]] = [
            lambda: changed.sagas.find(_lookup(IN_ALL, "42")),
            lambda: changed.sagas.record(effects()),
            changed.outbox.count,
            lambda: changed.journal.purge(0, 1),
        ]
        for operation in operations:
            with pytest.raises(StoreUnavailable, match=f"Set shards back to {before}"):
                operation()

    @pytest.mark.parametrize(
        ("stored", "remedy"),
        [
            (f"{LAYOUT.version + 1} {LAYOUT.version + 1} 1", "Upgrade the workers"),
            (f"{LAYOUT.oldest - 1} {LAYOUT.oldest - 1} 1", "Use the release that made it"),
            (f"{LAYOUT.version - 1} 1", "Use the release that made it"),
            (f"{LAYOUT.oldest} {LAYOUT.oldest} 1", "Run `celery -A proj sagas migrate`"),
            (f"{LAYOUT.oldest} {LAYOUT.oldest} 3", "Set shards back to 3"),
            ("foreign", "Use the release that made it"),
        ],
    )
    def test_another_layout_is_refused(self, open_redis: Open, prefix: str, stored: str, remedy: str) -> None:
        backend = open_redis()
        backend.client.run(SET, [f"{{{prefix}:meta}}"], ["layout", stored])
        with pytest.raises(ConfigurationError, match=remedy) as caught:
            backend.prepare(create_schema=True, processes=1)
        if "shards" not in remedy:
            assert f"layout '{stored}', this celery-sagas knows layout {LAYOUT.version}. {remedy}" in str(caught.value)
        with pytest.raises(StoreUnavailable, match=remedy):
            backend.sagas.find(_lookup(IN_ALL, "42"))

    def test_newer_layout_with_which_this_code_can_live(self, open_redis: Open, prefix: str) -> None:
        """It says so; the number of shards is compared all the same."""
        backend = open_redis()
        backend.client.run(SET, [f"{{{prefix}:meta}}"], ["layout", f"{LAYOUT.version + 1} {LAYOUT.version} 1"])
        backend.prepare(create_schema=True, processes=1)
        _start(backend, "42")
        with pytest.raises(ConfigurationError, match="Set shards back to 1"):
            open_redis(options={"shards": 3}).prepare(create_schema=True, processes=1)

    def test_renamed_saga_stays_where_it_lives(self, open_redis: Open) -> None:
        names = [f"saga{number}" for number in range(9)]
        first = open_redis(options={"shards": 3})
        shards = [_start(first, "42", names=(name,), keys=T1)[0].id[-1] for name in names]
        for name, shard in zip(names, shards, strict=True):
            renamed = open_redis(options={"shards": 3})
            found = renamed.sagas.find(Lookup((f"new_{name}", name), KEY, "42"))
            assert found.record is not None
            assert _shard_of(found.new_id) == shard
            later = open_redis(options={"shards": 3})
            assert _shard_of(later.sagas.find(Lookup((f"new_{name}",), KEY, "43")).new_id) == shard
            assert len(later.journal.history((f"new_{name}", name), "42", 9)) == 1

    @pytest.mark.parametrize("has_alternate_keys", [True, False])
    def test_rename_leaves_instances_where_they_live(self, open_redis: Open, has_alternate_keys: bool) -> None:
        """They are found there by code that knows the new name alone."""
        backend = open_redis(options={"shards": 3})
        for key in KEYS:
            id = backend.sagas.find(Lookup(("one",), KEY, key, has_alternate_keys)).new_id
            record = NewRecord(id, ("one",), key, 1, "{}", "{}", ())
            backend.sagas.insert(record, effects(record))
        for former, name in (("one", "two"), ("two", "three")):
            assert _rename(open_redis(options={"shards": 3}), name, former) == len(KEYS)
            assert backend.sagas.count([former, name]) == {former: 0, name: len(KEYS)}
        later = open_redis(options={"shards": 3})
        assert all(later.sagas.find(Lookup(("three",), KEY, key, has_alternate_keys)).record for key in KEYS)

    def test_history_of_a_renamed_saga_is_found_by_a_process_that_only_looks(self, open_redis: Open) -> None:
        first = open_redis(options={"shards": 3})
        for number in range(9):
            _start(first, "42", names=(f"saga{number}",), keys=T1, outcome="completed")
            first.sagas.find(Lookup((f"new{number}", f"saga{number}"), KEY, "42"))
            looking = open_redis(options={"shards": 3})
            looking.sagas.find(Lookup((f"new{number}",), KEY, "another"))
            assert looking.journal.outcome_of((f"new{number}",), "42") is None
            assert looking.journal.outcome_of((f"new{number}", f"saga{number}"), "42") is not None

    def test_looking_registers_nothing(self, sharded: RedisBackend, open_redis: Open) -> None:
        assert sharded.journal.outcome_of(IN_ALL, "42") is None
        _start(open_redis(options={"shards": 3}), "42")
        assert len(sharded.journal.history(IN_ALL, "42", 9)) == 1

    @pytest.mark.parametrize("has_alternate_keys", [False, True])
    def test_saga_that_gained_or_lost_its_alternate_keys_is_refused(self, open_redis: Open, has_alternate_keys: bool) -> None:
        open_redis(options={"shards": 3}).sagas.find(Lookup(("order",), KEY, "42", has_alternate_keys))
        changed = open_redis(options={"shards": 3})
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="also_by"):
                changed.sagas.find(Lookup(("order",), KEY, "42", not has_alternate_keys))
        with pytest.raises(StoreUnavailable, match="also_by"):
            open_redis(options={"shards": 3}).sagas.find(Lookup(("purchase", "order"), KEY, "42", not has_alternate_keys))
        changed.sagas.find(Lookup(("purchase",), KEY, "42", not has_alternate_keys))  # the refusal has registered nothing

    def test_two_sagas_do_not_become_one(self, open_redis: Open) -> None:
        backend = open_redis(options={"shards": 3})
        backend.sagas.find(Lookup(("order",), KEY, "42", has_alternate_keys=False))
        backend.sagas.find(Lookup(("purchase",), KEY, "42", has_alternate_keys=True))
        with pytest.raises(StoreUnavailable, match="order, purchase"):
            backend.sagas.find(Lookup(("order", "purchase"), KEY, "42", has_alternate_keys=False))

    def test_server_that_has_forgotten_is_told_again(self, sharded: RedisBackend, open_redis: Open, prefix: str) -> None:
        """It was restarted, and keeps nothing on disk."""
        _start(sharded, "42")
        sharded.client.run(FORGET_ALL, [f"{{{prefix}:meta}}"], [])
        sharded.client.losses += 1  # as the client counts when the connections break
        _start(sharded, "43")
        with pytest.raises(ConfigurationError, match="Set shards back to 3"):
            open_redis(options={"shards": 4}).prepare(create_schema=True, processes=1)


class TestMigrated:
    """The layout before this one, from which a way leads to it."""

    @pytest.fixture(params=[1, 3])
    def shards(self, request: pytest.FixtureRequest) -> int:
        """The number of shards."""
        number: int = request.param
        return number

    @pytest.fixture
    def backend(self, open_redis: Open, prefix: str, shards: int) -> RedisBackend:
        """A backend under whose prefix the layout before is registered."""
        backend = open_redis(options={"shards": shards})
        _register(backend, f"{LAYOUT.oldest} {LAYOUT.oldest} {shards}")
        return backend

    def test_layout_is_replaced(self, backend: RedisBackend, shards: int) -> None:
        assert backend.migrate() == [f"Changed the layout of the keys from {LAYOUT.oldest} to {LAYOUT.version}."]
        assert _registered(backend) == f"{LAYOUT.version} {LAYOUT.oldest} {shards}"
        assert LAYOUT.remedy(Layout(LAYOUT.oldest, LAYOUT.oldest)) == ""  # its workers go on
        backend.prepare(create_schema=True, processes=1)
        _start(backend, "42")

    def test_second_call_finds_nothing_to_do(self, backend: RedisBackend, open_redis: Open, shards: int) -> None:
        backend.migrate()
        assert backend.migrate() == []
        assert open_redis(options={"shards": shards}).migrate() == []

    @pytest.mark.parametrize("position", [1, 2])
    def test_two_calls_at_once(self, backend: RedisBackend, open_redis: Open, shards: int, position: int) -> None:
        """One comes before a round trip of the other."""
        rival, trips = open_redis(options={"shards": shards}), list[str]()

        def come_first(trip: str) -> None:
            trips.append(trip)
            if len(trips) == position:
                rival.migrate()

        backend.client.observers.append(come_first)
        backend.migrate()
        assert len(trips) >= position
        assert _registered(backend) == f"{LAYOUT.version} {LAYOUT.oldest} {shards}"

    def test_nothing_is_stored(self, open_redis: Open, shards: int) -> None:
        backend = open_redis(options={"shards": shards})
        with pytest.raises(ConfigurationError, match="nothing is stored under this saga_prefix"):
            backend.migrate()
        assert _registered(backend) == ""

    @pytest.mark.parametrize(
        ("stored", "remedy"),
        [
            (f"{LAYOUT.version + 1} {LAYOUT.version + 1} {{}}", "Upgrade the workers"),
            (f"{LAYOUT.oldest - 1} {LAYOUT.oldest - 1} {{}}", "Use the release that made it"),
            (f"{LAYOUT.oldest} {LAYOUT.oldest} 2", "Set shards back to 2"),
            (f"{LAYOUT.version} {LAYOUT.oldest} 2", "Set shards back to 2"),
            ("foreign", "Use the release that made it"),
        ],
    )
    def test_other_layouts_are_left_alone(self, open_redis: Open, shards: int, stored: str, remedy: str) -> None:
        backend, layout = open_redis(options={"shards": shards}), stored.format(shards)
        _register(backend, layout)
        with pytest.raises(ConfigurationError, match=remedy):
            backend.migrate()
        assert _registered(backend) == layout

    def test_newer_layout_with_which_this_code_can_live_needs_nothing(self, open_redis: Open) -> None:
        backend = open_redis()
        _register(backend, layout := f"{LAYOUT.version + 1} {LAYOUT.version} 1")
        assert backend.migrate() == []
        assert _registered(backend) == layout


def _register(backend: RedisBackend, layout: str) -> None:
    backend.client.run(SET, [backend._placement._meta], ["layout", layout])


def _registered(backend: RedisBackend) -> str:
    return (backend.client.run(_GET, [backend._placement._meta], ["layout"]) or b"").decode()


class TestOneShardIsAway:
    """What happens in one shard is nothing to the others."""

    def test_claim_returns_what_the_others_have(self, sharded: RedisBackend) -> None:
        rows = [_start(sharded, key, "sent") for key in ("a", "b", "c", "d", "e", "f")]
        shards = sharded._placement.shards
        spoiled = rows[0][0].id.rpartition(".")[2]
        sharded.client.run(_SPOIL, [shards[int(spoiled)].rows[3]], [])
        sound = {record.id for record, _ in rows if not record.id.endswith(f".{spoiled}")}
        assert 0 < len(sound) < len(rows)
        later = RedisOutbox(sharded.client, sharded._placement, lambda: time.time_ns() // 1_000_000 + HOUR)
        assert {row.instance_id for row in later.claim_due("relay", 9, HOUR)} == sound
        with pytest.raises(StoreError, match="holds what the saga backend never writes"):
            later.claim_due("relay", 9, HOUR)

    def test_what_a_message_has_left_is_asked_of_the_one_that_has_it(self, sharded: RedisBackend) -> None:
        _, message_id = _start(sharded, "42", "sent")
        cause = _handled_as(sharded, "42", message_id)
        sharded.outbox.count_leased(cause)  # the script is loaded, and the node known
        trips: list[str] = []
        sharded.client.observers.append(trips.append)
        assert sharded.outbox.count_leased(cause) == 1
        # a connection that was lost has the layout looked at again
        assert [script for script in trips if script != "layout_register"] == ["outbox_count_leased"]
