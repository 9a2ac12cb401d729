"""Each script alone: it can be repeated, a refused one writes nothing, and it touches the keys that it was given."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from unittest.mock import patch

import pytest
import redis

from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreError, UnreadableState
from celery_sagas.stores.records import Effects, Handling, Outgoing, Record
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.scripts import load, names
from celery_sagas.stores.redis.packing import tag_path
from celery_sagas.stores.redis.placement import LAYOUT, Placement
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    NAMES,
    STEP,
    audited,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    dead_letter,
    effects,
    entry,
    handled,
    ids,
    new_record,
    operate,
    outgoing,
    send,
    start,
    update,
)
from tests.servers import unique
from tests.stores.redis.buffer_plays import BUFFER_PLAYS, claim_items, empty_buffers, reject_items
from tests.stores.redis.catalogue import ANSWER, DEAD_KEYS, META_KEY, SHARD_KEYS
from tests.stores.redis.conftest import EVERY_SERVER, Dump, Open, OpenAt, urls_of
from tests.stores.redis.damage import DAMAGE, ENLIST, FORGET_ALL, OF_THE_TESTS, SET, foreign
from tests.stores.redis.times import let_time_pass, servers_now

url = urls_of(*EVERY_SERVER)
T1 = (("tracking", "T1"),)
T2 = (("tracking", "T2"),)
NEW = (("status", "new"),)
PAID = (("status", "paid"),)
#: Does one thing with a backend, for which it may arrange something first.
Play = Callable[[RedisBackend], object]
#: A word of a line of ``MONITOR``.
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FOLDER = files("celery_sagas.stores.redis") / "lua"
_LUA = [file for folder in _FOLDER.iterdir() for file in folder.iterdir() if file.name.endswith(".lua")]


@dataclass
class Calls:
    """The script calls of a backend, as they were made."""

    made: list[tuple[Any, Any, Any, Any, Any]] = field(default_factory=list)  #: script, keys, arguments, options, reply

    @contextmanager
    def of(self, backend: RedisBackend) -> Iterator[None]:
        """Note the calls until the end of the block."""
        prepare, send_many = backend.client.prepare, backend.client.send_many
        prepared: dict[Call, tuple[Any, Any, Any, Any]] = {}

        def noted(script: Any, keys: Any, args: Any, **options: Any) -> Call:
            call = prepare(script, keys, args, **options)
            prepared[call] = (script, keys, args, options)
            return call

        def sent(calls: Sequence[Call]) -> Any:
            replies = send_many(calls)
            self.made += [(*prepared[call], reply) for call, reply in zip(calls, replies, strict=True) if call in prepared]
            return replies

        with patch.object(backend.client, "prepare", noted), patch.object(backend.client, "send_many", sent):
            yield


def _insert(backend: RedisBackend) -> None:
    new = new_record(keys=T1, tags=NEW)
    backend.sagas.insert(new, effects(None, outgoing(), outgoing("scheduled"), line=entry(new), owner="me", grace_ms=MINUTE))


def _update(backend: RedisBackend) -> None:
    record = start(backend, keys=(("email", "a"), *T1), tags=(("city", "Oslo"), *NEW))
    backend.sagas.lock(record, "me", MINUTE)
    moved = change(added=T2, removed=T1, added_tags=PAID, removed_tags=NEW)
    backend.sagas.update(record, moved, effects(record, outgoing(), outgoing("deadline"), lock_owner="me"))


def _update_in_another_slot(backend: RedisBackend) -> None:
    with patch.object(backend.sagas, "_now", lambda: HOUR):
        record = start(backend)
    update(backend, record)


def _cancel(backend: RedisBackend) -> None:
    record = start(backend, "42", due := outgoing(), later := outgoing("deadline", due_at=10**14), outgoing("scheduled"))
    backend.outbox.fail("", ids(claim(backend, "", limit=1))[0], "broken", 0)
    update(backend, record, outgoing("scheduled"), cancelled=(due.id, "gone", later.id))


def _delete(backend: RedisBackend) -> None:
    record = start(backend, "42", outgoing("scheduled"), outgoing(), keys=T1, tags=NEW)
    backend.outbox.fail("", ids(claim(backend, ""))[0], "broken", 0)
    complete(backend, record, outgoing())


def _record(backend: RedisBackend) -> None:
    send(backend, outgoing(), outgoing("deadline"))


def _complete_at_birth(backend: RedisBackend) -> None:
    send(backend, outgoing(), line=entry(new_record(), outcome="completed"))


def _lock(backend: RedisBackend) -> None:
    backend.sagas.lock(start(backend), "me", MINUTE)


def _end_lock(backend: RedisBackend) -> None:
    record = start(backend)
    backend.sagas.lock(record, "me", MINUTE)
    backend.sagas.lock(record, "me", 0)


def _find(backend: RedisBackend) -> None:
    record = start(backend, keys=T1)
    backend.sagas.lock(record, "me", MINUTE)
    backend.sagas.find(by_tracking("T1"), Handling(("a", "b"), "message"))


def _note_app(backend: RedisBackend) -> None:
    backend.note_app("shop")
    backend.note_app("billing")


def _rename(backend: RedisBackend) -> None:
    for key in ("42", "43", "44"):
        start(backend, key, names=("purchase",), keys=(("email", key), ("tracking", key)), tags=NEW)
    start(backend, "43", names=("order",))
    renamed = backend.sagas.rename("order", "purchase", 9)
    while renamed.after:
        renamed = backend.sagas.rename("order", "purchase", 9, renamed.after)
    assert backend.sagas.count(NAMES)["purchase"] == 1


def _page(backend: RedisBackend) -> None:
    record = start(backend, tags=NEW)
    for page in (backend.instances.page("order", 9), backend.instances.tagged("order", NEW[0], 9)):
        assert record.id in [glance.id for glance in page.instances]
    assert backend.instances.read("order", [record.id]) == [record]


def _count_instances(backend: RedisBackend) -> None:
    start(backend, tags=NEW)
    assert min(backend.instances.count("order", 9), backend.instances.count("order", 9, NEW[0])) >= 1


def _index(backend: RedisBackend) -> None:
    start(backend, tags=NEW)
    backend.client.run(FORGET_ALL, [backend._placement.shards[0].listed("order")], [])
    backend.instances.index("order", 9)


def _sweep(backend: RedisBackend) -> None:
    record = start(backend, tags=NEW)
    gone = [f"00000001{record.id}", "00000001gone", tag_path(*NEW[0]) + b"gone"]
    backend.client.run(ENLIST, [backend._placement.shards[0].listed("order")], gone)
    assert backend.instances.index("order", 9, backend.instances.index("order", 9)) == ""


def _migrate(backend: RedisBackend) -> None:
    backend.client.run(SET, [backend._placement._meta], ["layout", f"{LAYOUT.oldest} {LAYOUT.oldest} 1"])
    backend.migrate()


def _claim(backend: RedisBackend) -> None:
    send(backend, *(outgoing() for _ in range(5)))
    backend.outbox.claim_due("relay", 3, MINUTE)


def _claim_by_cause(backend: RedisBackend) -> None:
    line = send(backend, *(outgoing() for _ in range(5)))
    backend.outbox.claim_due("relay", 3, MINUTE, line)


def _set_aside(backend: RedisBackend) -> None:
    send(backend, row := outgoing(), outgoing())
    backend.client.run(DAMAGE, backend._placement.shards[0].rows, [row.id])
    backend.outbox.claim_due("relay", 3, MINUTE)


def _confirm(backend: RedisBackend) -> None:
    start(backend, "42", outgoing(), outgoing("scheduled"), outgoing())
    claimed = ids(claim(backend))
    backend.outbox.fail("relay", claimed[0], "broken", 0)
    backend.outbox.confirm("relay", claimed[:2])


def _keep(backend: RedisBackend) -> None:
    send(backend, *(outgoing(kind, due_at=1) for kind in ("sent", "scheduled", "deadline")))
    backend.outbox.confirm("relay", ids(claim(backend)), MINUTE)


def _look_at_rows(backend: RedisBackend) -> None:
    send(backend, row := outgoing("scheduled", due_at=1))
    claim(backend)
    send(backend, *(outgoing() for _ in range(3)))
    backend.outbox.confirm("relay", [row.id], MINUTE)
    assert [glance.id for glance in backend.outbox.read([row.id])] == [row.id]
    assert row.id in [glance.id for glance in backend.outbox.tried(2**53, 500)]
    first = backend.outbox.overdue(2**53, 1)
    assert len(backend.outbox.overdue(2**53, 500, first.after).rows) >= 2
    assert backend.outbox.tally(9).tried >= 1


def _reschedule(backend: RedisBackend) -> None:
    send(backend, *(outgoing("series", due_at=1) for _ in range(3)))
    rows = claim(backend)
    backend.outbox.fail("relay", rows[0].id, "broken", 0)
    backend.outbox.reschedule("relay", [row._replace(message_id=f"next of {row.id}", due_at=10**14) for row in rows[:2]])


def _release(backend: RedisBackend) -> None:
    send(backend, *(outgoing() for _ in range(3)))
    backend.outbox.release("relay", ids(claim(backend))[:2])


def _release_with_a_delay(backend: RedisBackend) -> None:
    send(backend, *(outgoing() for _ in range(3)))
    backend.outbox.release("relay", ids(claim(backend))[:2], MINUTE)


def _hurry(backend: RedisBackend) -> None:
    rows = [outgoing("scheduled", due_at=10**14) for _ in range(3)]
    send(backend, *rows)
    backend.outbox.hurry(ids(rows[:2]))


def _fail(backend: RedisBackend) -> None:
    send(backend, outgoing())
    backend.outbox.fail("relay", claim(backend)[0].id, "broken", MINUTE)


def _count(backend: RedisBackend) -> None:
    line = send(backend, outgoing(), outgoing())
    backend.outbox.claim_due("relay", 1, MINUTE, line)
    assert backend.outbox.count() >= 2
    assert backend.outbox.count_leased(line) == 1


def _history(backend: RedisBackend) -> None:
    complete(backend, start(backend))
    backend.journal.history(NAMES, "42", 9)
    backend.journal.outcome_of(NAMES, "42")


def _began(backend: RedisBackend) -> None:
    start(backend)
    assert "42" in backend.journal.began(NAMES, HOUR, 9)


def _recent(backend: RedisBackend) -> None:
    line = complete(backend, start(backend))
    assert line.message_id in [each.message_id for each in backend.journal.recent(9, "", NAMES, ["completed"]).entries]


def _purge(backend: RedisBackend) -> None:
    complete(backend, start(backend))
    update(backend, start(backend))
    backend.journal.purge(-MINUTE, 3)


def _audited(made: Effects) -> Effects:
    return made._replace(audit=audited(made.entry))


def _insert_audited(backend: RedisBackend) -> None:
    new = new_record(keys=T1, tags=NEW)
    backend.sagas.insert(new, _audited(effects(None, outgoing(), line=entry(new), owner="me", grace_ms=MINUTE)))


def _update_audited(backend: RedisBackend) -> None:
    record = start(backend, "42", due := outgoing("scheduled"), keys=(("email", "a"), *T1), tags=(("city", "Oslo"), *NEW))
    moved = change(added=T2, removed=T1, added_tags=PAID, removed_tags=NEW, cancelled=(due.id,))
    backend.sagas.update(record, moved, _audited(effects(record, outgoing(), outgoing("deadline"))))


def _update_plainly_audited(backend: RedisBackend) -> None:
    record = start(backend)
    backend.sagas.update(record, change(), _audited(effects(record)))


def _delete_audited(backend: RedisBackend) -> None:
    record = start(backend, "42", outgoing("scheduled"), outgoing(), keys=T1, tags=NEW)
    backend.sagas.delete(record, _audited(effects(record, outgoing(), line=entry(record, outcome="completed"))))


def _record_audited(backend: RedisBackend) -> None:
    backend.sagas.record(_audited(effects(None, outgoing(), outgoing("deadline"))))


def _read_audit(backend: RedisBackend) -> None:
    made = operate(backend)
    for asked in (((), None), (NAMES, None), (NAMES, "42")):
        assert made.id in [each.id for each in backend.audit.recent(9, "", *asked).entries]


def _purge_audit(backend: RedisBackend) -> None:
    for _ in range(3):
        operate(backend)
    assert backend.audit.purge(-MINUTE, 2) == 2


def _hold(backend: RedisBackend) -> None:
    assert backend.switches.hold("order", audited(entry()))


def _release_what_is_held(backend: RedisBackend) -> None:
    backend.switches.hold("order.place", audited(entry()))
    assert backend.switches.release("order.place", audited(entry()))


def _read_switches(backend: RedisBackend) -> None:
    backend.switches.hold("order", audited(entry()))
    assert [each.name for each in backend.switches.held()] == ["order"]


def _count_a_delivery(backend: RedisBackend) -> None:
    for message_id in ("one", "two", "one"):
        backend.deliveries.count(STEP, message_id)


def _forget_deliveries(backend: RedisBackend) -> None:
    for message_id in ("one", "two", "three"):
        backend.deliveries.count(STEP, message_id)
    backend.deliveries.purge(-MINUTE, 2)


def _add_dead_letter(backend: RedisBackend) -> None:
    kept = dead_letter()
    backend.dead.add(kept)
    backend.dead.get(kept.id)
    backend.dead.list(9)
    backend.dead.count()


def _remove_dead_letter(backend: RedisBackend) -> None:
    gone, kept = dead_letter(), dead_letter()
    backend.dead.add(gone)
    backend.dead.add(kept)
    backend.dead.remove(gone.id)


def _look_for_the_oldest_entry(backend: RedisBackend) -> None:
    send(backend)
    assert backend.journal.oldest_at()


def _register(backend: RedisBackend) -> None:
    Placement(backend.client, "elsewhere-" + entry().attempt, shards=3).of_lookup(by_key())


PLAYS: tuple[Play, ...] = (
    _insert,
    _update,
    _update_in_another_slot,
    _cancel,
    _delete,
    _record,
    _complete_at_birth,
    _lock,
    _end_lock,
    _find,
    _rename,
    _page,
    _count_instances,
    _index,
    _sweep,
    _migrate,
    _claim,
    _claim_by_cause,
    _set_aside,
    _confirm,
    _keep,
    _look_at_rows,
    _reschedule,
    _release,
    _release_with_a_delay,
    _hurry,
    _fail,
    _count,
    _history,
    _began,
    _recent,
    _look_for_the_oldest_entry,
    _purge,
    _insert_audited,
    _update_audited,
    _update_plainly_audited,
    _delete_audited,
    _record_audited,
    _read_audit,
    _purge_audit,
    _hold,
    _release_what_is_held,
    _read_switches,
    _count_a_delivery,
    _forget_deliveries,
    _add_dead_letter,
    _remove_dead_letter,
    *BUFFER_PLAYS,
    _note_app,
    _register,
)
each_play = pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__[1:])


class TestRepeats:
    """A reply was lost, and the same call is sent again, at a later time."""

    @each_play
    def test_repeat_gives_the_same_answer_and_state(
        self, redis_backend: RedisBackend, dump: Callable[[], Dump], play: Play
    ) -> None:
        calls = Calls()
        with calls.of(redis_backend):
            play(redis_backend)
        script, keys, args, options, reply = calls.made[-1]
        before = dump()
        let_time_pass(redis_backend)
        assert redis_backend.client.run(script, keys, args, **options) == reply
        assert _but_ends_of_locks(dump()) == _but_ends_of_locks(before)

    def test_every_script_is_played(self, redis_backend: RedisBackend) -> None:
        played = {script.name for script, *_ in _played(redis_backend) if script not in OF_THE_TESTS} | {
            "layout_register",
            "rights_try",
            "outbox_time",
        }  # by the fixture; and the time is another one each time
        assert played == set(names()), "add a play that ends with the new script to PLAYS"

    def test_claim_is_repeated_after_others_have_claimed(self, redis_backend: RedisBackend, dump: Callable[[], Dump]) -> None:
        send(redis_backend, *(outgoing() for _ in range(6)))
        calls = Calls()
        with calls.of(redis_backend):
            first = claim(redis_backend, "relay", limit=2)
        claim(redis_backend, "relay", limit=2)
        claim(redis_backend, "another relay", limit=1)
        (script, keys, args, options, reply), before = calls.made[0], dump()
        assert redis_backend.client.run(script, keys, args, **options) == reply
        assert dump() == before
        assert [id.decode() for id in reply[::4]] == ids(first)

    def test_repeat_of_a_claim_leaves_what_others_have_claimed_since(self, redis_backend: RedisBackend) -> None:
        send(redis_backend, outgoing(), outgoing())
        calls = Calls()
        with calls.of(redis_backend):
            claim(redis_backend, "relay", limit=2, lease_ms=1)
        let_time_pass(redis_backend)
        taken = claim(redis_backend, "another relay", limit=1)
        script, keys, args, options, reply = calls.made[0]
        again = redis_backend.client.run(script, keys, args, **options)
        assert [id.decode() for id in again[::4]] == [id.decode() for id in reply[::4] if id.decode() not in ids(taken)]

    def test_late_repeat_of_a_release_leaves_what_others_have_claimed_since(self, redis_backend: RedisBackend) -> None:
        send(redis_backend, outgoing())
        calls = Calls()
        with calls.of(redis_backend):
            redis_backend.outbox.release("relay", ids(claim(redis_backend, "relay")))
        claim(redis_backend, "relay")
        script, keys, args, options, reply = calls.made[-1]
        assert redis_backend.client.run(script, keys, args, **options) == reply
        assert claim(redis_backend, "another relay") == []

    def test_answers_are_forgotten(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        """They are the only keys that expire, after any repeat has come."""
        send(redis_backend, row := outgoing(), owner="me", grace_ms=MINUTE)
        before = servers_now(redis_backend)
        assert redis_backend.outbox.confirm("me", [row.id]) == 1
        (answer,) = server.scan_iter(f"{{{prefix}:0}}:answer:*", count=1_000)
        left = server.pttl(answer)
        assert 60_000 - (servers_now(redis_backend) - before) <= left <= 60_000

    def test_answer_outlives_a_thousand_others(self, redis_backend: RedisBackend) -> None:
        """Of another relay, between a call and its repeat."""
        send(redis_backend, first := outgoing(), owner="me", grace_ms=MINUTE)
        calls = Calls()
        with calls.of(redis_backend):
            redis_backend.outbox.confirm("me", [first.id])
        script, keys, args, options, reply = calls.made[-1]
        for _ in range(1_000):
            send(redis_backend, row := outgoing(), owner="me", grace_ms=MINUTE)
            redis_backend.outbox.confirm("me", [row.id])
        assert redis_backend.client.run(script, keys, args, **options) == reply == 1


def _but_ends_of_locks(dump: Dump) -> Dump:
    """Leave out when locks end: locking again begins the time anew."""
    return {
        key: (type, {id: value.split()[1:] for id, value in content.items()})  # type: ignore[attr-defined]
        if key.endswith(":locks")
        else (type, content)
        for key, (type, content) in dump.items()
    }


def _empty(backend: RedisBackend) -> None:
    """End what a play has left."""
    if record := backend.sagas.find(by_key()).record:
        backend.sagas.delete(record, effects(record, lock_owner="me"))
    for token in ("", "me", "relay"):
        backend.outbox.confirm(token, ids(claim(backend, token)))
    empty_buffers(backend)


@dataclass
class Scene:
    """What refusals meet: "42" was found at its first version and is at its second, "43" lives, a message was handled."""

    stale: Record
    current: Record
    other: Record
    message: str
    row: str


@pytest.fixture
def scene(redis_backend: RedisBackend) -> Scene:
    stale = start(redis_backend, "42", row := outgoing("scheduled"), keys=T1, tags=NEW)
    current = update(redis_backend, stale)
    other = start(redis_backend, "43", names=NAMES[::-1], keys=T2)
    return Scene(stale, current, other, send(redis_backend).message_id, row.id)


def _all_of(backend: RedisBackend, record: Record, *, cancelled: tuple[str, ...] = (), **values: Any) -> list[Callable[[], None]]:
    """Return each change of a record, with everything that a commit can write."""
    rows = [outgoing(), outgoing("scheduled"), *values.pop("rows", [])]
    line = entry(record, outcome="completed", message_id=values.pop("message_id", ""))
    made = effects(record, *rows, line=line, owner="me", grace_ms=MINUTE, lock_owner=values.pop("lock_owner", ""))
    return [
        lambda: backend.sagas.update(
            record, change(removed=T1, cancelled=cancelled, added_tags=PAID, removed_tags=NEW, **values), made
        ),
        lambda: backend.sagas.delete(record, made),
    ]


class TestRefusals:
    """A refused commit leaves every key as it was."""

    @pytest.fixture(autouse=True)
    def _every_key_is_as_it_was(self, scene: Scene, dump: Callable[[], Dump]) -> Iterator[None]:
        before = dump()
        yield
        assert dump() == before

    def test_stale_version(self, redis_backend: RedisBackend, scene: Scene) -> None:
        for commit in _all_of(redis_backend, scene.stale, cancelled=(scene.row,)):
            _refused(commit, "version")

    def test_instance_that_is_gone(self, redis_backend: RedisBackend, scene: Scene) -> None:
        for commit in _all_of(redis_backend, scene.current._replace(id="gone"), cancelled=(scene.row,)):
            _refused(commit, "version")

    def test_row_that_is_there(self, redis_backend: RedisBackend, scene: Scene) -> None:
        rows = [outgoing(id=scene.row)]
        for commit in _all_of(redis_backend, scene.current, rows=rows, cancelled=(scene.row,)):
            _refused(commit, "unique")
        new = new_record("44")
        _refused(lambda: redis_backend.sagas.insert(new, effects(new, *rows)), "unique")
        _refused(lambda: redis_backend.sagas.record(effects(None, *rows)), "unique")

    def test_taken_alternate_key(self, redis_backend: RedisBackend, scene: Scene) -> None:
        _refused(_all_of(redis_backend, scene.current, added=(("email", "new"), *T2), cancelled=(scene.row,))[0], "unique")
        new = new_record("44", keys=(("email", "new"), *T2), tags=NEW)
        _refused(lambda: redis_backend.sagas.insert(new, effects(new, outgoing())), "unique")

    def test_taken_key_and_taken_id(self, redis_backend: RedisBackend, scene: Scene) -> None:
        for new in (new_record("42"), new_record("43"), new_record("44", id=scene.current.id)):
            _refused(lambda new=new: redis_backend.sagas.insert(new, effects(new, outgoing())), "unique")  # type: ignore[misc]

    def test_message_that_was_handled(self, redis_backend: RedisBackend, scene: Scene) -> None:
        line = entry(message_id=scene.message)
        new = new_record("44")
        commits = _all_of(redis_backend, scene.stale, message_id=scene.message, cancelled=(scene.row,))
        commits += [
            lambda: redis_backend.sagas.insert(new, effects(None, outgoing(), line=line)),
            lambda: redis_backend.sagas.record(effects(None, outgoing(), line=line)),
        ]
        for commit in commits:
            with pytest.raises(AlreadyHandled):
                commit()


class TestReserved:
    """A commit that meets another owner's lock leaves every key as it was."""

    def test_locked(self, redis_backend: RedisBackend, scene: Scene, dump: Callable[[], Dump]) -> None:
        redis_backend.sagas.lock(scene.current, "somebody else", MINUTE)
        before = dump()
        for commit in _all_of(redis_backend, scene.current, lock_owner="me", cancelled=(scene.row,)):
            _refused(commit, "locked")
        assert not redis_backend.sagas.lock(scene.current, "me", MINUTE)
        assert dump() == before


