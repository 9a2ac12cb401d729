"""What the function of an aggregator sends: stored with the removal of its items, published after it, or not at all."""

import json
import logging
from typing import Any

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.ids import derived_id
from celery_sagas.engine.aggregators import flush as flushes
from celery_sagas.engine.aggregators.flush import FlushVerdict
from celery_sagas.errors import ConfigurationError, LeaseLost, MisuseError, PublishError, StoreUnavailable
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import claim
from tests.engine.aggregators.batches import LEASE_MS, NAME, Boom, Collector, Reading, failing
from tests.engine.conftest import GRACE_S

AWAY = StoreUnavailable("store", "away")


@pytest.fixture
def collector(backend: MemoryBackend) -> Collector:
    """An aggregator of pairs, whose function sends one message for each item; two items wait."""
    made = Collector(backend)
    made.work = send_each
    made.add("a", "b")
    return made


def send_each(batch: Batch[Reading]) -> None:
    """Send one message for each item."""
    for reading in batch:
        send(batch, reading.device)


def send(batch: Batch[Any], message: object, **options: Any) -> str:
    """Send what is no signature here."""
    return batch.send(message, **options)  # type: ignore[arg-type]


def test_messages_are_published_once_the_items_are_removed(collector: Collector, backend: MemoryBackend) -> None:
    """They are in the outbox until they are confirmed."""
    stored = list[tuple[int, int]]()
    publish = collector.publisher.publish
    collector.publisher.publish = lambda message: (  # type: ignore[method-assign]
        stored.append((backend.buffers.count(NAME).buffered, backend.outbox.count())),
        publish(message),
    )[1]
    collector.flush("run")
    assert [json.loads(message.payload) for message in collector.publisher.published] == ["a", "b"]
    assert stored == [(0, 2)] * 2
    collector.dispatcher.confirmations.flush()
    assert backend.outbox.count() == 0


def test_ids_are_derived_from_the_run(collector: Collector) -> None:
    """So a row that is published twice has one id."""
    sent = list[str]()
    collector.work = lambda batch: sent.extend([send(batch, "x"), send(batch, "y")])
    collector.flush("run")
    assert sent == collector.publisher.ids == [derived_id("run", f"{NAME}/{number}") for number in (0, 1)]


def test_function_that_raises_sends_nothing(collector: Collector, backend: MemoryBackend, clock: Clock) -> None:
    """The next run sends under other ids."""
    first, second = list[str](), list[str]()

    def fail(batch: Batch[Reading]) -> None:
        first.append(send(batch, "x"))
        raise Boom

    collector.work = fail
    collector.flush()
    assert (collector.publisher.ids, backend.outbox.count()) == ([], 0)
    assert collector.states() == {"a": "free", "b": "free"}

    collector.work = lambda batch: second.append(send(batch, "x"))
    clock.advance(5_000)
    collector.flush()
    assert collector.publisher.ids == second
    assert first != second


def test_error_that_settles_the_items_sends_what_was_sent_before(collector: Collector) -> None:
    """The items count as handled."""

    def settle(batch: Batch[Reading]) -> None:
        send(batch, "x")
        raise Boom

    collector.work, collector.verdict = settle, FlushVerdict(is_done=True)
    collector.flush()
    assert (collector.states(), len(collector.publisher.ids)) == ({}, 1)


def test_rejected_items_make_no_difference(collector: Collector) -> None:
    """Even if they are all."""

    def reject(batch: Batch[Reading]) -> None:
        for reading in batch:
            batch.reject(reading)
        send(batch, "x")

    collector.work = reject
    collector.flush()
    assert (sorted(collector.rejected()), len(collector.publisher.ids)) == (["a", "b"], 1)


def test_run_that_has_lost_its_lease_sends_nothing(collector: Collector, backend: MemoryBackend, clock: Clock) -> None:
    """The other run sends."""

    def lose(batch: Batch[Reading]) -> None:
        send_each(batch)
        clock.advance(LEASE_MS)
        assert collector.claim() == ["a", "b"]

    collector.work = lose
    with pytest.raises(LeaseLost):
        collector.flush()
    assert (collector.publisher.ids, backend.outbox.count()) == ([], 0)


