"""``SagaStore.update``: outgoing rows that it cancels."""

import pytest

from celery_sagas.errors import AlreadyHandled
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    by_key,
    change,
    claim,
    conflict,
    effects,
    entry,
    found,
    ids,
    outgoing,
    send,
    start,
    update,
)
from celery_sagas.testing.view import nothing_written

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
