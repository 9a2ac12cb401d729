"""``SagaStore.delete``."""

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    by_id,
    by_key,
    by_tracking,
    claim,
    complete,
    conflict,
    effects,
    found,
    handled,
    ids,
    is_there,
    outgoing,
    start,
    update,
)
from celery_sagas.testing.view import nothing_written

T1 = (("tracking", "T1"),)


class DeleteContract(StoreFixtures):
    """Committing the end of instances."""

    def test_deleted_instance_is_gone(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        complete(backend, record)
        for lookup in (by_id(record.id), by_key(), by_tracking("T1")):
            assert not is_there(backend, lookup)

    def test_delete_of_a_stale_version_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        update(backend, record, outgoing("scheduled"))
        self._delete_conflicts(backend, record)

    def test_delete_of_a_version_from_the_future_conflicts(self, backend: Backend) -> None:
        record = start(backend)
        self._delete_conflicts(backend, record._replace(version=2))

    def test_delete_of_an_instance_that_has_restarted_conflicts(self, backend: Backend) -> None:
        """It is at version 1 again, under another id."""
        record = start(backend, keys=T1)
        complete(backend, record)
        start(backend, "42", outgoing("scheduled"), keys=T1)
        self._delete_conflicts(backend, record)

    def test_delete_of_an_instance_that_is_gone_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        complete(backend, record)
        self._delete_conflicts(backend, record)

    def _delete_conflicts(self, backend: Backend, record: Record) -> None:
        with nothing_written(backend), conflict("version"):
            backend.sagas.delete(record, effects(record, outgoing()))

    def test_keys_are_free_for_others(self, backend: Backend) -> None:
        complete(backend, start(backend, keys=T1))
        other = start(backend, "43", keys=T1)
        assert found(backend, by_tracking("T1")) == other

    def test_keys_of_a_former_name_are_free_for_others(self, backend: Backend) -> None:
        complete(backend, start(backend, names=("purchase",), keys=T1))
        start(backend, keys=T1)

    def test_keys_of_others_stay(self, backend: Backend) -> None:
        other = start(backend, "43", keys=(("tracking", "T2"),))
        complete(backend, start(backend, keys=T1))
        assert found(backend, by_tracking("T2")) == other

    def test_scheduled_rows_and_deadlines_go_with_it_and_sent_ones_stay(self, backend: Backend, clock: Clock) -> None:
        sent, later = outgoing(), outgoing(due_at=clock.now + MINUTE)
        scheduled, deadline = outgoing("scheduled", due_at=clock.now + MINUTE), outgoing("deadline")
        record = start(backend, "42", sent, scheduled, deadline)
        record = update(backend, record, later, outgoing("scheduled"), outgoing("deadline", due_at=clock.now + MINUTE))
        complete(backend, record)
        assert backend.outbox.count() == 2
        clock.advance(HOUR)
        assert set(ids(claim(backend))) == {sent.id, later.id}

    def test_row_that_is_leased_goes_with_it_too(self, backend: Backend) -> None:
        record = start(backend, "42", outgoing("scheduled"), outgoing("deadline"))
        rows = claim(backend, "relay")
        complete(backend, record)
        assert len(rows) == 2
        assert backend.outbox.count() == 0
        assert backend.outbox.confirm("relay", ids(rows)) == 0

    def test_thousand_scheduled_rows_go_with_it(self, backend: Backend, clock: Clock) -> None:
        kept = outgoing()
        other = outgoing("scheduled", due_at=clock.now + MINUTE)
        start(backend, "43", other)
        record = start(backend, "42", kept)
        for _ in range(2):
            rows = [outgoing("scheduled", due_at=clock.now + number) for number in range(1, 501)]
            record = update(backend, record, *rows)
        complete(backend, record)
        assert backend.outbox.count() == 2
        clock.advance(HOUR)
        assert ids(claim(backend)) == [kept.id, other.id]

    def test_rows_of_others_stay(self, backend: Backend) -> None:
        """Those of the same key stay too, after it has started again."""
        record = start(backend)
        start(backend, "43", outgoing("scheduled"), outgoing("deadline"))
        complete(backend, record)
        restarted = start(backend, "42", outgoing("scheduled"))
        assert backend.outbox.count() == 3
        complete(backend, restarted)
        assert backend.outbox.count() == 2

    def test_rows_of_the_deleting_commit_are_sent(self, backend: Backend) -> None:
        farewell = outgoing()
        complete(backend, start(backend), farewell)
        assert ids(claim(backend)) == [farewell.id]

    def test_journal_stays(self, backend: Backend) -> None:
        """It distinguishes a completed instance from one that never existed."""
        line = complete(backend, start(backend))
        assert handled(backend, line) is not None
        assert backend.journal.outcome_of(["order"], "42") == handled(backend, line)
        assert [entry.outcome for entry in backend.journal.history(["order"], "42", 9)] == ["started", "completed"]

    def test_own_lock_does_not_stand_in_the_way(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        backend.sagas.delete(record, effects(record, lock_owner="me"))
        assert not is_there(backend, by_key())
