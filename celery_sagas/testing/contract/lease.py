"""``Outbox.confirm``, ``release``, ``fail`` and ``count``: the calls of a lease's owner."""

from collections.abc import Callable

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE, claim, ids, outgoing, send

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

    def test_rows_are_counted_whether_due_or_not(self, backend: Backend, clock: Clock, row: str) -> None:
        send(backend, outgoing(), outgoing("scheduled", due_at=clock.now + HOUR), outgoing("deadline"))
        assert backend.outbox.count() == 4
        backend.outbox.confirm("relay", [row])
        assert backend.outbox.count() == 3
