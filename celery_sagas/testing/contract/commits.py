"""The common behavior of ``insert``, ``update``, ``delete`` and ``record``."""

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
