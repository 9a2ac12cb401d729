"""Publishing what was committed: at once, and never at the cost of the message that decided it."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.errors import PublishError, StillUnsent, StoreUnavailable, Unconfirmed
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import KEPT_KINDS, Effects, Entry, OutboxRow, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import entry
from tests.engine.conftest import GRACE_S, Asynchronous, Batching, Boom, Engine, Order, Recorder, alone, send, starter

ROWS = tuple(Outgoing(f"row-{name}", "sent", f"id-{name}", "task", "{}") for name in "abc")
ALONE = PublishError("it is too large", False)
AWAY = PublishError("the broker is away", True)
LOST = Unconfirmed("the connection was lost", True)


@pytest.fixture
def publisher() -> Recorder:
    """A publisher."""
    return Recorder()


@pytest.fixture
def dispatcher(backend: MemoryBackend, publisher: Recorder) -> Dispatcher:
    """A dispatcher whose clock stands at 1000 s, with three rows under its lease."""
    dispatcher = Dispatcher(backend.outbox, publisher, GRACE_S, clock=lambda: 1000.0)
    entry = Entry("order.place", "m1", "a", "started", "order", "42", "i", 1, "{}")
    backend.sagas.record(Effects(entry, ROWS, dispatcher.owner, int(GRACE_S * 1000)))
    return dispatcher


def test_publishes_in_order_and_confirms(dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend) -> None:
    """The rows are gone afterwards."""
    dispatcher.dispatch(ROWS, 1000.0)

    assert publisher.ids == ["id-a", "id-b", "id-c"]
    dispatcher.confirmations.flush()
    assert backend.outbox.count() == 0


def test_bad_message_does_not_stop_the_next(
    dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """It alone stays."""
    publisher.errors = [None, ALONE]

    dispatcher.dispatch(ROWS, 1000.0)

    assert publisher.ids == ["id-a", "id-c"]
    dispatcher.confirmations.flush()
    assert backend.outbox.count() == 1
    assert "id-b was not confirmed by the broker and stays in the outbox: it is too large" in caplog.text


def test_absent_broker_is_asked_once(dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend) -> None:
    """The others would wait for their time-outs in vain."""
    publisher.errors = [None, AWAY]

    dispatcher.dispatch(ROWS, 1000.0)

    assert publisher.ids == ["id-a"]
    dispatcher.confirmations.flush()
    assert backend.outbox.count() == 2


def test_row_over_which_the_connection_is_lost_does_not_hold_up_the_next(
    dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend, clock: Clock
) -> None:
    """The failure is the message's, and counted, if the broker takes others."""
    publisher.errors = [LOST]

    dispatcher.dispatch(ROWS, 1000.0)

    assert publisher.ids == ["id-b", "id-c"]
    dispatcher.confirmations.flush()
    clock.advance(int(GRACE_S * 1000))
    assert [(row.id, row.attempts) for row in backend.outbox.claim_due("the test", 10, 1)] == [("row-a", 1)]


