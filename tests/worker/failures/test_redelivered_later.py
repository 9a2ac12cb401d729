"""Later: the message is published again under its id, and this delivery of it is given up."""

from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_sagas import Saga
from celery_sagas.errors import NewerState, PublishError, RevisionConflict, StoreUnavailable, UnreadableState
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import by_key, effects, found
from celery_sagas.worker.failures import redelivery
from celery_sagas.worker.headers import REDELIVERIES
from celery_sagas.worker.runtime import runtime_of
from tests.apps import AgainWorker, Delivered, Worker, backend_of, interposed
from tests.worker.moments import Moment

AWAY = StoreUnavailable("sqlite://", "it is away")


@pytest.fixture
def worker(app: Celery) -> Worker:
    """A worker that runs each message as a task: a batch would meet the failures first, which happen once."""
    return Worker(app)


@pytest.fixture
def broker_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be published any more, but by the test."""

    def fail(*_: Any) -> None:
        raise PublishError("away", True)

    monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", fail)


@pytest.fixture
def order(app: Celery) -> type[Saga]:
    """A saga whose starter counts."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    @Order.starts(autoretry_for=(Exception,))
    def place(order: Order, order_id: str, total: int = 1) -> None:
        order.total += total

    Order.place = place  # type: ignore[attr-defined]
    return Order


def failing(error: Exception) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


def due_at(message: Delivered) -> float:
    """Return when a message is due, in milliseconds since the epoch."""
    return datetime.fromisoformat(message.headers["eta"]).timestamp() * 1000


def test_nothing_is_delayed_for_so_long_that_the_broker_delivers_it_again() -> None:
    assert max(redelivery._delay_s(count, 6.0) for count in range(50)) <= 2.0
    assert max(redelivery._delay_s(count, None) for count in range(50)) <= 30.0


def test_messages_are_held_longer_after_each_failure() -> None:
    assert [redelivery.held_s(failures, None) for failures in range(6)] == [3, 6, 12, 24, 30, 30]
    assert [redelivery.held_s(failures, 15.0) for failures in (0, 1, 10**6)] == [3, 5, 5]
    assert redelivery.held_s(0, 3.0) == 1


