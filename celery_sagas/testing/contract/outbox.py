"""``Outbox``: claiming rows that are due, and ending their lease."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxRow
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.contract.keeping import KeepingContract
from celery_sagas.testing.contract.rescheduling import ReschedulingContract
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


#: Calls one of the operations by token on one row; returns whether it touched the row.
ByToken = Callable[[Backend, str, str], bool]


def _confirm(backend: Backend, token: str, id: str) -> bool:
    return backend.outbox.confirm(token, [id]) == 1


def _release(backend: Backend, token: str, id: str) -> bool:
    return backend.outbox.release(token, [id]) == 1


def _fail(backend: Backend, token: str, id: str) -> bool:
    return backend.outbox.fail(token, id, "broken", MINUTE)


each_operation = pytest.mark.parametrize("touch", [_confirm, _release, _fail], ids=lambda touch: touch.__name__[1:])


class LeaseContract(StoreFixtures):
    """The owner of a lease ends it."""

    @pytest.fixture
    def row(self, backend: Backend) -> str:
        """The id of a row that "relay" has claimed for a second."""
        send(backend, outgoing())
        [row] = claim(backend, "relay", lease_ms=1_000)
        return row.id

    @each_operation
    def test_holder_touches_its_row(self, backend: Backend, row: str, touch: ByToken) -> None:
        assert touch(backend, "relay", row)

    @each_operation
    def test_holder_touches_its_row_after_the_lease_has_ended(
        self, backend: Backend, clock: Clock, row: str, touch: ByToken
    ) -> None:
        """It was late, but no other token has claimed the row since."""
        clock.advance(1_001)
        assert touch(backend, "relay", row)

    @each_operation
    def test_row_that_another_token_has_claimed_since_is_left_alone(
        self, backend: Backend, clock: Clock, row: str, touch: ByToken
    ) -> None:
        clock.advance(1_001)
        claim(backend, "another relay", lease_ms=1_000)
        assert not touch(backend, "relay", row)
        assert claim(backend, "a third relay") == []
        clock.advance(1_001)
        assert [(late.id, late.attempts) for late in claim(backend, "a third relay")] == [(row, 0)]

    @each_operation
    @pytest.mark.parametrize("token", ["", "stranger"])
    def test_row_is_left_alone_by_a_stranger(self, backend: Backend, row: str, touch: ByToken, token: str) -> None:
        assert not touch(backend, token, row)
        assert claim(backend) == []
        assert backend.outbox.count() == 1

    @each_operation
    def test_row_that_is_gone_is_not_touched(self, backend: Backend, row: str, touch: ByToken) -> None:
        backend.outbox.confirm("relay", [row])
        assert not touch(backend, "relay", row)
        assert not touch(backend, "relay", "unknown")

    def test_confirmed_rows_are_removed(self, backend: Backend) -> None:
        send(backend, outgoing(), outgoing(), outgoing())
        first, second, third = ids(claim(backend, lease_ms=1_000))
        assert backend.outbox.confirm("relay", [first, third]) == 2
        assert backend.outbox.count() == 1
        assert backend.outbox.confirm("relay", [first, second]) == 1
        assert backend.outbox.count() == 0

    def test_many_rows_are_confirmed_at_once(self, backend: Backend) -> None:
        send(backend, *(outgoing() for _ in range(500)))
        assert backend.outbox.confirm("relay", ids(claim(backend))) == 500
        assert backend.outbox.count() == 0

    def test_no_rows_are_no_error(self, backend: Backend) -> None:
        assert backend.outbox.confirm("relay", []) == 0
        assert backend.outbox.release("relay", []) == 0

    def test_released_rows_are_due_again_at_once(self, backend: Backend) -> None:
        send(backend, outgoing(), outgoing(), outgoing())
        first, second, third = ids(claim(backend))
        assert backend.outbox.release("relay", [first, third]) == 2
        assert sorted(ids(claim(backend, "another relay"))) == sorted([first, third])
        assert backend.outbox.release("relay", [first, second]) == 1

    def test_release_counts_no_attempt(self, backend: Backend, row: str) -> None:
        backend.outbox.release("relay", [row])
        assert claim(backend)[0].attempts == 0

    def test_released_rows_are_due_again_after_the_delay(self, backend: Backend, clock: Clock) -> None:
        """Their task is not registered here, but other workers may have it."""
        rows = [outgoing(), outgoing("scheduled", due_at=clock.now - HOUR)]
        send(backend, *rows)
        claim(backend)
        assert backend.outbox.release("relay", ids(rows), delay_ms=5_000) == 2
        clock.advance(4_999)
        assert claim(backend) == []
        clock.advance(2)
        assert sorted(ids(claim(backend, "another relay"))) == sorted(ids(rows))

    def test_release_with_a_delay_counts_no_attempt(self, backend: Backend, clock: Clock, row: str) -> None:
        backend.outbox.release("relay", [row], delay_ms=5_000)
        clock.advance(5_001)
        assert [(late.id, late.attempts) for late in claim(backend)] == [(row, 0)]

    def test_released_row_remains_its_last_holders_while_the_delay_lasts(self, backend: Backend, row: str) -> None:
        backend.outbox.release("relay", [row], delay_ms=5_000)
        assert backend.outbox.confirm("another relay", [row]) == 0
        assert backend.outbox.confirm("relay", [row]) == 1

    def test_scheduled_row_cannot_be_hastened(self, backend: Backend, clock: Clock) -> None:
        """It is due when its due time has come, and has no lease that could be ended."""
        row = outgoing("scheduled", due_at=clock.now + HOUR)
        send(backend, row, owner="me", grace_ms=MINUTE)
        assert backend.outbox.release("me", [row.id]) == 0
        clock.advance(HOUR - 1)
        assert claim(backend) == []
        clock.advance(2)
        assert ids(claim(backend)) == [row.id]

    def test_failed_row_is_due_after_the_delay(self, backend: Backend, clock: Clock, row: str) -> None:
        backend.outbox.fail("relay", row, "broken", 5_000)
        clock.advance(4_999)
        assert claim(backend) == []
        clock.advance(2)
        assert ids(claim(backend)) == [row]

    def test_failures_are_counted(self, backend: Backend, clock: Clock, row: str) -> None:
        for attempts in (1, 2, 3):
            backend.outbox.fail("relay", row, "broken", 1_000)
            clock.advance(1_001)
            assert [failed.attempts for failed in claim(backend, "relay")] == [attempts]

    def test_long_error_is_cut(self, backend: Backend, clock: Clock, row: str) -> None:
        """It must not make the row impossible to write."""
        assert backend.outbox.fail("relay", row, "😀" * 100_000, 0)
        clock.advance(1)
        assert ids(claim(backend)) == [row]

    def test_failed_row_does_not_hold_up_others(self, backend: Backend, clock: Clock, row: str) -> None:
        backend.outbox.fail("relay", row, "broken", 1_000)
        clock.advance(500)
        other = outgoing()
        send(backend, other)
        clock.advance(MINUTE)
        assert ids(claim(backend, limit=1)) == [other.id]

    def test_time_is_that_by_which_rows_are_due(self, backend: Backend, clock: Clock) -> None:
        assert backend.outbox.time() == clock.now
        clock.advance(HOUR)
        assert backend.outbox.time() == clock.now

    def test_rows_are_counted_whether_due_or_not(self, backend: Backend, clock: Clock, row: str) -> None:
        send(backend, outgoing(), outgoing("scheduled", due_at=clock.now + HOUR), outgoing("deadline"))
        assert backend.outbox.count() == 4
        backend.outbox.confirm("relay", [row])
        assert backend.outbox.count() == 3


class OutboxContract(ClaimContract, LeaseContract, ReschedulingContract, KeepingContract):
    """The requirements on every ``Outbox``."""
