"""``Backend.many``: operations of several messages at once have the answers, and the effects, that they have one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreError
from celery_sagas.stores.operations import CountDelivery, Delete, Find, Insert, Lock, Operation, OutcomeOf, Update, Write
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, Found, Handling, Lookup, NewRecord, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    NAMES,
    STEP,
    by_id,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    effects,
    entry,
    found,
    handled,
    is_there,
    new_record,
    outgoing,
    send,
    start,
    update,
)

#: More operations than any backend takes in one statement or round trip.
_MANY = 130


def _shown(answer: object) -> object:
    """Return an answer as it can be compared: each find returns another new id."""
    if isinstance(answer, Found):
        return answer._replace(new_id="")
    if isinstance(answer, RevisionConflict):
        return type(answer), answer.saga, answer.key, answer.reason
    return (type(answer), str(answer)) if isinstance(answer, StoreError) else answer


def _one_by_one(backend: Backend, operations: Sequence[Operation]) -> list[Any]:
    """Return the answers of operations that are performed one after the other, as by a backend without a ``many`` of its own."""
    return Backend.many(backend, operations)


def _insert(record: NewRecord, *rows: Any, message_id: str = "", attempt: str = "") -> Insert:
    line = entry(record, outcome="started", version=1, message_id=message_id, attempt=attempt)
    return Insert(record, effects(record, *rows, line=line, owner="me", grace_ms=MINUTE))


def _update(record: Record, *rows: Any, message_id: str = "", lock_owner: str = "", **changed: Any) -> Update:
    line = entry(record, message_id=message_id)
    return Update(
        record, change(**changed), effects(record, *rows, line=line, owner="me", grace_ms=MINUTE, lock_owner=lock_owner)
    )


def _delete(record: Record, *rows: Any) -> Delete:
    return Delete(record, effects(record, *rows, line=entry(record, outcome="completed"), owner="me", grace_ms=MINUTE))


class ManyContract(StoreFixtures):
    """Performing the operations of several messages at once."""

    def test_no_operations_have_no_answers(self, backend: Backend) -> None:
        assert backend.many([]) == []

    def test_finds_have_the_answers_that_they_have_one_by_one(self, backend: Backend, clock: Clock) -> None:
        """By id, key and alternate key, under a present and a former name, locked or not, with and without a message."""
        first = start(backend, "1", keys=(("tracking", "T1"), ("email", "1")))
        former, locked = start(backend, "2", names=("purchase",), keys=(("tracking", "T2"),)), start(backend, "3")
        backend.sagas.lock(locked, "another", MINUTE)
        done, line = start(backend, "4"), send(backend)
        completed = complete(backend, done)
        handling = Handling((STEP, "order.begin"), line.message_id)
        lookups = [
            *(by_key(key) for key in ("1", "2", "3", "4", "5")),
            *(by_id(record.id) for record in (first, former, locked, done)),
            *(by_tracking(number) for number in ("T1", "T2", "T3", "1")),
            Lookup(NAMES, "email", "1"),
            by_key("1", ("order",)),
            by_key("2", ("order",)),
            Lookup(("order",), ID, former.id),
            by_key("1", ("another",)),
        ]
        finds = [
            *(Find(lookup) for lookup in lookups),
            *(Find(lookup, handling) for lookup in lookups),
            Find(by_key("1"), Handling((STEP,), completed.message_id)),
            Find(by_key("1"), Handling((STEP,), "unknown")),
            Find(by_key("1"), Handling(("another",), line.message_id)),
        ]
        answers = backend.many(finds)
        assert [_shown(answer) for answer in answers] == [_shown(answer) for answer in _one_by_one(backend, finds)]
        assert len({answer.new_id for answer in answers}) == len(finds)
        assert {answer.record.key for answer in answers if answer.record} == {"1", "2", "3"}
        assert sum(answer.handled is not None for answer in answers) == len(lookups) + 1

    def test_every_find_returns_a_fresh_copy(self, backend: Backend) -> None:
        start(backend)
        first, second = backend.many([Find(by_key()), Find(by_key())])
        assert first.record == second.record
        assert first.record is not second.record

    @pytest.mark.parametrize(
        "perform", [Backend.many, lambda backend, operations: backend.many(operations)], ids=["each", "many"]
    )
    def test_commits_have_the_effects_that_they_have_one_by_one(
        self, backend: Backend, clock: Clock, perform: Callable[[Backend, Sequence[Operation]], list[Any]]
    ) -> None:
        records = [start(backend, str(number), keys=(("tracking", f"T{number}"),)) for number in range(4)]
        scheduled, cancelled = outgoing("scheduled", due_at=clock.now + HOUR), outgoing("scheduled", due_at=clock.now + HOUR)
        kept, ended = update(backend, records[2], cancelled), update(backend, records[3], scheduled)
        new, alone = new_record("4", keys=(("tracking", "T4"),)), entry(key="6")
        sent = [outgoing() for _ in range(7)]
        later = outgoing("scheduled", due_at=clock.now + MINUTE)
        clock.advance(5)
        answers = perform(
            backend,
            [
                _insert(new, sent[0], sent[1]),
                _update(records[0], sent[2], data='{"total": 7}', added=(("tracking", "T9"),), removed=(("tracking", "T0"),)),
                _update(records[1], later),
                _update(kept, cancelled=(cancelled.id,)),
                _delete(ended, sent[3]),
                Write(effects(None, sent[4], sent[5], line=alone, owner="me", grace_ms=MINUTE)),
                _insert(new_record("5"), sent[6]),
            ],
        )
        assert answers == [None] * 7
        first, second, third = (found(backend, by_id(record.id)) for record in records[:3])
        assert (first.version, first.data, first.updated_at) == (2, '{"total": 7}', clock.now)
        assert (second.version, third.version) == (2, 3)
        assert (found(backend, by_tracking("T9")), is_there(backend, by_tracking("T0"))) == (first, False)
        assert (found(backend, by_tracking("T4")).id, found(backend, by_key("5")).version) == (new.id, 1)
        assert not is_there(backend, by_key("3"))
        assert handled(backend, alone) is not None
        assert claim(backend) == []  # they are under the lease of their process
        clock.advance(MINUTE)
        assert {row.id for row in claim(backend)} == {*(row.id for row in sent), later.id}
        assert backend.outbox.count() == len(sent) + 1  # what was scheduled and cancelled, or has ended, is gone

    def test_each_commit_succeeds_or_fails_by_itself(self, backend: Backend) -> None:
        records = [start(backend, str(number), keys=(("tracking", f"T{number}"),)) for number in range(6)]
        stale, locked = records[0], records[1]
        current = update(backend, stale)
        backend.sagas.lock(locked, "another", MINUTE)
        line = send(backend)
        answers = backend.many(
            [
                _update(records[2]),
                _update(stale),
                _update(locked),
                _insert(new_record("2")),
                _insert(new_record("7", keys=(("tracking", "T2"),))),
                _update(records[3], added=(("tracking", "T5"),)),
                _update(records[4], outgoing(), message_id=line.message_id),
                Write(effects(line=entry(message_id=line.message_id))),
                _delete(stale),
                _insert(new_record("8", keys=(("tracking", "T8"),)), outgoing()),
                _update(records[5], outgoing()),
            ]
        )
        reasons = [answer.reason if isinstance(answer, RevisionConflict) else type(answer) for answer in answers]
        done, twice = type(None), AlreadyHandled
        assert reasons == [done, "version", "locked", "unique", "unique", "unique", twice, twice, "version", done, done]
        assert [found(backend, by_key(str(number))).version for number in range(6)] == [2, 1, 2, 1, 1, 2]
        assert found(backend, by_key("0")) == current
        assert not is_there(backend, by_key("7"))
        assert found(backend, by_tracking("T8")).key == "8"
        assert backend.outbox.count() == 2

    def test_a_repeat_has_the_same_answers_and_writes_nothing_more(self, backend: Backend, clock: Clock) -> None:
        """The reply was lost, and the call is repeated."""
        records = [start(backend, str(number)) for number in range(4)]
        operations: list[Operation] = [
            _update(records[0], outgoing()),
            _delete(records[1]),
            _insert(new_record("8"), outgoing()),
            Write(effects(None, outgoing(), line=entry(key="9"))),
            _update(records[2]._replace(version=7), outgoing()),
            _insert(new_record("3")),
        ]
        first = backend.many(operations)
        rows, updated = backend.outbox.count(), found(backend, by_key("0"))
        clock.advance(3)
        again = backend.many(operations)
        assert [_shown(answer) for answer in again] == [_shown(answer) for answer in first]
        assert [_shown(answer) for answer in first[:4]] == [None] * 4
        assert (backend.outbox.count(), found(backend, by_key("0"))) == (rows, updated)

    def test_of_two_commits_about_one_instance_one_conflicts(self, backend: Backend) -> None:
        record = start(backend)
        answers = backend.many([_update(record, outgoing()), _update(record, outgoing())])
        assert sorted(map(str, map(type, answers))) == sorted(map(str, (type(None), RevisionConflict)))
        assert found(backend, by_key()).version == 2
        assert backend.outbox.count() == 1

    def test_of_two_inserts_of_one_key_one_conflicts(self, backend: Backend) -> None:
        answers = backend.many([_insert(new_record("7")), _insert(new_record("7"))])
        assert sorted(getattr(answer, "reason", "") for answer in answers) == ["", "unique"]

    def test_of_two_attempts_of_one_message_one_is_already_handled(self, backend: Backend) -> None:
        operations = [_update(start(backend, key), outgoing(), message_id="one") for key in ("1", "2")]
        answers = backend.many(operations)
        assert {type(answer) for answer in answers} == {type(None), AlreadyHandled}
        assert sum(found(backend, by_key(key)).version for key in ("1", "2")) == 3
        assert backend.outbox.count() == 1

    def test_other_operations_have_the_answers_that_they_have_one_by_one(self, backend: Backend) -> None:
        free, locked, done = start(backend, "1"), start(backend, "2"), start(backend, "3")
        complete(backend, done)
        backend.sagas.lock(locked, "another", MINUTE)
        backend.deliveries.count(STEP, "twice")
        answers = backend.many(
            [
                Lock(free, "me", MINUTE),
                Lock(locked, "me", MINUTE),
                Lock(done, "me", MINUTE),
                CountDelivery(STEP, "once"),
                CountDelivery(STEP, "twice"),
                OutcomeOf(NAMES, "3"),
                OutcomeOf(NAMES, "1"),
                Find(by_key("1")),
            ]
        )
        *counted, outcome, none, _ = answers
        assert (counted, none) == ([True, False, False, 1, 2], None)
        assert (outcome.outcome, outcome.instance_id) == ("completed", done.id)
        assert found(backend, by_key("1")).locked_by == "me"

    def test_any_number_of_operations(self, backend: Backend) -> None:
        keys = [str(number) for number in range(_MANY)]
        assert backend.many([_insert(new_record(key), outgoing()) for key in keys]) == [None] * _MANY
        records = [answer.record for answer in backend.many([Find(by_key(key)) for key in keys])]
        assert [record.key for record in records] == keys
        assert backend.many([_update(record, outgoing(), outgoing()) for record in records]) == [None] * _MANY
        assert {answer.record.version for answer in backend.many([Find(by_key(key)) for key in keys])} == {2}
        assert backend.outbox.count() == 3 * _MANY

    def test_instances_of_other_prefixes_are_left_alone(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        other = open_backend(f"{prefix}-other")
        other.prepare(create_schema=True, processes=1)
        record = start(other)
        answers = backend.many([Find(by_key()), Find(by_id(record.id)), _update(record), _insert(new_record())])
        assert [answer.record for answer in answers[:2]] == [None, None]
        assert (answers[2].reason, answers[3]) == ("version", None)
        assert found(other, by_key()) == record
