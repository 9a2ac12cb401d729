"""The common behavior of ``insert``, ``update``, ``delete`` and ``record``, and the outgoing rows that they write and cancel."""

from collections.abc import Callable

import pytest

from celery_sagas.errors import AlreadyHandled, StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Effects, Entry, NewRecord, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    by_key,
    change,
    claim,
    complete,
    conflict,
    effects,
    entry,
    found,
    handled,
    ids,
    new_record,
    outgoing,
    send,
    start,
    update,
)
from celery_sagas.testing.view import nothing_written

#: Commits effects about the instance "42" that was found; an insert is about another one, "43".
Commit = Callable[[Backend, Record, Effects], None]

_SECOND = new_record("43", keys=(("tracking", "T3"),))


def _insert(backend: Backend, record: Record, made: Effects) -> None:
    backend.sagas.insert(_SECOND, made)


def _update(backend: Backend, record: Record, made: Effects) -> None:
    backend.sagas.update(record, change(added=(("tracking", "T2"),), removed=(("tracking", "T1"),)), made)


def _delete(backend: Backend, record: Record, made: Effects) -> None:
    backend.sagas.delete(record, made)


def _record(backend: Backend, record: Record, made: Effects) -> None:
    backend.sagas.record(made)


def _subject(commit: Commit, record: Record) -> Record | NewRecord:
    return _SECOND if commit is _insert else record


def _line(commit: Commit, record: Record) -> Entry:
    return entry(_subject(commit, record))


each_commit = pytest.mark.parametrize("commit", [_insert, _update, _delete, _record], ids=lambda commit: commit.__name__[1:])
each_change = pytest.mark.parametrize("commit", [_update, _delete], ids=lambda commit: commit.__name__[1:])


