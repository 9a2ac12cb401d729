"""Timeouts: what an instance schedules for itself, and what becomes of it wherever it is on its way."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga, signals
from celery_sagas.errors import CorrelationError, InvalidMessage, InvalidState, MisuseError
from celery_sagas.stores.records import OutboxRow
from celery_sagas.worker import timeouts
from celery_sagas.worker.headers import ADDRESS
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.worker.moments import Moment

#: An aware time that is far away.
LATER = datetime(2130, 1, 1, tzinfo=UTC)


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga that can be told to do nearly everything with its timeouts."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []

    @Order.starts
    def act(order: Order, order_id: str, what: str = "", name: str | None = None) -> None:
        order.seen.append(f"act {what}".strip())
        if what == "schedule":
            order.schedule(remind, at=LATER, name=name)
        elif what == "unschedule":
            order.unschedule(name or "")
        elif what == "complete":
            order.schedule(remind, at=LATER)
            order.complete()
        elif what == "fail":
            order.schedule(remind, at=LATER)
            raise ZeroDivisionError

    @Order.handles(if_missing="raise")
    def remind(order: Order, text: str = "reminded") -> None:
        order.seen.append(text)
        if text == "again":
            order.schedule(remind.s("again"), at=LATER, name="again")

    @Order.handles
    def keyed(order: Order, order_id: str) -> None:
        order.seen.append("keyed")

    Order.act, Order.remind, Order.keyed = act, remind, keyed  # type: ignore[attr-defined]
    return Order


def rows(app: Celery) -> list[OutboxRow]:
    """Return the rows of the outbox."""
    return [row.message for row in backend_of(app).outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]


def fire(app: Celery, *waiting: OutboxRow) -> None:
    """Publish rows, whether they are still there or not: they were claimed a moment ago."""
    for row in waiting:
        runtime_of(app).publisher.publish(row)


def seen(order: Any, key: str = "42") -> list[str]:
    found = order.find(key)
    assert found is not None
    return list(found.seen)


class TestScheduling:
    """``order.schedule``."""

    def test_it_waits_in_the_backend_and_is_handled_when_it_comes(self, app: Celery, worker: Worker, order: Any) -> None:
        order.act.delay("42", "schedule")
        worker.run()

        assert worker.waiting() == []
        (row,) = rows(app)
        assert (row.kind, row.task, row.due_at) == ("scheduled", "order.remind", LATER.timestamp() * 1000)
        fire(app, row)
        worker.run()
        assert seen(order) == ["act schedule", "reminded"]
        assert order.find("42").saga.timeouts == {}

    def test_view_of_what_is_scheduled(self, worker: Worker, order: Any) -> None:
        order.act.delay("42", "schedule", "nudge")
        worker.run()

        assert order.find("42").saga.timeouts == {"nudge": LATER}

    def test_without_a_name_each_call_adds_one(self, app: Celery, worker: Worker, order: Any) -> None:
        for _ in range(2):
            order.act.delay("42", "schedule")
        worker.run()

        fire(app, *rows(app))
        worker.run()
        assert seen(order)[2:] == ["reminded", "reminded"]

    def test_with_a_name_it_replaces(self, app: Celery, worker: Worker, order: Any) -> None:
        order.act.delay("42", "schedule", "nudge")
        worker.run()
        replaced = rows(app)
        order.act.delay("42", "schedule", "nudge")
        worker.run()

        (row,) = rows(app)
        assert row not in replaced
        fire(app, *replaced, row)
        worker.run()
        assert seen(order)[2:] == ["reminded"]

    @pytest.mark.parametrize("target", ["step", "signature", "name", "full name"])
    def test_targets(self, app: Celery, worker: Worker, order: Any, target: str) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            targets = {
                "step": order.remind,
                "signature": order.remind.s("as I said"),
                "name": "remind",
                "full name": "order.remind",
            }
            order.schedule(targets[target], after=timedelta(hours=1))

        begin.delay("42")
        worker.run()
        fire(app, *rows(app))
        worker.run()

        assert seen(order) == ["as I said" if target == "signature" else "reminded"]

    def test_what_is_due_now_is_sent_at_once(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule("remind", after=0)
            order.schedule("remind", at=datetime(2000, 1, 1, tzinfo=UTC))

        begin.delay("42")
        worker.run()

        assert seen(order) == ["reminded", "reminded"]
        assert rows(app) == []

    def test_step_that_fails_schedules_nothing(self, app: Celery, worker: Worker, order: Any) -> None:
        order.act.delay("42", "fail")
        worker.run()

        assert rows(app) == []
        assert order.find("42") is None

    def test_too_many(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str, count: int) -> None:
            for _ in range(count):
                order.schedule("remind", at=LATER)

        begin.delay("42", 1_000)
        begin.delay("42", 1)
        done = worker.run()

        assert [type(delivered.error) for delivered in done] == [type(None), InvalidState]
        assert "1,000" in str(done[1].error)
        assert len(rows(app)) == 1_000

    def test_id_is_the_same_in_another_run(self, worker: Worker, order: Any) -> None:
        ids: list[str] = []

        @order.starts(autoretry_for=(ZeroDivisionError,), default_retry_delay=0)
        def begin(order: Any, order_id: str) -> None:
            ids.append(order.schedule("remind", at=LATER))
            if len(ids) == 1:
                raise ZeroDivisionError

        begin.delay("42")
        worker.run()

        assert ids == [ids[0]] * 2
        assert order.find("42").saga.timeouts == {ids[0]: LATER}


class TestWrongCalls:
    """Each says what to do, in the step, where it fails before anything is written."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({}, TypeError),
            ({"after": 1, "at": LATER}, TypeError),
            ({"after": "1"}, TypeError),
            ({"after": True}, TypeError),
            ({"at": 5}, TypeError),
            ({"at": datetime(2130, 1, 1)}, ValueError),
            ({"after": float("nan")}, ValueError),
            ({"after": float("inf")}, ValueError),
            ({"after": timedelta.max}, ValueError),
            ({"after": 1, "name": ""}, TypeError),
            ({"after": 1, "name": 5}, TypeError),
            ({"after": 1, "name": "x" * 256}, TypeError),
        ],
    )
    def test_times_and_names(self, app: Celery, worker: Worker, order: Any, options: Any, error: type[Exception]) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule("remind", **options)

        begin.delay("42")
        assert isinstance(worker.one().error, error)
        assert rows(app) == []

    def test_targets(self, app: Celery, worker: Worker, order: Any) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.starts
        def arrive(parcel: Parcel, parcel_id: str) -> None: ...

        @app.task(name="plain")
        def plain() -> None: ...

        wrong = [arrive, arrive.s("p"), plain, plain.s(), "no such step", None, 5]
        errors: list[Exception] = []

        @order.starts
        def begin(order: Any, order_id: str) -> None:
            for target in wrong:
                try:
                    order.schedule(target, after=1)
                except (TypeError, MisuseError) as exc:
                    errors.append(exc)

        begin.delay("42")
        worker.run()

        assert [type(error) for error in errors] == [*[MisuseError] * 5, *[TypeError] * 2]
        assert "Known: order.act, order.remind" in str(errors[0])

    @pytest.mark.parametrize("arguments", [(), ("42", "too many")])
    def test_arguments_that_do_not_fit(self, worker: Worker, order: Any, arguments: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(order.keyed.s(*arguments), after=1)

        begin.delay("42")
        assert isinstance(worker.one().error, InvalidMessage)

    def test_countdown_in_the_signature(self, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(order.remind.s().set(countdown=5), after=1)

        begin.delay("42")
        assert "use after= or at=" in str(worker.one().error)

    def test_signature_that_expires(self, worker: Worker, order: Any) -> None:
        """It would before it is due, and wait indefinitely in the pending map."""

        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(order.remind.s().set(expires=1), after=2)

        begin.delay("42")
        assert "a timeout ends with its instance" in str(worker.one().error)

    @pytest.mark.parametrize("call", [lambda order: order.schedule("remind", after=1), lambda order: order.unschedule("x")])
    def test_outside_a_step(self, worker: Worker, order: Any, call: Any) -> None:
        order.act.delay("42")
        worker.run()

        for state in (order.find("42"), order(order_id="42")):
            with pytest.raises(MisuseError, match="outside a step"):
                call(state)


class TestOnItsWay:
    """It is handled only if the instance still has it, wherever it was in the meantime."""

    @pytest.fixture
    def dropped(self, order: Any) -> Any:
        """What the signal tells of messages that nobody handled."""
        outcomes: list[Any] = []

        def note(outcome: Any, **_: object) -> None:
            outcomes.append((outcome.kind.value, outcome.reason))

        signals.step_ignored.connect(note)
        yield outcomes
        signals.step_ignored.disconnect(note)

    def test_cancelled(self, app: Celery, worker: Worker, order: Any, dropped: Any) -> None:
        order.act.delay("42", "schedule", "nudge")
        worker.run()
        claimed = rows(app)
        order.act.delay("42", "unschedule", "nudge")
        worker.run()

        assert rows(app) == []
        fire(app, *claimed)
        assert worker.one().fate == "acked"
        assert seen(order) == ["act schedule", "act unschedule"]
        assert dropped == [("dropped", "cancelled")]

    def test_cancelled_by_its_id(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.unschedule(order.schedule("remind", at=LATER))

        begin.delay("42")
        worker.run()

        assert rows(app) == []
        assert order.find("42").saga.timeouts == {}

    def test_unknown_name(self, worker: Worker, order: Any) -> None:
        order.act.delay("42", "unschedule", "never heard of")
        assert worker.one().error is None

    def test_instance_completed(self, app: Celery, worker: Worker, order: Any, dropped: Any) -> None:
        """No policy is asked, although the step has ``if_missing="raise"``."""
        order.act.delay("42", "schedule")
        worker.run()
        claimed = rows(app)
        order.act.delay("42", "complete")
        worker.run()

        assert rows(app) == []
        fire(app, *claimed)
        delivered = worker.one()
        assert (delivered.fate, delivered.error) == ("acked", None)
        assert dropped == [("dropped", "completed")]

    def test_it_never_reaches_a_later_instance_of_its_key(self, app: Celery, worker: Worker, order: Any) -> None:
        order.act.delay("42", "schedule")
        worker.run()
        claimed = rows(app)
        order.act.delay("42", "complete")
        order.act.delay("42", "anew")
        worker.run()

        fire(app, *claimed)
        worker.run()
        assert seen(order) == ["act anew"]

    def test_it_never_starts_an_instance(self, app: Celery, worker: Worker, order: Any) -> None:
        """Also if its step is a starter."""

        @order.starts
        def begin(order: Any, order_id: str, what: str) -> None:
            if what == "schedule":
                order.schedule(begin.s(order_id, "timeout"), at=LATER)
            elif what == "complete":
                order.complete()

        begin.delay("42", "schedule")
        worker.run()
        claimed = rows(app)
        begin.delay("42", "complete")
        worker.run()

        fire(app, *claimed)
        worker.run()
        assert order.find("42") is None

    def test_delivered_twice(self, app: Celery, worker: Worker, order: Any) -> None:
        order.act.delay("42", "schedule")
        worker.run()
        fire(app, *rows(app), *rows(app))
        worker.run()

        assert seen(order) == ["act schedule", "reminded"]

    def test_rescheduled_from_its_own_handler(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(order.remind.s("again"), at=LATER, name="again")

        begin.delay("42")
        worker.run()
        for _ in range(3):
            fire(app, *rows(app))
            worker.run()

        assert seen(order) == ["again"] * 3
        assert len(order.find("42").saga.timeouts) == 1

    def test_its_handler_fails_and_it_stays(self, app: Celery, worker: Worker, order: Any) -> None:
        failures = [ZeroDivisionError()]

        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(flaky, at=LATER, name="flaky")

        @order.handles(autoretry_for=(ZeroDivisionError,), default_retry_delay=0)
        def flaky(order: Any) -> None:
            if failures:
                raise failures.pop()
            order.seen.append("at last")

        begin.delay("42")
        worker.run()
        fire(app, *rows(app))
        worker.run()

        assert seen(order) == ["at last"]

    def test_key_in_its_arguments_is_its_own(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str, named: str) -> None:
            order.schedule(order.keyed.s(named), at=LATER)

        begin.delay("42", "42")
        begin.delay("43", "44")
        good, bad = worker.run()
        fire(app, *rows(app))
        worker.run()

        assert good.error is None
        assert seen(order) == ["keyed"]
        assert isinstance(bad.error, CorrelationError)
        assert "names '44'" in str(bad.error)

    def test_key_in_its_arguments_that_became_another(self, app: Celery, worker: Worker, order: Any) -> None:
        """Whoever sent it was not this library."""
        order.act.delay("42", "schedule")
        worker.run()
        (row,) = rows(app)
        timeout = {"instance": row.instance_id, "timeout": row.message_id}
        order.keyed.apply_async(("44",), headers={ADDRESS: timeout})

        assert isinstance(worker.one().error, CorrelationError)
        assert seen(order) == ["act schedule"]

    @pytest.mark.parametrize(
        "address", ["42", 5, {}, {"instance": "x"}, {"instance": 5, "timeout": "x"}, {"instance": "x", "timeout": ""}]
    )
    def test_address_that_is_none(self, worker: Worker, order: Any, address: Any) -> None:
        order.remind.apply_async(headers={ADDRESS: address})
        assert isinstance(worker.one().error, InvalidMessage)

    def test_address_is_not_inherited(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.schedule(forward, at=LATER)

        @order.handles
        def forward(order: Any) -> None:
            order.send(order.act.s("43"))

        begin.delay("42")
        worker.run()
        fire(app, *rows(app))
        worker.run()

        assert seen(order, "43") == ["act"]
        assert ADDRESS not in worker.done[-1].headers


class TestSendAfter:
    """``order.send(…, after=)``: what is sent is gone, and survives the instance."""

    def test_it_outlives_its_instance(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str) -> None:
            order.send(order.act.s("43"), after=timedelta(days=300))
            order.complete()

        moment = Moment()
        begin.delay("42")
        worker.run()

        (row,) = rows(app)
        assert row.kind == "sent"
        assert moment.is_before(row.due_at, 300 * 86_400)
        fire(app, row)
        worker.run()
        assert seen(order, "43") == ["act"]

    def test_countdown_in_the_signature(self, app: Celery, worker: Worker, order: Any) -> None:
        @order.starts
        def begin(order: Any, order_id: str, after: float | None) -> None:
            order.send(order.act.s("43").set(countdown=60), after=after)

        moment = Moment()
        begin.delay("42", None)
        begin.delay("42", 5)
        first, second = worker.run()

        assert first.error is None
        assert isinstance(second.error, TypeError)
        (row,) = rows(app)
        assert moment.is_before(row.due_at, 60)


@pytest.mark.parametrize("after", [0, -5])
def test_what_is_sent_after_no_time_is_sent_at_once(app: Celery, worker: Worker, order: Any, after: float) -> None:
    @order.starts
    def begin(order: Any, order_id: str) -> None:
        order.send(order.act.s("43"), after=after)

    begin.delay("42")
    worker.run()

    assert seen(order, "43") == ["act"]


def test_eager_mode_waits_for_nothing_that_is_sent(new_app: NewApp) -> None:
    """As Celery's own countdown."""
    app = new_app(eager=True)
    ran: list[str] = []

    @app.task(name="plain")
    def plain(text: str) -> None:
        ran.append(text)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def begin(order: Order, order_id: str) -> None:
        order.send(plain.s("countdown").set(countdown=60))
        order.send(plain.s("after"), after=60)

    begin.delay("42")

    assert ran == ["countdown", "after"]
    assert rows(app) == []


def test_eager_mode_warns_once(new_app: NewApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "_told", [])
    app = new_app(eager=True)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def begin(order: Order, order_id: str) -> None:
        order.schedule(remind, after=0)

    @Order.handles
    def remind(order: Order) -> None: ...

    with caplog.at_level(logging.WARNING):
        begin.delay("42")
        begin.delay("43")

    assert [record.message for record in caplog.records if "eager" in record.message] == [
        "order.remind is due later, and nothing that is scheduled runs while task_always_eager is set"
    ]
    assert len(rows(app)) == 2