@pytest.mark.parametrize("errors", [[LOST], [AWAY]], ids=["lost", "away"])
def test_broker_that_takes_no_messages_ends_it(
    dispatcher: Dispatcher,
    publisher: Recorder,
    backend: MemoryBackend,
    clock: Clock,
    errors: list[PublishError | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is counted, and the relay goes on."""

    def away() -> None:
        raise AWAY

    publisher.errors = errors
    monkeypatch.setattr(publisher, "probe", away)

    dispatcher.dispatch(ROWS, 1000.0)

    assert publisher.ids == []
    clock.advance(int(GRACE_S * 1000))
    assert [row.attempts for row in backend.outbox.claim_due("the test", 10, 1)] == [0, 0, 0]


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_timeout_that_is_due_at_once_stays(publisher: Recorder, clock: Clock, backend: MemoryBackend, kind: str) -> None:
    """It is published in its turn, and the commit that handles it cancels its row."""
    dispatcher = Dispatcher(backend.outbox, publisher, GRACE_S, keep_s=60)
    rows = [Outgoing(f"row-{name}", of, f"id-{name}", "task", "{}") for name, of in (("a", "sent"), ("b", kind), ("c", "sent"))]
    entry = Entry("order.place", "m1", "a", "started", "order", "42", "i", 1, "{}")
    backend.sagas.record(Effects(entry, tuple(rows), dispatcher.owner, int(GRACE_S * 1000)))

    dispatcher.dispatch(rows, time.monotonic())
    dispatcher.close()

    assert publisher.ids == ["id-a", "id-b", "id-c"]
    [kept] = backend.outbox.read([row.id for row in rows])
    assert (kept.id, kept.tried_at) == ("row-b", clock.now)
    clock.advance(59_999)
    assert backend.outbox.claim_due("relay", 9, 1) == []
    clock.advance(1)
    assert len(backend.outbox.claim_due("relay", 9, 1)) == 1


@pytest.mark.parametrize(("age_s", "published"), [(GRACE_S / 2, 3), (GRACE_S / 2 + 0.01, 0)])
def test_stops_at_half_the_grace(dispatcher: Dispatcher, publisher: Recorder, age_s: float, published: int) -> None:
    """Whoever claims the rows when the lease has ended must be alone."""
    dispatcher.dispatch(ROWS, 1000.0 - age_s)

    assert len(publisher.published) == published


@alone
def test_grace_counts_from_before_the_commit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's reply may have been slow: the lease began when the store wrote."""
    now = [100.0]
    monkeypatch.setattr("celery_sagas.engine.handling.time", SimpleNamespace(monotonic=lambda: now[0]))
    seen: list[float] = []
    monkeypatch.setattr(Dispatcher, "dispatch", lambda self, rows, began: seen.append(began))

    def place(order: Order, order_id: str) -> None:
        now[0] = 200.0  # the handler's time does not count
        send(order, "charge")

    def slow() -> None:
        now[0] = 300.0

    engine.interpose().once_before("insert", slow)
    engine.handle(starter(place), order_id="42")

    assert seen == [200.0]


def test_failed_confirm_is_logged(
    dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages are published: at worst they are sent again."""

    class Outbox:
        def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
            raise StoreUnavailable("store", "away")

    dispatcher.confirmations.outbox = Outbox()  # type: ignore[assignment]

    dispatcher.dispatch(ROWS, 1000.0)
    dispatcher.confirmations.flush()

    assert len(publisher.published) == 3
    assert "published messages could not be removed from the outbox" in caplog.text


def test_nothing_to_send_asks_nobody(dispatcher: Dispatcher) -> None:
    """Two round trips; a third only for a step that sends."""
    dispatcher.outbox = None  # type: ignore[assignment]

    dispatcher.dispatch((), 1000.0)


def test_failed_publish_does_not_fail_the_message(engine: Engine) -> None:
    """Its effect is committed."""

    def place(order: Order, order_id: str) -> None:
        send(order, "charge")

    engine.publisher.errors = [AWAY]

    assert engine.handle(starter(place), order_id="42").is_new
    assert engine.backend.outbox.count() == 1


def test_nothing_is_published_before_the_commit(engine: Engine) -> None:
    """It may be refused."""
    published_at_commit: list[int] = []

    def place(order: Order, order_id: str) -> None:
        send(order, "charge")
        assert engine.publisher.published == []

    engine.interpose().once_before("insert", lambda: published_at_commit.append(len(engine.publisher.published)))
    engine.handle(starter(place), order_id="42")

    assert published_at_commit == [0]
    assert len(engine.publisher.published) == 1


class TestInline:
    """In eager mode publishing runs the task here and now."""

    @pytest.fixture(autouse=True)
    def inline(self, publisher: Recorder) -> None:
        publisher.inline = True

    def test_rows_are_removed_first(self, dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend) -> None:
        seen: list[int] = []
        publisher.publish = lambda message: seen.append(backend.outbox.count())  # type: ignore[method-assign]

        dispatcher.dispatch(ROWS, 0.0)

        assert seen == [0, 0, 0]

    def test_errors_are_the_callers(self, dispatcher: Dispatcher, publisher: Recorder) -> None:
        publisher.errors = [Boom()]  # type: ignore[list-item]

        with pytest.raises(Boom):
            dispatcher.dispatch(ROWS, 1000.0)


class TestUnsent:
    """Of an earlier run of a message."""

    ENTRY = entry(step="order.place", message_id="m1")

    def test_lease_that_lasts(self, dispatcher: Dispatcher, publisher: Recorder) -> None:
        """Its owner may be publishing, or dead: the repeat comes again later."""
        with pytest.raises(StillUnsent, match="3 messages"):
            dispatcher.dispatch_unsent(self.ENTRY)

        assert publisher.published == []

    def test_lease_that_ends_after_the_claim(
        self, dispatcher: Dispatcher, publisher: Recorder, clock: Clock, backend: MemoryBackend
    ) -> None:
        """Its rows were not claimed, so they may be unpublished."""
        claim_due = backend.outbox.claim_due

        def claim_and_wait(*arguments: Any) -> Sequence[OutboxRow]:
            rows = claim_due(*arguments)
            clock.advance(int(GRACE_S * 1000))
            return rows

        backend.outbox.claim_due = claim_and_wait  # type: ignore[method-assign]
        with pytest.raises(StillUnsent, match="3 messages"):
            dispatcher.dispatch_unsent(self.ENTRY)

        assert publisher.published == []

    def test_more_than_one_claim(self, dispatcher: Dispatcher, publisher: Recorder, clock: Clock, backend: MemoryBackend) -> None:
        rows = tuple(Outgoing(f"more-{number:03}", "sent", f"more-{number:03}", "task", "{}") for number in range(250))
        entry = Entry("order.place", "m2", "a", "started", "order", "43", "i", 1, "{}")
        backend.sagas.record(Effects(entry, rows, "another process", 1_000))
        clock.advance(1_000)

        dispatcher.dispatch_unsent(entry)

        assert publisher.ids == [row.message_id for row in rows]

    def test_series_are_left_to_a_relay(
        self, dispatcher: Dispatcher, publisher: Recorder, clock: Clock, backend: MemoryBackend
    ) -> None:
        """It puts the next occurrence into their rows, which would be removed here."""
        series = [Outgoing(f"series-{number:03}", "series", f"m-{number}", "task", "{}", clock.now) for number in range(250)]
        entry = Entry("order.place", "m2", "a", "started", "order", "43", "i", 1, "{}")
        sent = Outgoing("sent", "sent", "id-sent", "task", "{}")
        backend.sagas.record(Effects(entry, (*series, sent), "another process", 1_000))
        clock.advance(1_000)

        dispatcher.dispatch_unsent(entry)

        assert publisher.ids == ["id-sent"]
        assert backend.outbox.claim_due("relay", 999, 1, entry) == []
        clock.advance(1_001)
        assert len(backend.outbox.claim_due("relay", 999, 1, entry)) == 250

    def test_row_that_cannot_be_published_is_not_waited_for(
        self, dispatcher: Dispatcher, publisher: Recorder, clock: Clock, backend: MemoryBackend
    ) -> None:
        """Whatever its error says."""
        publisher.errors = [PublishError("it contains \0", False), None, None]
        clock.advance(int(GRACE_S * 1000))

        dispatcher.dispatch_unsent(self.ENTRY)
        dispatcher.dispatch_unsent(self.ENTRY)

        assert publisher.ids == ["id-b", "id-c"]
        assert backend.outbox.count() == 1

    def test_lease_that_ended(
        self, dispatcher: Dispatcher, publisher: Recorder, clock: Clock, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock.advance(int(GRACE_S * 1000))
        caplog.set_level("INFO", "celery_sagas")

        dispatcher.dispatch_unsent(self.ENTRY)

        assert publisher.ids == ["id-a", "id-b", "id-c"]
        assert backend.outbox.count() == 0
        assert "publishing 3 messages that message m1 left" in caplog.text

    def test_store_that_is_away_fails_the_duplicate(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is redelivered later, not acknowledged."""

        def place(order: Order, order_id: str) -> None: ...

        def away(*_: Any) -> None:
            raise StoreUnavailable("store", "away")

        engine.handle(starter(place), order_id="42", id="m1")
        monkeypatch.setattr(engine.backend.outbox, "claim_due", away)

        with pytest.raises(StoreUnavailable):
            engine.handle(starter(place), order_id="42", id="m1")


def test_each_process_has_a_token(backend: MemoryBackend, publisher: Recorder) -> None:
    """The lease is one process's."""
    assert Dispatcher(backend.outbox, publisher, 1).owner != Dispatcher(backend.outbox, publisher, 1).owner


def test_what_was_published_before_an_interruption_is_removed(
    dispatcher: Dispatcher, publisher: Recorder, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be sent again."""
    publish = publisher.publish

    def interrupted(message: Any) -> None:
        if message.id == "row-b":
            raise KeyboardInterrupt
        publish(message)

    monkeypatch.setattr(publisher, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.dispatch(ROWS, 1000.0)
    dispatcher.confirmations.flush()

    assert backend.outbox.count() == 2


class TestBatches:
    """Where many messages can be published before the broker is waited for."""

    @pytest.fixture
    def publisher(self) -> Batching:
        return Batching("a", "c")

    def test_what_a_batch_leaves_is_published_alone(
        self, dispatcher: Dispatcher, publisher: Batching, backend: MemoryBackend
    ) -> None:
        """Whether it was refused, or nobody knows."""
        dispatcher.dispatch(ROWS, 1000.0)
        dispatcher.confirmations.flush()

        assert publisher.given == ["row-a", "row-b", "row-c"]
        assert publisher.ids == ["id-b"]
        assert backend.outbox.count() == 0

    def test_one_message_needs_none(self, dispatcher: Dispatcher, publisher: Batching) -> None:
        dispatcher.dispatch(ROWS[:1], 1000.0)

        assert publisher.given == []
        assert publisher.ids == ["id-a"]

    def test_absent_broker_is_asked_once(
        self, dispatcher: Dispatcher, publisher: Batching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def away(_: object) -> None:
            raise AWAY

        monkeypatch.setattr(publisher, "publish_many", away)
        dispatcher.dispatch(ROWS, 1000.0)

        assert publisher.ids == []
        assert "id-a was not confirmed by the broker and stays in the outbox: the broker is away" in caplog.text
        assert "3 of 3 committed messages stay in the outbox" in caplog.text

    def test_stops_at_half_the_grace(self, dispatcher: Dispatcher, publisher: Batching) -> None:
        dispatcher.dispatch(ROWS, 1000.0 - GRACE_S / 2 - 0.01)

        assert publisher.given == []


class TestPosting:
    """Where nobody waits for the confirmation."""

    @pytest.fixture
    def publisher(self) -> Asynchronous:
        return Asynchronous()

    def test_what_is_confirmed_is_removed_and_nothing_else(
        self, dispatcher: Dispatcher, publisher: Asynchronous, backend: MemoryBackend
    ) -> None:
        dispatcher.dispatch(ROWS, 1000.0)
        assert publisher.posted == ["row-a", "row-b", "row-c"]
        dispatcher.confirmations.flush()
        assert backend.outbox.count() == 3
        publisher.confirmed = ["row-b"]
        dispatcher.confirmations.flush()

        assert backend.outbox.count() == 2
        assert publisher.published == []

    def test_from_what_cannot_be_written_on_each_is_waited_for(
        self,
        dispatcher: Dispatcher,
        publisher: Asynchronous,
        backend: MemoryBackend,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """So that the order is kept, and the row that fails is found."""
        awaited, publish = list[frozenset[str]](), publisher.publish
        monkeypatch.setattr(publisher, "publish", lambda message: (awaited.append(publisher.awaited()), publish(message)))
        publisher.answers, publisher.confirmed, publisher.errors = [True, False], ["row-a"], [ALONE]

        dispatcher.dispatch(ROWS, 1000.0)
        dispatcher.confirmations.flush()

        assert awaited == [frozenset()] * 2
        assert publisher.ids == ["id-c"]
        assert backend.outbox.count() == 1
        clock.advance(int(GRACE_S * 1000))
        assert {row.id: row.attempts for row in backend.outbox.claim_due("the test", 10, 1)} == {"row-b": 1}

    def test_without_a_connection_nothing_is_tried_in_another_way(
        self, dispatcher: Dispatcher, publisher: Asynchronous, caplog: pytest.LogCaptureFixture
    ) -> None:
        publisher.answers = [True, AWAY]

        dispatcher.dispatch(ROWS, 1000.0)

        assert publisher.posted == ["row-a"]
        assert publisher.published == []
        assert "2 of 3 committed messages stay in the outbox" in caplog.text

    def test_stops_at_half_the_grace(self, dispatcher: Dispatcher, publisher: Asynchronous) -> None:
        dispatcher.dispatch(ROWS, 1000.0 - GRACE_S / 2 - 0.01)

        assert publisher.posted == []
        assert publisher.published == []

    def test_unsent_rows_are_waited_for(
        self, dispatcher: Dispatcher, publisher: Asynchronous, clock: Clock, backend: MemoryBackend
    ) -> None:
        """The repeat is acknowledged when nothing is left."""
        clock.advance(int(GRACE_S * 1000))

        dispatcher.dispatch_unsent(entry(step="order.place", message_id="m1"))

        assert publisher.posted == []
        assert publisher.ids == ["id-a", "id-b", "id-c"]
        assert backend.outbox.count() == 0

    def test_closing(self, dispatcher: Dispatcher, publisher: Asynchronous, backend: MemoryBackend) -> None:
        """It takes a last look."""
        dispatcher.dispatch(ROWS, 1000.0)
        publisher.confirmed = ["row-a", "row-b", "row-c"]

        dispatcher.close()

        assert backend.outbox.count() == 0

    def test_closing_does_not_wait_for_ever(
        self, dispatcher: Dispatcher, publisher: Asynchronous, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("celery_sagas.engine.outbox.confirmations.SETTLED_IN_S", 0.05)
        dispatcher.dispatch(ROWS, 1000.0)

        dispatcher.close()

        assert backend.outbox.count() == 3


class TestCommittedByPlainCode:
    """Rows that a transaction of plain code has committed, under no lease."""

    @pytest.fixture
    def seconds(self) -> list[float]:
        """The time, in seconds."""
        return [1000.0]

    @pytest.fixture
    def dispatcher(self, backend: MemoryBackend, publisher: Recorder, seconds: list[float]) -> Dispatcher:
        """A dispatcher without rows."""
        return Dispatcher(backend.outbox, publisher, GRACE_S, clock=lambda: seconds[0])

    @staticmethod
    def commit(backend: MemoryBackend, *ids: str) -> Entry:
        """Commit rows; return their cause."""
        cause = entry()
        rows = [Outgoing(id, "sent", f"id-{id}", "task", "{}") for id in ids]
        backend.sagas.record(Effects(cause, tuple(rows)))
        return cause

    def test_are_published(self, backend: MemoryBackend, dispatcher: Dispatcher, publisher: Recorder) -> None:
        ids = [f"{number:03}" for number in range(250)]
        dispatcher.dispatch_committed(self.commit(backend, *ids))
        assert publisher.ids == [f"id-{id}" for id in ids]
        dispatcher.confirmations.flush()
        assert backend.outbox.count() == 0

    def test_of_another_transaction_stay(self, backend: MemoryBackend, dispatcher: Dispatcher, publisher: Recorder) -> None:
        first, _ = self.commit(backend, "1"), self.commit(backend, "2")
        dispatcher.dispatch_committed(first)
        assert publisher.ids == ["id-1"]

    def test_are_released_while_the_broker_is_away(
        self, backend: MemoryBackend, dispatcher: Dispatcher, publisher: Recorder
    ) -> None:
        publisher.errors = [AWAY]
        dispatcher.dispatch_committed(self.commit(backend, "1", "2"))
        assert [row.id for row in backend.outbox.claim_due("relay", 10, 1_000)] == ["1", "2"]

    def test_are_left_to_relays_for_a_while_after_that(
        self, backend: MemoryBackend, dispatcher: Dispatcher, publisher: Recorder, seconds: list[float]
    ) -> None:
        publisher.errors = [AWAY]
        dispatcher.dispatch_committed(self.commit(backend, "1"))
        dispatcher.dispatch_committed(self.commit(backend, "2"))
        assert publisher.ids == []
        seconds[0] += 11
        dispatcher.dispatch_committed(self.commit(backend, "3"))
        assert publisher.ids == ["id-3"]

    def test_one_that_is_refused_stops_no_other(
        self, backend: MemoryBackend, dispatcher: Dispatcher, publisher: Recorder
    ) -> None:
        publisher.errors = [ALONE]
        dispatcher.dispatch_committed(self.commit(backend, "1", "2"))
        dispatcher.dispatch_committed(self.commit(backend, "3"))
        assert publisher.ids == ["id-2", "id-3"]
        (row,) = backend.outbox.claim_due("relay", 10, 1_000)
        assert (row.id, row.attempts) == ("1", 1)