def _refused(commit: Callable[[], None], reason: str) -> None:
    with pytest.raises(RevisionConflict) as caught:
        commit()
    assert caught.value.reason == reason


def _writes(backend: RedisBackend) -> list[Callable[[], object]]:
    """Return every writing operation, each with everything that it can write."""
    cancelled = outgoing("deadline", due_at=10**14)
    record = start(backend, "42", outgoing("scheduled"), outgoing(), cancelled, keys=T1, tags=NEW, names=("order",))
    other = start(backend, "43", outgoing("scheduled"), keys=(("email", "b"),), names=("order",))
    third = start(backend, "45", no_longer := outgoing("scheduled"), names=("order",))
    fourth = start(backend, "46", names=("order",))
    new = new_record("44", keys=(("tracking", "T3"),), tags=NEW, names=("order",))
    *rows, row = claim(backend, limit=3)
    claimed = ids(rows)
    backend.outbox.fail("relay", claimed[0], "broken", 0)
    backend.sagas.lock(other, "me", MINUTE)
    kept, added = dead_letter(), dead_letter()
    backend.dead.add(kept)
    sagas, outbox = backend.sagas, backend.outbox
    return [
        lambda: sagas.insert(new, effects(new, *_rows(), line=entry(new, outcome="completed"))),
        lambda: sagas.update(
            record,
            change(names=("order",), added=T2, removed=T1, cancelled=(cancelled.id,)),
            effects(record, *_rows(), line=entry(record, outcome="completed")),
        ),
        lambda: sagas.delete(other, effects(other, lock_owner="me")),
        lambda: sagas.record(effects(None, *_rows(), line=entry(outcome="completed"))),
        lambda: sagas.record(_audited(effects(None, *_rows(), line=entry(outcome="completed")))),
        lambda: sagas.lock(record, "me", MINUTE),
        lambda: sagas.update(third, change(names=("order",), cancelled=(no_longer.id,)), effects(third)),
        lambda: sagas.update(fourth, change(names=("order",), added_tags=PAID), effects(fourth, outgoing())),
        lambda: outbox.claim_due("relay", 9, MINUTE),
        lambda: outbox.confirm("relay", claimed[:1]),
        lambda: outbox.reschedule("relay", [row]),
        lambda: outbox.release("relay", claimed[1:]),
        lambda: outbox.fail("relay", claimed[1], "broken", HOUR),
        lambda: outbox.hurry(claimed[1:]),
        lambda: backend.journal.purge(-MINUTE, 9),
        lambda: backend.audit.purge(-MINUTE, 9),
        lambda: backend.switches.hold("order.place", audited(entry())),
        lambda: backend.switches.release("order.place", audited(entry())),
        lambda: backend.deliveries.count(STEP, "message"),
        lambda: backend.deliveries.purge(-MINUTE, 9),
        lambda: backend.dead.add(added),
        lambda: backend.dead.remove(kept.id),
        lambda: backend.instances.index("order", 9),
        lambda: backend.instances.index("order", 9, "0:listed:"),
        lambda: sagas.rename("renamed", "order", 9),
    ]


