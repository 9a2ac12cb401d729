"""``Outbox.reschedule``: the row of a series gets its next message."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxRow
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, by_key, claim, complete, found, ids, new_id, outgoing, send, start, update


def following(row: OutboxRow, due_at: int) -> OutboxRow:
    """Return a row with its next message."""
    return row._replace(message_id=new_id(), payload=f'{{"due": {due_at}}}', due_at=due_at, attempts=0, tried_at=0)


class ReschedulingContract(StoreFixtures):
    """Putting the next message into a row."""

    @pytest.fixture
    def occurrence(self, backend: Backend, clock: Clock) -> OutboxRow:
        """The row of a series, which "relay" has claimed for a minute."""
        start(backend, "42", outgoing("series", due_at=clock.now - 1))
        [row] = claim(backend)
        return row

    def test_row_gets_another_message(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        new = following(occurrence, clock.now + 1_000)
        assert backend.outbox.reschedule("relay", [new]) == 1
        clock.advance(1_001)
        assert claim(backend) == [new]
        assert backend.outbox.count() == 1

    def test_row_is_due_at_its_time(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        """Neither when its lease would have ended, nor before."""
        backend.outbox.reschedule("relay", [following(occurrence, clock.now + HOUR)])
        clock.advance(HOUR - 1)
        assert claim(backend) == []
        clock.advance(2)
        assert ids(claim(backend)) == [occurrence.id]

    def test_row_whose_time_has_come_is_due_at_once(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        backend.outbox.reschedule("relay", [following(occurrence, clock.now - 1)])
        assert ids(claim(backend, "another relay")) == [occurrence.id]

    def test_many_rows_are_rescheduled_at_once(self, backend: Backend, clock: Clock) -> None:
        send(backend, *(outgoing("series", due_at=clock.now - 1) for _ in range(500)))
        new = [following(row, clock.now + number) for number, row in enumerate(claim(backend), start=1)]
        assert backend.outbox.reschedule("relay", new) == 500
        clock.advance(HOUR)
        assert claim(backend) == new

    def test_no_rows_to_reschedule_are_no_error(self, backend: Backend) -> None:
        assert backend.outbox.reschedule("relay", []) == 0

    def test_row_is_not_the_tokens_any_more(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        """A call that comes twice, or another one of the same relay, changes nothing."""
        new = following(occurrence, clock.now + HOUR)
        backend.outbox.reschedule("relay", [new])
        assert backend.outbox.reschedule("relay", [following(new, clock.now)]) == 0
        assert backend.outbox.confirm("relay", [occurrence.id]) == 0
        assert backend.outbox.release("relay", [occurrence.id]) == 0
        assert not backend.outbox.fail("relay", occurrence.id, "broken", 0)
        clock.advance(HOUR + 1)
        assert claim(backend) == [new]

    def test_row_is_changed_after_the_lease_has_ended(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        """It was late, but no other token has claimed the row since."""
        clock.advance(MINUTE + 1)
        assert backend.outbox.reschedule("relay", [following(occurrence, clock.now + HOUR)]) == 1

    def test_row_of_another_token_gets_no_message(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        clock.advance(MINUTE + 1)
        assert claim(backend, "another relay") == [occurrence]
        assert backend.outbox.reschedule("relay", [following(occurrence, clock.now - 1)]) == 0
        assert claim(backend, "a third relay") == []
        clock.advance(MINUTE + 1)
        assert claim(backend, "a third relay") == [occurrence]

    @pytest.mark.parametrize("token", ["", "stranger"])
    def test_row_gets_no_message_from_a_stranger(self, backend: Backend, clock: Clock, occurrence: OutboxRow, token: str) -> None:
        assert backend.outbox.reschedule(token, [following(occurrence, clock.now - 1)]) == 0
        assert claim(backend) == []

    def test_row_that_is_gone_is_not_written_again(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        backend.outbox.confirm("relay", [occurrence.id])
        assert backend.outbox.reschedule("relay", [following(occurrence, clock.now)]) == 0
        assert backend.outbox.count() == 0

    def test_failures_are_forgotten(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        """They are those of one message."""
        backend.outbox.fail("relay", occurrence.id, "broken", 0)
        clock.advance(1)
        [failed] = claim(backend)
        assert failed.attempts == 1
        backend.outbox.reschedule("relay", [following(failed, clock.now + 1_000)])
        clock.advance(1_001)
        assert [row.attempts for row in claim(backend)] == [0]

    def test_rescheduled_row_is_not_counted_as_leased(self, backend: Backend, clock: Clock) -> None:
        line = send(backend, outgoing("series", due_at=clock.now - 1))
        [row] = claim(backend)
        assert backend.outbox.count_leased(line) == 1
        backend.outbox.reschedule("relay", [following(row, clock.now + HOUR)])
        assert backend.outbox.count_leased(line) == 0

    def test_row_is_still_that_of_the_deciding_message(self, backend: Backend, clock: Clock) -> None:
        line = send(backend, outgoing("series", due_at=clock.now - 1))
        [row] = claim(backend)
        backend.outbox.reschedule("relay", [following(row, clock.now - 1)])
        assert ids(backend.outbox.claim_due("me", 9, MINUTE, line)) == [row.id]

    def test_row_ends_with_its_instance(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        backend.outbox.reschedule("relay", [following(occurrence, clock.now + HOUR)])
        complete(backend, found(backend, by_key()))
        assert backend.outbox.count() == 0

    def test_instance_cancels_it(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        backend.outbox.reschedule("relay", [following(occurrence, clock.now + HOUR)])
        update(backend, found(backend, by_key()), cancelled=(occurrence.id,))
        assert backend.outbox.count() == 0

    def test_ended_instance_has_no_next_message(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        """It ended while a relay published the message before."""
        complete(backend, found(backend, by_key()))
        assert backend.outbox.reschedule("relay", [following(occurrence, clock.now)]) == 0
        assert backend.outbox.count() == 0

    def test_row_that_is_confirmed_leaves_nothing_behind(self, backend: Backend, clock: Clock, occurrence: OutboxRow) -> None:
        backend.outbox.reschedule("relay", [following(occurrence, clock.now - 1)])
        claim(backend)
        assert backend.outbox.confirm("relay", [occurrence.id]) == 1
        assert backend.outbox.count() == 0
        complete(backend, found(backend, by_key()))
