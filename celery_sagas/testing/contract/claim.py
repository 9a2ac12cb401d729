"""``Outbox.claim_due``."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxRow
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, claim, entry, ids, outgoing, send


class ClaimContract(StoreFixtures):
    """Claiming rows that are due."""

    def test_claimed_row_is_what_was_committed(self, backend: Backend, clock: Clock) -> None:
        row = outgoing("deadline", due_at=clock.now - 5, payload='{"args": [1]}')
        line = send(backend, row)
        assert claim(backend) == [
            OutboxRow(
                id=row.id,
                kind="deadline",
                message_id=row.message_id,
                task="shop.ship",
                payload='{"args": [1]}',
                due_at=clock.now - 5,
                attempts=0,
                instance_id="",
                step=line.step,
                cause=line.message_id,
            )
        ]

    def test_nothing_is_due_in_an_empty_outbox(self, backend: Backend) -> None:
        assert claim(backend) == []

    def test_row_is_due_when_its_due_time_has_come(self, backend: Backend, clock: Clock) -> None:
        send(backend, outgoing("scheduled", due_at=clock.now + HOUR))
        clock.advance(HOUR - 1)
        assert claim(backend) == []
        clock.advance(2)
        assert len(claim(backend)) == 1

    def test_row_without_a_due_time_is_due_at_once(self, backend: Backend) -> None:
        send(backend, outgoing())
        assert len(claim(backend)) == 1

    def test_leased_row_is_not_due(self, backend: Backend, clock: Clock) -> None:
        """It is not due for any token, not even for the one that holds the lease."""
        send(backend, outgoing())
        claim(backend, "one", lease_ms=1_000)
        clock.advance(999)
        assert claim(backend, "two") == []
        assert claim(backend, "one") == []

    def test_row_is_due_again_when_its_lease_has_ended(self, backend: Backend, clock: Clock) -> None:
        """The process that claimed it has died."""
        row = outgoing()
        send(backend, row)
        claim(backend, "one", lease_ms=1_000)
        clock.advance(1_001)
        assert ids(claim(backend, "two")) == [row.id]

    def test_claim_is_committed_before_it_returns(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        send(backend, outgoing())
        assert len(claim(backend, "one")) == 1
        assert claim(open_backend(prefix), "two") == []

    def test_claim_takes_no_more_than_its_limit(self, backend: Backend) -> None:
        rows = [outgoing() for _ in range(5)]
        send(backend, *rows)
        claims = [ids(claim(backend, "relay", limit=2)) for _ in range(4)]
        assert [len(claimed) for claimed in claims] == [2, 2, 1, 0]
        assert sorted(chain(*claims)) == sorted(ids(rows))

    def test_longest_due_comes_first(self, backend: Backend, clock: Clock) -> None:
        """Nothing at the head starves what is behind it."""
        later, soon = outgoing(due_at=clock.now + HOUR), outgoing(due_at=clock.now + MINUTE)
        send(backend, later, soon)
        clock.advance(2 * MINUTE)
        at_once = outgoing()
        send(backend, at_once)
        clock.advance(HOUR)
        assert ids(claim(backend)) == [soon.id, at_once.id, later.id]

    def test_row_that_was_overdue_when_it_was_written_is_due_since_its_due_time(self, backend: Backend, clock: Clock) -> None:
        at_once, past = outgoing(), outgoing(due_at=clock.now - HOUR)
        send(backend, at_once)
        clock.advance(MINUTE)
        send(backend, past)
        assert ids(claim(backend)) == [past.id, at_once.id]

    def test_limit_cuts_off_what_is_due_for_a_shorter_time(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing(due_at=clock.now + n * MINUTE) for n in (3, 1, 2)]
        send(backend, *rows)
        clock.advance(HOUR)
        assert ids(claim(backend, limit=2)) == [rows[1].id, rows[2].id]

    def test_five_hundred_rows_come_in_the_order_of_their_due_times(self, backend: Backend, clock: Clock) -> None:
        rows = [outgoing(due_at=clock.now + n) for n in range(500, 0, -1)]
        send(backend, *rows)
        clock.advance(HOUR)
        assert ids(claim(backend)) == ids(rows)[::-1]

    def test_rows_that_are_not_due_stand_in_nobodys_way(self, backend: Backend, clock: Clock) -> None:
        send(backend, *(outgoing("scheduled", due_at=clock.now + HOUR) for _ in range(100)))
        row = outgoing()
        send(backend, row)
        assert ids(claim(backend, limit=1)) == [row.id]

    def test_claim_with_a_cause_takes_only_what_this_message_decided(self, backend: Backend) -> None:
        """The run of a duplicate finishes what the first run left."""
        send(backend, outgoing())
        row = outgoing()
        line = send(backend, row)
        assert ids(backend.outbox.claim_due("me", 1, MINUTE, line)) == [row.id]
        assert backend.outbox.claim_due("me", 9, MINUTE, line) == []

    def test_claim_with_a_cause_leaves_what_another_step_decided(self, backend: Backend) -> None:
        line = send(backend, outgoing())
        packed = send(backend, outgoing(), line=entry(step="parcel.pack", message_id=line.message_id))
        claimed = backend.outbox.claim_due("me", 9, MINUTE, packed)
        assert [row.step for row in claimed] == ["parcel.pack"]

    def test_claim_with_a_cause_takes_only_what_is_due(self, backend: Backend, clock: Clock) -> None:
        line = send(backend, outgoing(), outgoing(due_at=clock.now + HOUR), owner="first run", grace_ms=1_000)
        assert backend.outbox.claim_due("me", 9, MINUTE, line) == []
        clock.advance(1_001)
        assert len(backend.outbox.claim_due("me", 9, MINUTE, line)) == 1

    @pytest.mark.parametrize("limit", [1, 7])
    def test_claims_at_once_never_return_the_same_row(
        self, backend: Backend, open_backend: OpenBackend, prefix: str, limit: int
    ) -> None:
        rows = [outgoing() for _ in range(60)]
        send(backend, *rows)
        relays = [open_backend(prefix) for _ in range(4)]
        with ThreadPoolExecutor(len(relays)) as threads:
            claims = [threads.submit(_drain, relay, f"relay {n}", limit) for n, relay in enumerate(relays)]
            claimed = [id for claim in claims for id in claim.result()]
        assert sorted(claimed) == sorted(ids(rows))

    def test_rows_under_a_lease_are_counted_by_cause(self, backend: Backend, clock: Clock) -> None:
        """They are those that a process may be publishing."""
        line = send(backend, outgoing(), outgoing())
        send(backend, outgoing())
        assert backend.outbox.count_leased(line) == 0
        assert len(backend.outbox.claim_due("one", 1, 1_000, line)) == 1
        assert backend.outbox.count_leased(line) == 1
        assert backend.outbox.count_leased(line._replace(step="another.step")) == 0
        clock.advance(1_000)
        assert backend.outbox.count_leased(line) == 0

    def test_row_is_counted_under_its_first_lease(self, backend: Backend, clock: Clock) -> None:
        """The process that committed it may be publishing it."""
        line = send(backend, outgoing(), owner="me", grace_ms=1_000)
        assert backend.outbox.count_leased(line) == 1
        clock.advance(1_001)
        assert backend.outbox.count_leased(line) == 0

    @pytest.mark.parametrize("wait_ms", [HOUR, -HOUR], ids=["future", "past"])
    def test_row_with_a_due_time_is_counted_while_it_is_claimed(self, backend: Backend, clock: Clock, wait_ms: int) -> None:
        """Before the claim it is not being published, whether its time has come or not."""
        line = send(backend, outgoing("scheduled", due_at=clock.now + wait_ms), owner="me", grace_ms=2 * HOUR)
        assert backend.outbox.count_leased(line) == 0
        clock.advance(max(0, wait_ms) + 1)
        assert backend.outbox.count_leased(line) == 0
        assert len(claim(backend, "relay", lease_ms=1_000)) == 1
        assert backend.outbox.count_leased(line) == 1
        clock.advance(1_001)
        assert backend.outbox.count_leased(line) == 0

    def test_row_that_failed_is_not_counted_as_leased(self, backend: Backend) -> None:
        """No caller waits for it."""
        line = send(backend, outgoing())
        (row,) = claim(backend, "one")
        backend.outbox.fail("one", row.id, "it is too large", MINUTE)
        assert backend.outbox.count_leased(line) == 0

    @pytest.mark.parametrize("delay_ms", [0, MINUTE])
    def test_row_that_was_released_is_not_counted_as_leased(self, backend: Backend, clock: Clock, delay_ms: int) -> None:
        """It is not published until it is claimed again, although it may not be due."""
        line = send(backend, outgoing())
        (row,) = claim(backend, "one")
        backend.outbox.release("one", [row.id], delay_ms)
        assert backend.outbox.count_leased(line) == 0
        clock.advance(delay_ms + 1)
        assert len(claim(backend, "two")) == 1
        assert backend.outbox.count_leased(line) == 1


def _drain(backend: Backend, token: str, limit: int) -> list[str]:
    """Claim until nothing is left; a claim may find nothing while a rival holds the last rows, but never twice over."""
    claimed: list[str] = []
    while (rows := claim(backend, token, limit=limit)) and not set(ids(rows)) & set(claimed):
        claimed += ids(rows)
    return claimed + ids(rows)