class CommitContract(StoreFixtures):
    """A commit writes all of its parts or none, and its journal entry guards it."""

    @pytest.fixture
    def record(self, backend: Backend) -> Record:
        """The instance "42", with an alternate key."""
        return start(backend, keys=(("tracking", "T1"),))

    @each_commit
    def test_journal_entry_is_written_at_the_stores_time(
        self, backend: Backend, clock: Clock, record: Record, commit: Commit
    ) -> None:
        line = _line(commit, record)
        clock.advance(7)
        commit(backend, record, effects(line=line))
        written = handled(backend, line)
        assert written is not None
        assert written.at == clock.now
        assert (written.saga, written.key, written.instance_id) == (line.saga, line.key, line.instance_id)

    @each_commit
    def test_outgoing_rows_are_written_with_what_decided_them(self, backend: Backend, record: Record, commit: Commit) -> None:
        line, row = _line(commit, record), outgoing()
        commit(backend, record, effects(None, row, line=line))
        [claimed] = claim(backend)
        assert (claimed.id, claimed.message_id, claimed.task) == (row.id, row.message_id, row.task)
        assert (claimed.instance_id, claimed.step, claimed.cause) == (line.instance_id, line.step, line.message_id)

    @each_commit
    def test_replay_writes_nothing_more(self, backend: Backend, clock: Clock, record: Record, commit: Commit) -> None:
        """The reply was lost, the same call is repeated."""
        made = effects(None, outgoing(), outgoing(), line=_line(commit, record))
        commit(backend, record, made)
        clock.advance(1)
        with nothing_written(backend):
            commit(backend, record, made)

    @each_commit
    def test_replay_does_not_bring_back_rows_that_were_sent(self, backend: Backend, record: Record, commit: Commit) -> None:
        row = outgoing()
        made = effects(None, row, line=_line(commit, record), owner="me", grace_ms=MINUTE)
        commit(backend, record, made)
        backend.outbox.confirm("me", [row.id])
        commit(backend, record, made)
        assert backend.outbox.count() == 0

    @each_commit
    def test_another_attempt_is_already_handled(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = _line(commit, record)
        commit(backend, record, effects(line=line))
        self._already_handled(backend, record, commit, line)

    def _already_handled(self, backend: Backend, record: Record, commit: Commit, line: Entry) -> None:
        again = entry(_subject(commit, record), message_id=line.message_id)
        with nothing_written(backend), pytest.raises(AlreadyHandled) as caught:
            commit(backend, record, effects(None, outgoing(), line=again))
        assert caught.value.args == (line.step, line.message_id)

    @each_change
    def test_another_attempt_of_a_message_that_was_recorded_is_already_handled(
        self, backend: Backend, record: Record, commit: Commit
    ) -> None:
        """The instance that was found is as it was, only the message is not new."""
        self._already_handled(backend, record, commit, send(backend))

    def test_second_insert_of_a_message_is_already_handled(self, backend: Backend, record: Record) -> None:
        """The answer is the same if the instance has completed since, and its key is free."""
        line = _line(_insert, record)
        backend.sagas.insert(_SECOND, effects(line=line))
        complete(backend, found(backend, by_key("43")))
        self._already_handled(backend, record, _insert, line)

    @each_change
    def test_already_handled_comes_before_a_stale_version(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = send(backend)
        update(backend, record)
        self._already_handled(backend, record, commit, line)

    @each_change
    def test_already_handled_comes_before_a_missing_instance(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = send(backend)
        complete(backend, record)
        self._already_handled(backend, record, commit, line)

    @each_change
    def test_already_handled_comes_before_a_lock(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = send(backend)
        backend.sagas.lock(record, "somebody else", MINUTE)
        self._already_handled(backend, record, commit, line)

    @pytest.mark.parametrize("commit", [_insert, _update], ids=["insert", "update"])
    def test_already_handled_comes_before_a_taken_key(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = send(backend)
        start(backend, "43", keys=(("tracking", "T2"),))
        self._already_handled(backend, record, commit, line)

    @each_change
    def test_replay_comes_before_a_stale_version(self, backend: Backend, record: Record, commit: Commit) -> None:
        """The instance may have changed, or ended, since."""
        made = effects(None, outgoing(), line=_line(commit, record))
        commit(backend, record, made)
        current = backend.sagas.find(by_key()).record or start(backend)
        backend.sagas.lock(update(backend, current), "somebody else", MINUTE)
        with nothing_written(backend):
            commit(backend, record, made)

    def test_replay_of_an_insert_comes_before_a_taken_key(self, backend: Backend, record: Record) -> None:
        """The key belongs to the instance of the next start by now."""
        made = effects(None, outgoing(), line=_line(_insert, record))
        backend.sagas.insert(_SECOND, made)
        complete(backend, found(backend, by_key("43")))
        start(backend, "43", keys=_SECOND.keys)
        with nothing_written(backend):
            backend.sagas.insert(_SECOND, made)

    @each_commit
    def test_another_step_handles_the_same_message(self, backend: Backend, record: Record, commit: Commit) -> None:
        line = send(backend, line=entry(step="parcel.pack"))
        commit(backend, record, effects(line=entry(_subject(commit, record), message_id=line.message_id)))
        assert handled(backend, line) is not None

    @each_commit
    def test_commit_that_fails_in_its_last_part_writes_nothing(self, backend: Backend, record: Record, commit: Commit) -> None:
        """A commit writes all of its parts or none; here a row has an id that is there already."""
        row = outgoing()
        send(backend, row)
        line = _line(commit, record)
        with nothing_written(backend), pytest.raises(StoreError):
            commit(backend, record, effects(None, outgoing(), row, line=line))
        assert handled(backend, line) is None

    @each_change
    def test_stale_commit_leaves_no_journal_entry(self, backend: Backend, record: Record, commit: Commit) -> None:
        """The message is handled by the next run, not by this one."""
        current = update(backend, record)
        line = _line(commit, record)
        with conflict("version"):
            commit(backend, record, effects(None, outgoing(), line=line))
        assert handled(backend, line) is None
        assert backend.outbox.count() == 0
        commit(backend, update(backend, current, removed=(("tracking", "T1"),)), effects(line=line))
        assert handled(backend, line) is not None

    def test_taken_key_leaves_no_journal_entry(self, backend: Backend, record: Record) -> None:
        for rival in (new_record(), new_record("43", keys=(("email", "T1"), ("tracking", "T1")))):
            line = entry(rival)
            with conflict("unique"):
                backend.sagas.insert(rival, effects(None, outgoing(), line=line))
            assert handled(backend, line) is None
        assert backend.outbox.count() == 0

    @each_commit
    def test_rows_are_leased_to_their_owner_at_first(
        self, backend: Backend, clock: Clock, record: Record, commit: Commit
    ) -> None:
        """No other process publishes them while this one does."""
        row = outgoing()
        commit(backend, record, effects(None, row, line=_line(commit, record), owner="me", grace_ms=1_000))
        clock.advance(999)
        assert claim(backend, "relay") == []
        clock.advance(2)
        assert ids(claim(backend, "relay")) == [row.id]

    @each_commit
    def test_owner_confirms_its_rows(self, backend: Backend, record: Record, commit: Commit) -> None:
        rows = [outgoing(), outgoing()]
        commit(backend, record, effects(None, *rows, line=_line(commit, record), owner="me", grace_ms=1_000))
        assert backend.outbox.confirm("me", ids(rows)) == 2
        assert backend.outbox.count() == 0

    @each_commit
    @pytest.mark.parametrize("wait_ms", [HOUR, -HOUR], ids=["future", "past"])
    def test_row_with_a_due_time_is_written_under_no_lease(
        self, backend: Backend, clock: Clock, record: Record, commit: Commit, wait_ms: int
    ) -> None:
        """The process that decided it does not publish it, and nothing delays it when its time has come."""
        row = outgoing(due_at=clock.now + wait_ms)
        commit(backend, record, effects(None, row, line=_line(commit, record), owner="me", grace_ms=2 * HOUR))
        assert backend.outbox.confirm("me", [row.id]) == 0
        clock.advance(max(0, wait_ms) + 1)
        assert ids(claim(backend, "relay")) == [row.id]

    @each_commit
    def test_rows_with_and_without_a_due_time_are_leased_each_for_itself(
        self, backend: Backend, clock: Clock, record: Record, commit: Commit
    ) -> None:
        at_once, later, past = outgoing(), outgoing(due_at=clock.now + 500), outgoing(due_at=clock.now - 500)
        made = effects(None, at_once, later, past, line=_line(commit, record), owner="me", grace_ms=1_000)
        commit(backend, record, made)
        assert ids(claim(backend, "relay")) == [past.id]
        clock.advance(501)
        assert ids(claim(backend, "relay")) == [later.id]
        clock.advance(500)
        assert ids(claim(backend, "relay")) == [at_once.id]

    def test_one_commit_writes_many_rows(self, backend: Backend, record: Record) -> None:
        rows = [outgoing(payload=f'{{"number": {number}}}') for number in range(500)]
        update(backend, record, *rows)
        assert {row.id: row.payload for row in claim(backend)} == {row.id: row.payload for row in rows}


T1 = (("tracking", "T1"),)


class CancelContract(StoreFixtures):
    """Removing rows that were decided earlier and are no longer wanted."""

    def test_cancelled_rows_are_removed_and_others_stay(self, backend: Backend, clock: Clock) -> None:
        """They may be of any kind, due or not, and decided by any commit."""
        due = clock.now + MINUTE
        rows = [outgoing(), outgoing("scheduled", due_at=due), outgoing("deadline", due_at=due)]
        record = update(backend, start(backend, "42", *rows), *(more := [outgoing(), outgoing("scheduled", due_at=due)]))
        update(backend, record, cancelled=(*ids(rows), more[1].id))
        clock.advance(HOUR)
        assert ids(claim(backend)) == [more[0].id]
        assert backend.outbox.count() == 1

    def test_cancelled_row_is_removed_whoever_has_a_lease_on_it(self, backend: Backend) -> None:
        """A process that is publishing it finds nothing to confirm."""
        first, claimed = outgoing(), outgoing("scheduled")
        record = start(backend, "42", claimed)
        assert len(claim(backend, "relay")) == 1
        backend.sagas.update(record, change(), effects(record, first, owner="me", grace_ms=MINUTE))
        update(backend, found(backend, by_key()), cancelled=(first.id, claimed.id))
        assert backend.outbox.count() == 0
        assert backend.outbox.confirm("me", [first.id]) == 0
        assert not backend.outbox.fail("relay", claimed.id, "broken", 0)

    def test_cancelled_row_that_is_gone_is_passed_over(self, backend: Backend) -> None:
        """It was published, or cancelled before."""
        rows = [outgoing("scheduled") for _ in range(3)]
        record = update(backend, start(backend, "42", *rows), cancelled=(rows[0].id,))
        claim(backend, "relay", limit=9)
        backend.outbox.confirm("relay", [rows[1].id])
        record = update(backend, record, cancelled=(*ids(rows), "unknown"))
        assert record.version == 3
        assert backend.outbox.count() == 0

    def test_rows_of_others_are_not_cancelled(self, backend: Backend) -> None:
        """Only rows of this very instance can be meant."""
        others, nobodys = outgoing("scheduled"), outgoing()
        start(backend, "43", others)
        send(backend, nobodys)
        update(backend, start(backend), cancelled=(others.id, nobodys.id))
        assert set(ids(claim(backend))) == {others.id, nobodys.id}

    def test_update_replaces_a_row(self, backend: Backend, clock: Clock) -> None:
        """The cancelled row and the new one are in one commit."""
        old, new = outgoing("scheduled", due_at=clock.now + 1), outgoing("scheduled", due_at=clock.now + 2)
        update(backend, start(backend, "42", old), new, cancelled=(old.id,))
        clock.advance(MINUTE)
        assert ids(claim(backend)) == [new.id]

    def test_update_that_conflicts_cancels_nothing(self, backend: Backend) -> None:
        row = outgoing("scheduled")
        start(backend, "43", keys=T1)
        stale = start(backend, "42", row)
        record = update(backend, stale)
        with nothing_written(backend), conflict("version"):
            backend.sagas.update(stale, change(cancelled=(row.id,)), effects(stale))
        with nothing_written(backend), conflict("unique"):
            backend.sagas.update(record, change(added=T1, cancelled=(row.id,)), effects(record))
        assert ids(claim(backend)) == [row.id]

    def test_update_that_was_handled_cancels_nothing(self, backend: Backend) -> None:
        row = outgoing("scheduled")
        record = start(backend, "42", row)
        again = effects(line=entry(record, message_id=send(backend).message_id))
        with nothing_written(backend), pytest.raises(AlreadyHandled):
            backend.sagas.update(record, change(cancelled=(row.id,)), again)
        assert ids(claim(backend)) == [row.id]

    def test_many_rows_are_cancelled_at_once(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing("scheduled", due_at=clock.now + number) for number in range(1, 501)]
        kept = outgoing("scheduled", due_at=clock.now + MINUTE)
        record = update(backend, start(backend, "42", *rows), kept)
        update(backend, record, cancelled=tuple(ids(rows)))
        clock.advance(HOUR)
        assert ids(claim(backend)) == [kept.id]