class TestStoreAway:
    """The removal is tried again."""

    @pytest.fixture(autouse=True)
    def no_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flushes, "_PAUSE_S", 0.0)

    def test_messages_are_sent_once(self, collector: Collector, backend: MemoryBackend) -> None:
        collector.store.once_before("remove", failing(AWAY), failing(AWAY))
        collector.flush()
        assert [json.loads(message.payload) for message in collector.publisher.published] == ["a", "b"]
        collector.dispatcher.confirmations.flush()
        assert backend.outbox.count() == 0

    def test_removal_whose_answer_was_lost_leaves_them_to_a_relay(
        self, collector: Collector, backend: MemoryBackend, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They are there if the items are gone."""
        caplog.set_level(logging.INFO, "celery_sagas")
        remove, calls = collector.backend.aggregates.remove, list[dict[str, Any]]()

        def lose(*args: Any, **how: Any) -> bool:
            calls.append(how)
            answer = remove(*args, **how)
            if len(calls) == 1:
                raise AWAY
            return answer

        collector.backend.aggregates.remove = lose  # type: ignore[method-assign]
        collector.flush()
        assert (collector.states(), collector.publisher.ids) == ({}, [])
        assert calls[0] == calls[1]
        assert claim(backend) == []
        clock.advance(int(GRACE_S * 1000) + 1)
        assert [json.loads(row.payload) for row in claim(backend)] == ["a", "b"]

    def test_removal_that_is_given_up_sends_nothing(self, collector: Collector, backend: MemoryBackend) -> None:
        """The items come back when the lease ends."""
        collector.changes["lease_ms"] = 0
        collector.store.once_before("remove", *[failing(AWAY)] * 2)
        with pytest.raises(StoreUnavailable):
            collector.flush()
        assert (collector.publisher.ids, backend.outbox.count()) == ([], 0)


def test_message_that_is_due_later_waits_in_the_outbox(collector: Collector, backend: MemoryBackend, clock: Clock) -> None:
    """A relay publishes it."""
    collector.work = lambda batch: [send(batch, "now"), send(batch, "later", after=clock.now + 60_000)]
    collector.flush()
    assert [json.loads(message.payload) for message in collector.publisher.published] == ["now"]
    collector.dispatcher.confirmations.flush()
    assert claim(backend) == []
    clock.advance(60_001)
    assert [json.loads(row.payload) for row in claim(backend)] == ["later"]


def test_broker_that_is_away_fails_no_flush(collector: Collector, backend: MemoryBackend, clock: Clock) -> None:
    """A relay publishes the messages when the grace is over."""
    collector.publisher.errors = [PublishError("away", True)]
    flushed = collector.flush()
    assert (flushed.error, collector.states()) == (None, {})
    clock.advance(int(GRACE_S * 1000) + 1)
    assert len(claim(backend)) == 2


def test_flush_that_sends_nothing_does_not_ask_the_store_to(collector: Collector) -> None:
    """So a store that cannot do so serves it."""
    collector.work = lambda batch: None
    remove, how = collector.backend.aggregates.remove, list[str]()
    collector.backend.aggregates.remove = lambda *args, **options: (how.extend(options), remove(*args, **options))[1]  # type: ignore[method-assign]
    collector.flush()
    assert how == ["rejected", "unreadable"]


class TestMisuse:
    """Where nothing can be sent."""

    def test_after_the_function_has_ended(self, collector: Collector) -> None:
        collector.work = lambda batch: None
        collector.flush()
        with pytest.raises(MisuseError, match=f"after {NAME} had ended"):
            send(collector.batches[0], "x")

    def test_after_the_function_has_raised(self, collector: Collector) -> None:
        collector.work = lambda batch: 1 / 0
        collector.flush()
        with pytest.raises(MisuseError, match="had ended"):
            send(collector.batches[0], "x")

    def test_outside_of_a_flush(self) -> None:
        with pytest.raises(MisuseError, match="of no flush"):
            send(Batch([1]), "x")

    def test_backend_that_cannot_do_so(self, collector: Collector, backend: MemoryBackend) -> None:
        """The error says which setting to change, and the items come back."""

        def remove(rules: Any, group: str, token: str, *, rejected: Any = (), unreadable: Any = ()) -> bool:
            raise AssertionError("nothing is removed")

        collector.store.remove = remove  # type: ignore[method-assign,assignment]
        flushed = collector.flush()
        assert isinstance(flushed.error, ConfigurationError)
        assert "saga_aggregator_backend" in str(flushed.error)
        assert collector.states() == {"a": "free", "b": "free"}

    def test_too_many_messages(self, collector: Collector) -> None:
        """A thousand are sent; a function that goes on without the others has sent these."""

        def send_many(batch: Batch[Reading]) -> None:
            for _ in range(1_000):
                send(batch, 1)
            for _ in range(2):
                with pytest.raises(MisuseError, match=r"1,000 messages are allowed.*Send a task that sends them"):
                    send(batch, 1)

        collector.work = send_many
        assert collector.flush().error is None
        assert len(collector.publisher.ids) == 1_000

    def test_too_large_messages(self, collector: Collector) -> None:
        """Together: each may have the size of a state."""
        collector.work = lambda batch: [send(batch, "x" * 900) for _ in range(9)]
        flushed = collector.flush()
        assert isinstance(flushed.error, MisuseError)
        assert "8 times saga_max_state_bytes, 8000" in str(flushed.error)
        assert collector.publisher.ids == []
