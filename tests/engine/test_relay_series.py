"""The relay and series: their rows are not removed, but get the next occurrence."""

from typing import Any

import pytest

from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.errors import PublishError, StoreUnavailable
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import OutboxRow
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import complete, ids, outgoing, send, start
from tests.engine.conftest import Batching, Recorder

LEASE_S, EVERY_MS = 60.0, 600_000
POISON = PublishError("it is too large", False)


def next_occurrence(row: OutboxRow, now: int) -> OutboxRow:
    """Return the next one on the clock of whoever asks."""
    if row.payload == "newer":
        raise ValueError("it is of newer code")
    due_at = max(row.due_at, now) // EVERY_MS * EVERY_MS + EVERY_MS
    return row._replace(message_id=f"at-{due_at}", due_at=due_at, attempts=0)


def relay_of(backend: MemoryBackend, clock: Clock, publisher: Recorder) -> Relay:
    """Make a relay, whose own clock is a day ahead."""
    terms = Terms(interval_s=1.0, lease_s=LEASE_S, max_attempts=2, retention_s=3600.0)
    read = lambda: clock.now / 1000 + 86_400  # noqa: E731
    known = {"shop.ship"}.__contains__
    return Relay(backend, publisher, known, terms, clock=read, wall_clock=read, next_occurrence=next_occurrence)


def rows(backend: MemoryBackend) -> list[OutboxRow]:
    return [row.message for row in backend.outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]


@pytest.fixture
def publisher() -> Recorder:
    return Recorder()


@pytest.fixture
def relay(backend: MemoryBackend, clock: Clock, publisher: Recorder) -> Relay:
    return relay_of(backend, clock, publisher)


def test_row_gets_the_next_occurrence_after_the_time_of_the_store(
    backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder
) -> None:
    send(backend, row := outgoing("series", due_at=clock.now - 3 * EVERY_MS))
    sweep = relay.sweep()
    assert (publisher.ids, sweep.sent, sweep.released) == ([row.message_id], 1, 0)
    following = clock.now // EVERY_MS * EVERY_MS + EVERY_MS
    assert [(each.id, each.message_id, each.due_at) for each in rows(backend)] == [(row.id, f"at-{following}", following)]
    assert relay.sweep().sent == 0


@pytest.mark.parametrize("at_once", [False, True])
def test_others_are_removed(backend: MemoryBackend, clock: Clock, at_once: bool) -> None:
    series, timeout, sent = outgoing("series", due_at=clock.now), outgoing("scheduled", due_at=clock.now), outgoing()
    send(backend, series, timeout, sent)
    publisher = Batching() if at_once else Recorder()
    if isinstance(publisher, Batching):
        publisher.confirmed = {series.id, timeout.id, sent.id}
    assert relay_of(backend, clock, publisher).sweep().sent == 3
    assert ids(rows(backend)) == [series.id]


def test_row_that_cannot_be_published_is_a_dead_letter_and_goes_on(
    backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder
) -> None:
    send(backend, row := outgoing("series", due_at=clock.now))
    for _ in range(2):
        publisher.errors = [POISON]
        relay.sweep()
        clock.advance(2_001)
    assert [letter.message_id for letter in backend.dead.list(9)] == [row.message_id]
    (following,) = rows(backend)
    assert (following.id, following.attempts) == (row.id, 0)
    assert following.message_id != row.message_id
    clock.advance(EVERY_MS)
    assert relay.sweep().sent == 1


def test_instance_that_has_ended_meanwhile(
    backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = start(backend, "42", outgoing("series", due_at=clock.now))
    publish = publisher.publish

    def end(message: Any) -> None:
        publish(message)
        complete(backend, record)

    monkeypatch.setattr(publisher, "publish", end)
    assert relay.sweep().sent == 1
    assert rows(backend) == []


@pytest.mark.parametrize("method", ["time", "reschedule"])
def test_store_that_goes_away_after_it_was_published(
    backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The same occurrence comes again, under the same id, once the lease has ended."""

    def away(*_: Any) -> None:
        raise StoreUnavailable("memory://", "it is away")

    send(backend, row := outgoing("series", due_at=clock.now))
    with monkeypatch.context() as patch:
        patch.setattr(backend.outbox, method, away)
        assert "it is away" in relay.sweep().error
    clock.advance(int(LEASE_S * 1000))
    assert relay.sweep().sent == 1
    assert publisher.ids == [row.message_id] * 2
    assert rows(backend)[0].message_id.startswith("at-")


def test_series_that_cannot_be_read_is_left_to_others(
    backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not published either: nobody could put the next occurrence into it."""
    send(backend, newer := outgoing("series", due_at=clock.now, payload="newer"), outgoing("series", due_at=clock.now))
    assert relay.sweep().sent == 1
    assert f"the series {newer.id} of shop.ship is left to another worker: it is of newer code" in caplog.text
    clock.advance(59_000)
    assert relay.sweep().sent == 0
    clock.advance(1_001)
    assert ids(backend.outbox.claim_due("another", 9, 1)) == [newer.id]


def test_step_that_is_unknown_here(backend: MemoryBackend, clock: Clock, relay: Relay, publisher: Recorder) -> None:
    relay.knows = lambda _: False
    send(backend, outgoing("series", due_at=clock.now))
    assert relay.sweep().unknown == {"shop.ship": 1}
    assert publisher.ids == []


def test_relay_without_series_leaves_them(backend: MemoryBackend, clock: Clock, publisher: Recorder) -> None:
    relay = Relay(backend, publisher, lambda _: True, Terms(1.0, LEASE_S, 2, 3600.0))
    send(backend, outgoing("series", due_at=clock.now))
    assert (relay.sweep().sent, publisher.ids) == (0, [])