def _rows() -> list[Outgoing]:
    return [outgoing(), outgoing("deadline")]


#: What follows the prefix in each key that an operation may write.
_PARTS = ((":0}", SHARD_KEYS), (":dead}", DEAD_KEYS))
#: The keys that only the scripts of buffers write, which have a test of their own.
_OF_BUFFERS = tuple(f":0}}:{name}" for name in ("buffer:", "dead_letters"))
#: Those that have a name which somebody else could give a key of theirs.
_KEYS = [f"{tag}:{name}" for tag, kinds in _PARTS for name in kinds if name != ANSWER]
_KEYS = [key for key in _KEYS if not key.startswith(_OF_BUFFERS)]


class TestForeignKeys:
    """Somebody else's data under one of our keys: a clear error, and nothing half-written."""

    @pytest.mark.parametrize("key", _KEYS)
    def test_foreign_key_stops_an_operation_before_its_first_write(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump], key: str
    ) -> None:
        stopped = 0
        for write in _writes(redis_backend):
            with foreign(server, f"{{{prefix}{key}".replace("<saga>", "order")):
                before = dump()
                error = _error_of(write)
                assert not isinstance(error, RevisionConflict)
                if error is not None:
                    stopped += 1
                    assert dump() == before
        assert stopped

    @pytest.mark.parametrize("key", ["instances", "keys", "listed"])
    def test_foreign_key_under_the_new_name_stops_a_rename(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump], key: str
    ) -> None:
        start(redis_backend, keys=T1)
        server.set(f"{{{prefix}:0}}:{key}:renamed", "foreign")
        before = dump()
        with pytest.raises(StoreError):
            redis_backend.sagas.rename("renamed", "order", 9)
        assert dump() == before

    def test_error_names_the_key(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        server.set(f"{{{prefix}:0}}:journal", "foreign")
        with pytest.raises(StoreError, match=re.escape(f"{{{prefix}:0}}:journal")):
            start(redis_backend)

    def test_foreign_layout_is_no_layout(self, open_redis: Open, server: Any, prefix: str) -> None:
        server.set(f"{{{prefix}:meta}}", "foreign")
        with pytest.raises(StoreError, match=re.escape(f"{{{prefix}:meta}}")):
            open_redis().sagas.find(by_key())


def _cut(packed: bytes) -> bytes:
    return packed[:-3]


def _edited(packed: bytes) -> bytes:
    return packed + b" "


def _emptied(packed: bytes) -> bytes:
    return b""


def _replaced(packed: bytes) -> bytes:
    return b"{}"


def _error_of(write: Callable[[], object]) -> StoreError | None:
    try:
        write()
    except StoreError as exc:
        return exc
    return None


each_damage = pytest.mark.parametrize("damage", [_cut, _edited, _emptied, _replaced], ids=lambda damage: damage.__name__[1:])


class TestDamage:
    """What was cut or edited by hand is not taken for something else."""

    @each_damage
    def test_damaged_record_is_unreadable(
        self, redis_backend: RedisBackend, server: Any, prefix: str, damage: Callable[[bytes], bytes]
    ) -> None:
        record = start(redis_backend, keys=T1)
        key = f"{{{prefix}:0}}:instances:order"
        server.hset(key, record.id, damage(server.hget(key, record.id)))
        for lookup in (by_key(), by_tracking("T1")):
            with pytest.raises(UnreadableState) as caught:
                redis_backend.sagas.find(lookup)
            assert key in str(caught.value)
            assert record.id in str(caught.value)

    def test_update_of_a_record_without_a_version_conflicts(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump]
    ) -> None:
        record = start(redis_backend)
        server.hset(f"{{{prefix}:0}}:instances:order", record.id, "{}")
        before = dump()
        for commit in _all_of(redis_backend, record):
            _refused(commit, "version")
        assert dump() == before

    def test_instance_that_cannot_be_read_keeps_its_former_name(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump]
    ) -> None:
        record, lost = start(redis_backend), start(redis_backend, "43")
        server.hset(f"{{{prefix}:0}}:instances:order", record.id, "{}")
        server.hdel(f"{{{prefix}:0}}:keys:order", "$key=43")
        before = dump()
        renamed = redis_backend.sagas.rename("renamed", "order", 9)
        assert (renamed.moved, set(renamed.conflicts)) == (0, {(record.id, ""), (lost.id, "43")})
        assert dump() == before

    def test_key_without_its_instance_is_unreadable(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        record = start(redis_backend)
        server.hdel(f"{{{prefix}:0}}:instances:order", record.id)
        with pytest.raises(UnreadableState, match=re.escape(f"{{{prefix}:0}}:keys:order")):
            redis_backend.sagas.find(by_key())

    @each_damage
    def test_damaged_entry_is_unreadable(
        self, redis_backend: RedisBackend, server: Any, prefix: str, damage: Callable[[bytes], bytes]
    ) -> None:
        line = complete(redis_backend, start(redis_backend))
        key = f"{{{prefix}:0}}:journal"
        for field_ in server.hkeys(key):
            server.hset(key, field_, damage(server.hget(key, field_)))
        reads: list[Callable[[], object]] = [
            lambda: redis_backend.journal.history(NAMES, "42", 9),
            lambda: redis_backend.journal.outcome_of(NAMES, "42"),
            lambda: handled(redis_backend, line),
        ]
        for read in reads:
            with pytest.raises(UnreadableState, match=re.escape(key)):
                read()
        assert redis_backend.journal.purge(-MINUTE, 9) == 2

    def test_damaged_row_does_not_hold_up_others(
        self, redis_backend: RedisBackend, server: Any, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = [outgoing() for _ in range(3)]
        send(redis_backend, *rows)
        key = f"{{{prefix}:0}}:outbox"
        server.hset(key, rows[0].id, b"nonsense")
        server.hdel(key, rows[1].id)
        assert ids(claim(redis_backend)) == [rows[2].id]
        assert [key in record.message for record in caplog.records] == [True, True]
        assert redis_backend.outbox.confirm("relay", ids(rows)) == 3
        assert redis_backend.outbox.count() == 0

    def test_damaged_dead_letter_is_named(self, redis_backend: RedisBackend, server: Any, prefix: str) -> None:
        kept = dead_letter()
        redis_backend.dead.add(kept)
        server.hset(f"{{{prefix}:dead}}:dead_letters", kept.id, b"nonsense")
        for read in (lambda: redis_backend.dead.list(9), lambda: redis_backend.dead.get(kept.id)):
            with pytest.raises(StoreError, match=kept.id):
                read()
        assert redis_backend.dead.remove(kept.id)


class TestJournal:
    """Chains of entries, which end where entries were purged."""

    def test_long_history_comes_in_pieces(self, redis_backend: RedisBackend) -> None:
        lines = [send(redis_backend, line=entry(key="42", version=version)) for version in range(250)]
        history = redis_backend.journal.history(NAMES, "42", 1_000)
        assert [line.message_id for line in history] == [line.message_id for line in lines]
        assert [line.version for line in redis_backend.journal.history(NAMES, "42", 120)] == list(range(130, 250))

    def test_beginnings_are_found_in_pieces_while_others_begin(self, redis_backend: RedisBackend) -> None:
        start(redis_backend, "41")
        for _ in range(700):
            send(redis_backend)
        rivals, run = iter(["43", "44"]), redis_backend.client.run

        def with_rivals(*args: Any, **options: Any) -> Any:
            reply = run(*args, **options)
            if args[0].name == "journal_began" and (key := next(rivals, "")):
                start(redis_backend, key)
            return reply

        start(redis_backend, "42")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis_backend.client, "run", with_rivals)
            found = redis_backend.journal.began(NAMES, HOUR, 9)
        assert {"41", "42"} <= set(found) <= {"41", "42", "43", "44"}
        assert len(found) == len(set(found))

    def test_message_that_is_handled_again_after_a_purge_makes_no_circle(self, open_redis: Open) -> None:
        clock = Clock()
        backend = open_redis(clock=clock)
        first = send(backend, line=entry(key="42", version=1))
        clock.advance(HOUR)
        second = send(backend, line=entry(key="42", version=2))
        assert backend.journal.purge(MINUTE, 9) == 1
        again = send(backend, line=entry(key="42", message_id=first.message_id, version=3))
        assert [line.attempt for line in backend.journal.history(NAMES, "42", 9)] == [second.attempt, again.attempt]

    def test_purge_of_everything_leaves_no_key(self, redis_backend: RedisBackend, dump: Callable[[], Dump], prefix: str) -> None:
        for number in range(700):
            send(redis_backend, line=entry(key=f"{number % 9}", outcome="completed"))
        assert redis_backend.journal.purge(-MINUTE, 1_000) == 700
        assert {key for key in dump() if ":answer:" not in key} == {f"{{{prefix}:meta}}"}

    def test_completed_outcome_is_forgotten_with_its_entry_only(self, open_redis: Open) -> None:
        clock = Clock()
        backend = open_redis(clock=clock)
        complete(backend, start(backend))
        clock.advance(HOUR)
        line = complete(backend, start(backend))
        assert backend.journal.purge(MINUTE, 9) == 2
        outcome = backend.journal.outcome_of(NAMES, "42")
        assert outcome is not None
        assert outcome.message_id == line.message_id
        clock.advance(HOUR)
        backend.journal.purge(MINUTE, 9)
        assert backend.journal.outcome_of(NAMES, "42") is None


class TestKeys:
    """The catalogue of keys, and what the scripts are given of it."""

    def test_every_key_is_in_the_catalogue_and_expires_only_if_that_says_so(
        self, redis_backend: RedisBackend, server: Any, prefix: str, dump: Callable[[], Dump]
    ) -> None:
        for write in _writes(redis_backend)[:6]:
            write()
        claim_items(redis_backend)
        reject_items(redis_backend)
        redis_backend.outbox.confirm("relay", ids(claim(redis_backend))[:1])
        catalogue = {f":0}}:{name}": kind for name, kind in SHARD_KEYS.items()}
        catalogue |= {f":dead}}:{name}": kind for name, kind in DEAD_KEYS.items()} | {":meta}": META_KEY}
        for key, (type, _) in dump().items():
            pattern = _pattern(key.removeprefix("{" + prefix))
            assert catalogue[pattern] == type
            assert (server.ttl(key) == -1) == (not pattern.endswith(ANSWER))

    def test_all_keys_of_a_call_share_one_hash_tag(self, redis_backend: RedisBackend) -> None:
        for script, keys, _, options, _ in _played(redis_backend):
            answer = [options["answer"]] if options.get("answer") else []
            assert len({re.match(r"\{[^{}]+\}", key)[0] for key in [*keys, *answer]}) == 1, script.name  # type: ignore[index]

    def test_instances_are_gone_without_a_trace(self, redis_backend: RedisBackend, dump: Callable[[], Dump], prefix: str) -> None:
        record = update(redis_backend, start(redis_backend, "42", outgoing("deadline"), keys=T1, tags=NEW), added=T2)
        redis_backend.sagas.lock(record, "me", MINUTE)
        redis_backend.sagas.delete(record, effects(record, lock_owner="me"))
        kinds = {key.partition("}:")[2].partition(":")[0] for key in dump()}
        assert kinds - {"answer"} == {"", "journal"}

    def test_rows_are_gone_without_a_trace(self, redis_backend: RedisBackend, dump: Callable[[], Dump]) -> None:
        start(redis_backend, "42", outgoing("deadline"), outgoing("scheduled"), outgoing())
        rows = ids(claim(redis_backend))
        for row in rows:
            redis_backend.outbox.fail("relay", row, "broken", 0)
        assert redis_backend.outbox.confirm("relay", rows) == 3
        assert not [key for key in dump() if "}:outbox" in key]

    def test_script_touches_the_keys_that_it_was_given(self, redis_url: str, prefix: str) -> None:
        """As the server sees it: ``MONITOR`` shows a script before its commands."""
        backend = RedisBackend(redis_url, prefix=prefix)
        client: Any = redis.Redis.from_url(redis_url)
        with closing(backend), closing(client), client.monitor() as monitor:
            client.script_load(f'-- {prefix}\'s "first", which the server has not seen yet')
            calls = _played(backend)
            commands = list(_commands_of(client, monitor))
        assert len(calls) > len(PLAYS)
        given, touched = set[str](), set[str]()
        for words, is_in_script in commands:
            if words[0].upper() == "EVALSHA":
                given = set(words[3 : 3 + int(words[2])])
            elif is_in_script and words[0].upper() != "TIME" and prefix in words[1]:
                assert words[1] in given, words[0]
                touched.add(words[1])
        assert len(touched) > len(PLAYS)


def _pattern(key: str) -> str:
    """Return the name in the catalogue of what follows the prefix in a key."""
    for kind in ("saga", "call", "aggregator", "group"):
        names = {"saga": "instances|keys|listed", "call": "answer"}.get(kind) or "|".join(
            name.removesuffix(f":<{kind}>") for name in SHARD_KEYS if name.endswith(f":<{kind}>")
        )
        key = re.sub(f"}}:({names}):.*", rf"}}:\1:<{kind}>", key, flags=re.DOTALL)
    return key


def _played(backend: RedisBackend) -> list[Any]:
    """Play everything, and return the calls that were made."""
    calls = Calls()
    with calls.of(backend):
        for play in PLAYS:
            play(backend)
            _empty(backend)
    return calls.made


def _commands_of(client: Any, monitor: Any) -> Iterator[tuple[list[str], bool]]:
    """Yield what a monitor has seen so far: the words of each command, as the server escapes them, and whether a script ran it.

    redis-py joins the words with spaces, and cannot be asked where one ends: sources of scripts have quotes of every kind.
    """
    client.echo(end := unique("end"))
    while True:
        line = monitor.connection.read_response().decode("latin-1")
        words = _WORD.findall(line)
        if words == ["ECHO", end]:
            return
        yield words, " lua] " in line.partition('"')[0]


class TestManyRows:
    """A script holds up everybody: it must not run commands for each row that it removes."""

    @pytest.fixture
    def commands(self, redis_url: str, prefix: str) -> Iterator[Callable[[Callable[[], object]], list[str]]]:
        """Return the commands that scripts run on the test's keys during a call."""
        client: Any = redis.Redis.from_url(redis_url)

        def during(call: Callable[[], object]) -> list[str]:
            with client.monitor() as monitor:
                call()
                seen = _commands_of(client, monitor)
                return [words[0] for words, is_in_script in seen if is_in_script and prefix in str(words[1:2])]

        with closing(client):
            yield during

    @pytest.fixture
    def backend(self, redis_url: str, open_at: OpenAt) -> RedisBackend:
        return open_at(redis_url)

    def test_end_of_an_instance(self, backend: RedisBackend, commands: Callable[[Callable[[], object]], list[str]]) -> None:
        few = start(backend, "42", outgoing("scheduled"))
        many = start(backend, "43", *(outgoing("scheduled", due_at=10**14) for _ in range(900)))
        of_few = commands(lambda: complete(backend, few))
        assert commands(lambda: complete(backend, many)) == of_few
        assert backend.outbox.count() == 0

    def test_cancellation(self, backend: RedisBackend, commands: Callable[[Callable[[], object]], list[str]]) -> None:
        rows = [outgoing("scheduled", due_at=10**14) for _ in range(900)]
        record = start(backend, "42", *rows)
        of_few = commands(lambda: update(backend, record, cancelled=(rows[0].id,)))
        again = backend.sagas.find(by_key()).record
        assert again is not None
        assert commands(lambda: update(backend, again, cancelled=tuple(ids(rows)))) == of_few
        assert backend.outbox.count() == 0

    def test_more_rows_than_a_command_takes(self, backend: RedisBackend) -> None:
        """Lua takes 8,000 arguments at once."""
        rows = [outgoing("scheduled", due_at=10**14) for _ in range(10_001)]
        record = start(backend, "42", *rows[:5_000], outgoing())
        record = update(backend, record, *rows[5_000:])
        record = update(backend, record, outgoing("deadline"), cancelled=tuple(ids(rows[:9_000])))
        assert backend.outbox.count() == 1_003
        complete(backend, update(backend, record, *rows[:9_000]))
        assert backend.outbox.count() == 1


class TestFiles:
    """The scripts as a person reads them."""

    @pytest.mark.parametrize("name", names())
    def test_head_says_the_call_and_the_answer(self, name: str) -> None:
        head = _head(name)
        for word in ("-- KEYS: ", "-- Answers with: "):
            assert word in head, f"say in the head of {name}.lua what follows {word!r}"
        assert ("ARGV" in head) == ("ARGV" in load(name).source), f"say in the head of {name}.lua what ARGV is, by name and unit"
        assert re.search("^-- A repeat |It only reads.$", head, re.MULTILINE), (
            f"say in the head of {name}.lua why a repeat gives the same answer and state ('-- A repeat …'), or 'It only reads.'"
        )

    @pytest.mark.parametrize("name", names())
    def test_script_that_says_so_only_reads(self, name: str) -> None:
        writes = re.findall(r"call\('(\w+)'", load(name).source.rpartition("Answers with:")[2])
        if "It only reads." in _head(name):
            assert not set(writes) & {"HSET", "HDEL", "ZADD", "ZREM", "RPUSH", "LTRIM", "HSETNX", "DEL"}

    @pytest.mark.parametrize("path", _LUA, ids=lambda path: path.name)
    def test_file_is_short_and_plain(self, path: Any) -> None:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 60, "divide it, or move a piece to lua/parts"
        assert max(map(len, text.splitlines())) <= 130
        assert not re.search(r"cjson|cmsgpack|KEYS\*|redis\.pcall", text), "payloads are opaque, and fakeredis differs"
        for global_ in re.findall(r"^(\w+) *=", text, re.MULTILINE):
            assert f"local {global_}" in text, f"{global_} is a global: write local"


def _head(name: str) -> str:
    (lines,) = (file.read_text("utf-8").splitlines() for file in _LUA if file.name == f"{name}.lua")
    return "\n".join(line for line in lines if line.startswith("--"))


def test_a_starting_worker_tries_every_command(redis_backend: RedisBackend) -> None:
    """So that a right that is missing shows before anything is consumed."""
    used = {command for name in names() for command in re.findall(r"redis\.call\('([A-Z]+)'", load(name).source)}
    tried = set(re.findall(r"redis\.call\('([A-Z]+)'", load("rights_try").source))
    assert used == tried, "add the command to lua/meta/rights_try.lua"
