"""``Outbox.confirm`` with ``keep_ms``: rows that stay until their message is handled; and what operators see of rows."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEPT_KINDS, KEPT_MOST_MS, OutboxGlance, OutboxRow, OutboxTally
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, by_key, claim, complete, found, ids, outgoing, send, start, update

each_kind = pytest.mark.parametrize("kind", KEPT_KINDS)


def published(backend: Backend, row: OutboxRow) -> None:
    """Claim a row that is due, and confirm it."""
    assert ids(claim(backend)) == [row.id]
    assert backend.outbox.confirm("relay", [row.id], HOUR) == 1


def tried(backend: Backend, clock: Clock) -> list[str]:
    """Return the ids of the rows that were tried until now."""
    return [row.id for row in backend.outbox.tried(clock.now, 500)]


def overdue(backend: Backend, before: int, limit: int = 9) -> list[str]:
    """Return the ids of the rows that no relay has taken though they were due before a time, read in pages."""
    found, after, is_first = list[str](), "", True
    while after or is_first:
        page, is_first = backend.outbox.overdue(before, limit, after), False
        found += [row.id for row in page.rows]
        after = page.after
    return found


class KeepingContract(StoreFixtures):
    """Rows that were published and stay, and rows whose publishing has failed."""

    @pytest.fixture
    def timeout(self, backend: Backend, clock: Clock) -> OutboxRow:
        """The row of a timeout, which was published."""
        start(backend, "42", outgoing("scheduled", due_at=clock.now - 1))
        [row] = claim(backend)
        assert backend.outbox.confirm("relay", [row.id], HOUR) == 1
        return row

    @each_kind
    def test_row_is_due_again_after_its_time(self, backend: Backend, clock: Clock, kind: str) -> None:
        start(backend, "42", outgoing(kind, due_at=clock.now - 1))
        [row], now = claim(backend), clock.now
        backend.outbox.confirm("relay", [row.id], HOUR)
        clock.advance(HOUR - 1)
        assert claim(backend) == []
        clock.advance(1)
        assert claim(backend) == [row._replace(tried_at=now)]

    def test_row_that_its_committer_has_published_stays(self, backend: Backend, clock: Clock) -> None:
        send(backend, row := outgoing("scheduled"), owner="me", grace_ms=MINUTE)
        assert backend.outbox.confirm("me", [row.id], HOUR) == 1
        clock.advance(HOUR - 1)
        assert claim(backend) == []
        clock.advance(1)
        assert ids(claim(backend)) == [row.id]

    def test_row_that_is_not_to_be_kept_is_removed(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        clock.advance(HOUR)
        claim(backend)
        assert backend.outbox.confirm("relay", [timeout.id]) == 1
        assert (backend.outbox.count(), tried(backend, clock)) == (0, [])

    def test_many_rows_are_kept(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing(kind, due_at=clock.now - 1) for kind in KEPT_KINDS for _ in range(300)]
        start(backend, "42", *rows)
        claimed = claim(backend)
        assert backend.outbox.confirm("relay", [*ids(claimed), claimed[0].id, "no such row"], HOUR) == len(claimed) == 600
        assert set(tried(backend, clock)) <= set(ids(rows)) == {glance.id for glance in backend.outbox.read(ids(rows))}
        assert claim(backend) == []

    def test_row_of_another_token_is_not_kept(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", outgoing("scheduled", due_at=clock.now - 1))
        [row] = claim(backend)
        assert backend.outbox.confirm("another relay", [row.id], HOUR) == 0
        clock.advance(MINUTE)
        assert claim(backend, "another relay") == [row]

    def test_time_doubles(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        """Its message may be in a queue that nobody reads for days."""
        first = clock.now
        for after in (HOUR, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 16 * HOUR, KEPT_MOST_MS, KEPT_MOST_MS):
            clock.advance(after - 1)
            assert claim(backend) == []
            clock.advance(1)
            published(backend, timeout)
        assert [row.tried_at for row in backend.outbox.read([timeout.id])] == [first]

    def test_time_that_is_longer_than_a_day_is_kept(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        clock.advance(HOUR)
        claim(backend)
        backend.outbox.confirm("relay", [timeout.id], 3 * KEPT_MOST_MS)
        clock.advance(3 * KEPT_MOST_MS - 1)
        assert claim(backend) == []
        clock.advance(1)
        published(backend, timeout)

    def test_kept_row_is_not_counted_as_leased(self, backend: Backend, clock: Clock) -> None:
        line = send(backend, outgoing("scheduled", due_at=clock.now - 1))
        [row] = claim(backend)
        backend.outbox.confirm("relay", [row.id], HOUR)
        assert backend.outbox.count_leased(line) == 0

    def test_row_that_is_claimed_again_is_counted_as_leased(self, backend: Backend, clock: Clock) -> None:
        line = send(backend, outgoing("scheduled", due_at=clock.now - 1))
        [row] = claim(backend)
        backend.outbox.confirm("relay", [row.id], HOUR)
        clock.advance(HOUR)
        claim(backend)
        assert backend.outbox.count_leased(line) == 1

    def test_kept_row_is_hurried(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        assert backend.outbox.hurry([timeout.id, timeout.id, "no such row"]) == 1
        assert ids(claim(backend)) == [timeout.id]

    def test_row_whose_time_has_not_come_is_hurried(self, backend: Backend, clock: Clock) -> None:
        start(
            backend,
            "42",
            row := outgoing("scheduled", due_at=clock.now + HOUR),
            other := outgoing("series", due_at=clock.now + HOUR),
        )
        assert claim(backend) == []
        assert backend.outbox.hurry([row.id]) == 1
        [claimed] = claim(backend)
        assert (claimed.id, claimed.due_at) == (row.id, row.due_at)
        clock.advance(HOUR)
        assert other.id in ids(claim(backend, "another"))

    def test_many_rows_are_hurried(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing("scheduled", due_at=clock.now + HOUR) for _ in range(700)]
        start(backend, "42", *rows)
        assert backend.outbox.hurry(ids(rows)) == 700
        assert {row.id for row in claim(backend)} == set(ids(rows))

    def test_row_that_is_due_is_not_hurried(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", row := outgoing("scheduled", due_at=clock.now - 1))
        assert backend.outbox.hurry([row.id]) == 0
        assert backend.outbox.hurry([]) == 0
        assert ids(claim(backend)) == [row.id]

    def test_row_under_a_lease_is_not_hurried(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", row := outgoing("scheduled", due_at=clock.now - 1))
        claim(backend)
        assert backend.outbox.hurry([row.id]) == 0
        assert claim(backend, "another") == []

    def test_row_that_has_failed_is_hurried(self, backend: Backend, clock: Clock) -> None:
        send(backend, row := outgoing())
        claim(backend)
        backend.outbox.fail("relay", row.id, "refused", HOUR)
        assert backend.outbox.hurry([row.id]) == 1
        assert [(each.id, each.attempts) for each in claim(backend)] == [(row.id, 1)]

    def test_instance_cancels_a_kept_row(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        update(backend, found(backend, by_key()), cancelled=(timeout.id,))
        assert (backend.outbox.count(), tried(backend, clock)) == (0, [])

    def test_kept_row_ends_with_its_instance(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        complete(backend, found(backend, by_key()))
        assert (backend.outbox.count(), tried(backend, clock)) == (0, [])

    def test_row_is_removed_without_a_time(self, backend: Backend, clock: Clock, timeout: OutboxRow) -> None:
        clock.advance(HOUR)
        claim(backend)
        assert backend.outbox.confirm("relay", [timeout.id]) == 1
        assert (backend.outbox.count(), tried(backend, clock)) == (0, [])

    def test_failures_are_forgotten_once_it_was_published(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", outgoing("scheduled", due_at=clock.now - 1))
        [row], began = claim(backend), clock.now
        backend.outbox.fail("relay", row.id, "broken", MINUTE)
        clock.advance(MINUTE)
        assert claim(backend) == [row._replace(attempts=1, tried_at=began)]
        backend.outbox.confirm("relay", [row.id], HOUR)
        [glance] = backend.outbox.read([row.id])
        assert (glance.attempts, glance.error, glance.tried_at) == (0, "", began)

    def test_rescheduled_row_was_never_tried(self, backend: Backend, clock: Clock) -> None:
        start(backend, "42", outgoing("series", due_at=clock.now - 1))
        [row] = claim(backend)
        backend.outbox.fail("relay", row.id, "broken", MINUTE)
        backend.outbox.reschedule("relay", [row._replace(due_at=clock.now + HOUR)])
        assert tried(backend, clock) == []
        assert [each.tried_at for each in backend.outbox.read([row.id])] == [0]

    def test_read_shows_all_but_the_payload(self, backend: Backend, clock: Clock) -> None:
        row = outgoing("scheduled", due_at=clock.now + HOUR, payload='{"päyload": "\\n"}')
        record = start(backend, "42", row)
        [glance] = backend.outbox.read([row.id])
        decided = (record.id, glance.step, glance.cause)
        times = (0, row.due_at, 0)
        assert glance == OutboxGlance(row.id, row.kind, row.message_id, row.task, row.due_at, 0, *decided, *times, "")
        assert glance.step
        assert glance.cause

    def test_read_shows_lease_and_failure(self, backend: Backend, clock: Clock) -> None:
        send(backend, row := outgoing(due_at=clock.now - 1))
        claim(backend)
        [leased] = backend.outbox.read([row.id])
        assert (leased.leased_until, leased.available_at) == (clock.now + MINUTE, clock.now + MINUTE)
        backend.outbox.fail("relay", row.id, "täst\nof two lines", HOUR)
        [failed] = backend.outbox.read([row.id])
        assert (failed.attempts, failed.error, failed.available_at) == (1, "täst\nof two lines", clock.now + HOUR)
        assert failed.leased_until <= clock.now or failed.leased_until == failed.available_at

    def test_read_keeps_the_order_and_leaves_out_what_is_gone(self, backend: Backend) -> None:
        rows = [outgoing() for _ in range(120)]
        send(backend, *rows)
        wanted = [*ids(rows)[::-1], "no such row"]
        assert [glance.id for glance in backend.outbox.read(wanted)] == ids(rows)[::-1]
        assert backend.outbox.read([]) == []

    def test_tried_rows_come_by_the_time_of_the_first_trial(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing("scheduled", due_at=clock.now - 1) for _ in range(7)]
        start(backend, "42", *rows)
        start(backend, "43", outgoing("scheduled", due_at=clock.now + HOUR))
        claim(backend)
        for number, row in enumerate(rows[::-1]):
            if number % 2:
                backend.outbox.fail("relay", row.id, "broken", HOUR)
            else:
                backend.outbox.confirm("relay", [row.id], HOUR)
            clock.advance(1)
        assert tried(backend, clock) == ids(rows)[::-1]
        page = backend.outbox.tried(clock.now - 2, 4)
        assert [row.id for row in page] == ids(rows)[::-1][:4]
        rest = backend.outbox.tried(clock.now - 2, 4, after=page[-1].place)
        assert [row.id for row in rest] == ids(rows)[::-1][4:6]
        assert backend.outbox.tried(clock.now - 2, 4, after=rest[-1].place) == []

    def test_tried_rows_of_one_time_come_once(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing("scheduled", due_at=clock.now - 1) for _ in range(9)]
        start(backend, "42", *rows)
        backend.outbox.confirm("relay", ids(claim(backend)), HOUR)
        seen, after = list[str](), ""
        while page := backend.outbox.tried(clock.now, 2, after):
            seen += [row.id for row in page]
            after = page[-1].place
        assert seen == sorted(ids(rows))

    def test_overdue_rows_were_never_tried(self, backend: Backend, clock: Clock) -> None:
        """A relay left the first one, which it does not know; nobody has taken the others."""
        early, late, published, later = (outgoing("scheduled", due_at=clock.now + at) for at in (-2 * HOUR, -1, -HOUR, HOUR))
        start(backend, "42", early)
        claim(backend)
        backend.outbox.release("relay", [early.id], MINUTE)
        start(backend, "43", published)
        backend.outbox.confirm("relay", ids(claim(backend)), 1)
        start(backend, "44", late, later)
        send(backend, at_once := outgoing(), owner="a dead process", grace_ms=1)
        assert overdue(backend, clock.now - 1) == [late.id, early.id]
        assert overdue(backend, clock.now - HOUR) == [early.id]
        assert [row.id for row in backend.outbox.overdue(clock.now - 1, 1).rows] == [late.id]
        clock.advance(1)
        assert overdue(backend, clock.now) == [late.id, at_once.id, early.id]

    def test_overdue_rows_come_in_pages(self, backend: Backend, clock: Clock) -> None:
        """Each once, also those of one time, and if the last one of a page is gone, or others come before it."""
        start(backend, "42", *(outgoing("scheduled", due_at=clock.now - 1) for _ in range(7)))
        clock.advance(1)
        start(backend, "43", *(outgoing("scheduled", due_at=clock.now - 1) for _ in range(2)))
        rows = backend.outbox.overdue(clock.now, 9).rows
        assert [row.available_at for row in rows] == sorted(row.available_at for row in rows)
        for limit in (1, 2, 4, 9, 10):
            assert overdue(backend, clock.now, limit) == [row.id for row in rows]
        page = backend.outbox.overdue(clock.now, 3)
        assert page.after
        backend.outbox.confirm("relay", ids(claim(backend, limit=3)))
        rest = backend.outbox.overdue(clock.now, 9, page.after)
        gone = {row.id for row in rows} - {row.id for row in backend.outbox.read([row.id for row in rows])}
        assert (len(gone), [row.id for row in rest.rows]) == (3, [row.id for row in rows[3:] if row.id not in gone])
        assert rest.after == ""

    def test_tally_counts_what_is_due_and_what_was_tried(self, backend: Backend, clock: Clock) -> None:
        assert backend.outbox.tally(10) == OutboxTally(0, 0, 0)
        rows = [outgoing("scheduled", due_at=clock.now - number) for number in (1, 2, 3, 4, 5)]
        start(backend, "42", *rows, outgoing("scheduled", due_at=clock.now + HOUR))
        assert backend.outbox.tally(10) == OutboxTally(5, clock.now - 5, 0)
        backend.outbox.confirm("relay", ids(claim(backend, limit=2)), HOUR)
        assert backend.outbox.tally(10) == OutboxTally(3, clock.now - 3, 2)
        assert backend.outbox.tally(2) == OutboxTally(2, clock.now - 3, 2)
        assert backend.outbox.tally(1) == OutboxTally(1, clock.now - 3, 1)