class TestPutOff:
    """The store cannot serve the message now."""

    @pytest.mark.parametrize("operation", ["find", "insert"])
    @pytest.mark.parametrize("error", [AWAY, NewerState("order", "42", 2, 1)], ids=lambda error: type(error).__name__)
    def test_message_comes_again(
        self, app: Celery, worker: Worker, order: Any, operation: str, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        """``autoretry_for`` does not count it as a retry."""
        interposed(app).once_before(operation, failing(error))
        order.place.apply_async(("42",), {"total": 5}, headers={"tenant": "t"}, task_id="m1", priority=3)

        delivered = worker.one()
        (again,) = worker.waiting()

        assert isinstance(delivered.error, Ignore)
        assert delivered.fate == "acked"
        assert (again.id, again.args, again.kwargs) == ("m1", ["42"], {"total": 5})
        assert (again.headers["retries"], again.headers[REDELIVERIES], again.headers["tenant"]) == (0, 1, "t")
        assert again.headers["root_id"] == delivered.headers["root_id"]
        assert "saga_cause" not in again.headers
        assert "order.place[m1] is redelivered in" in caplog.text
        worker.run()
        found = order.find("42")
        assert (found.total, found.saga.version) == (5, 1)

    def test_positional_arguments_links_and_chain_are_kept(self, app: Celery, worker: Worker, order: Any) -> None:
        @app.task(name="noted")
        def noted(*args: Any) -> None: ...

        interposed(app).once_before("find", failing(AWAY))
        (order.place.s("42", 7).set(link=noted.si("link"), link_error=noted.si("error"), expires=600) | noted.si("chain")).delay()
        worker.one()
        (again,) = worker.waiting()
        worker.run()

        assert again.headers["expires"] is not None
        assert order.find("42").total == 7
        assert sorted(done.args for done in worker.done if done.task == "noted") == [["chain"], ["link"]]

    def test_retry_count_is_kept(self, app: Celery, worker: Worker, order: Any) -> None:
        interposed(app).once_before("find", failing(AWAY))
        order.place.apply_async(("42",), retries=2)
        worker.one()

        assert worker.waiting()[0].headers["retries"] == 2

    def test_delay_grows_to_a_limit(self, app: Celery, worker: Worker, order: Any) -> None:
        """Far below every broker's time-out."""
        interposed(app).once_before("find", *[failing(AWAY)] * 9)
        order.place.delay("42")
        for count in range(9):
            moment, longest_s = Moment(), min(30.0, 2.0**count)
            worker.one()
            (again,) = worker.waiting()
            assert again.headers[REDELIVERIES] == count + 1
            assert moment.is_before(due_at(again), longest_s / 2, longest_s)

    def test_conflicts_that_outlast_everything(
        self, app: Celery, worker: Worker, order: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("celery_sagas.engine.conflicts.pause", lambda seen, chance: 0)
        interposed(app).once_before("insert", *[failing(RevisionConflict("order", "42", "deadlock"))] * 31)
        order.place.delay("42")

        assert isinstance(worker.one().error, Ignore)
        assert len(worker.waiting()) == 1
        worker.run()
        assert order.find("42").total == 1

    def test_unreadable_state_is_not_redelivered_later(self, app: Celery, worker: Worker, order: Any) -> None:
        """It never becomes readable by itself."""
        interposed(app).once_before("find", failing(UnreadableState("order", "42", "no JSON")))
        order.place.delay("42")

        assert isinstance(worker.one().error, UnreadableState)
        assert worker.waiting() == []

    def test_broker_that_is_away_too_keeps_the_message(
        self, app: Celery, worker: Worker, order: Any, broker_away: None, held: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Celery's ``retry()`` would lose it; so would ``autoretry_for``, which catches ``Reject``.

        It comes again at once: it is held first, and does not spin.
        """
        order.place.delay("42")
        interposed(app).once_before("find", failing(AWAY))

        delivered = worker.one()

        assert isinstance(delivered.error, Reject)
        assert delivered.fate == "requeued"
        assert held == [redelivery.HELD_S]
        assert "could not be published again, the broker keeps it: away" in caplog.text

    def test_soft_time_limit_while_it_is_held(
        self, app: Celery, worker: Worker, order: Any, broker_away: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It ends the pause, and is no failure of the message."""

        def interrupt(_: float) -> None:
            raise SoftTimeLimitExceeded

        monkeypatch.setattr(redelivery, "time", SimpleNamespace(sleep=interrupt))
        order.place.delay("42")
        interposed(app).once_before("find", failing(AWAY))

        delivered = worker.one()

        assert (delivered.fate, type(delivered.error)) == ("requeued", Reject)
        assert backend_of(app).dead.list(10) == []

    def test_redelivery_is_not_counted_against_what_was_never_handled(
        self, app: Celery, order: Any, broker_away: None, held: list[float]
    ) -> None:
        """Newer code wrote its instance: nothing has ended a worker."""
        app.conf.saga_max_deliveries = 1
        order.place("42")
        written = found(backend_of(app), by_key())
        newer = Change(("order",), written.schema_version + 1, written.data, written.pending)
        backend_of(app).sagas.update(written, newer, effects(written))
        for _ in range(3):
            order.place.apply_async(("42",), task_id="m1")
            assert AgainWorker(app).one().fate == "requeued"

        assert backend_of(app).dead.list(10) == []
        assert backend_of(app).deliveries.count("order.place", "m1") == 1
        assert held == [redelivery.HELD_S] * 3

    def test_direct_call_raises(self, app: Celery, order: Any) -> None:
        interposed(app).once_before("find", failing(AWAY))

        with pytest.raises(StoreUnavailable):
            order.place("42")

    def test_store_that_is_away_when_a_handler_looks_something_up(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def look(state: Any, order_id: str) -> None:
            order.find("other")

        look.delay("42")
        interposed(app).once_before("find", lambda: None, failing(AWAY))

        assert isinstance(worker.one().error, Ignore)
        worker.run()
        assert order.find("42") is not None


@pytest.mark.parametrize("count", [-1, "x", None, 10**9, 1.5])
def test_malformed_count_is_none(app: Celery, worker: Worker, order: Any, count: object) -> None:
    """A header may hold anything."""
    interposed(app).once_before("find", failing(AWAY))
    order.place.apply_async(("42",), headers={REDELIVERIES: count})
    worker.one()

    assert worker.waiting()[0].headers[REDELIVERIES] == 1


def test_message_is_held_for_a_few_seconds() -> None:
    """A warm shutdown, or another message, may have to wait for it."""
    assert 1 <= redelivery.HELD_S <= 5


def test_longest_delay_is_below_the_brokers_timeouts() -> None:
    """RabbitMQ's consumer time-out is half an hour, Redis' visibility time-out an hour, by default."""
    assert redelivery._LONGEST_DELAY_S <= 60
