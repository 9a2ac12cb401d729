"""The time that an answer may take, and answers that take longer: money that moved is not forgotten."""

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from celery import Celery, chain
from celery.app.task import Context

from celery_sagas import Failure
from celery_sagas.core.ids import derived_id
from celery_sagas.worker import timeouts
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.operators import discard_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, as_tasks, backend_of
from tests.worker.moments import Moment
from tests.worker.requests.orders import Boom, Shop, define, only, shop

__all__ = ["shop"]

HOUR = timedelta(hours=1)


def ask(shop: Shop, worker: Worker, *, then: Any = "paid", **options: Any) -> str:
    """Have the order 42 ask for a payment within an hour; return the request's id."""
    options = {"then": then, "otherwise": "unpaid", "within": HOUR, **options}
    shop.place(worker, lambda order: order.send(shop.charge.s(), **options))
    (request,) = shop.pending().requests
    return request


class TestDeadline:
    """``otherwise`` is told when nothing has come."""

    def test_waits_in_the_backend(self, worker: Worker, shop: Shop) -> None:
        moment = Moment()
        request = ask(shop, worker)

        (row,) = shop.rows()
        assert (row.kind, row.task, row.message_id) == ("deadline", "order.unpaid", derived_id(request, "deadline"))
        assert moment.is_before(row.due_at, 3600)
        asked = shop.pending().requests[request]
        assert (asked.at, asked.row, asked.has_timed_out) == (row.due_at, row.id, False)

    def test_is_told(self, worker: Worker, shop: Shop) -> None:
        request = ask(shop, worker)
        worker.app.control.purge()
        shop.fire(*shop.rows())
        worker.run()

        assert shop.seen() == ["unpaid deadline"]
        text = "nothing had come when the time was over"
        assert shop.failure() == Failure(kind="deadline", task="charge", task_id=request, text=text)
        assert json.loads(shop.entries()[-1].detail) == {"request": request, "came": "deadline"}

    @pytest.mark.parametrize(("within", "seconds"), [(HOUR, 3600), (3600, 3600), (3600.5, 3600.5)])
    def test_takes_a_timedelta_or_seconds(self, worker: Worker, shop: Shop, within: Any, seconds: float) -> None:
        moment = Moment()
        ask(shop, worker, within=within)

        (row,) = shop.rows()
        assert moment.is_before(row.due_at, seconds)

    def test_counts_from_when_the_message_is_sent(self, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """However long the step takes in between."""
        hours = count(time.time(), 3600)
        monkeypatch.setattr(timeouts, "time_s", lambda: next(hours))
        ask(shop, worker, after=100 * HOUR)

        due = {row.kind: row.due_at for row in shop.rows()}
        assert due["deadline"] - due["sent"] == pytest.approx(3_600_000, abs=1)
        assert worker.waiting() == []

    def test_ends_with_the_instance(self, worker: Worker, shop: Shop) -> None:
        ask(shop, worker)
        rows = shop.rows()
        shop.saga.end("42")
        assert shop.rows() == []
        shop.fire(*rows)
        worker.run()

        assert {delivered.fate for delivered in worker.done} == {"acked"}

    @pytest.mark.parametrize("work", ["answer", "failure"])
    def test_is_cancelled_by_what_comes(self, worker: Worker, shop: Shop, work: str) -> None:
        """Also if its message is on its way already."""

        def fail(task: Any) -> None:
            raise Boom

        shop.work = fail if work == "failure" else shop.work
        ask(shop, worker)
        rows = shop.rows()
        worker.run()
        assert shop.rows() == []
        shop.fire(*rows)
        worker.run()

        assert shop.seen() == ["paid receipt" if work == "answer" else "unpaid error"]

    def test_that_is_delivered_again(self, worker: Worker, shop: Shop) -> None:
        ask(shop, worker)
        worker.app.control.purge()
        rows = shop.rows()
        shop.fire(*rows)
        worker.run()
        shop.fire(*rows)
        worker.run()

        assert shop.seen() == ["unpaid deadline"]

    def test_message_expires_with_it(self, worker: Worker, shop: Shop) -> None:
        """Whoever begins it later would work for nothing."""
        request = ask(shop, worker)

        expires = datetime.fromisoformat(only(worker).headers["expires"])
        assert expires.timestamp() * 1000 == pytest.approx(shop.pending().requests[request].at, abs=1)

    def test_message_with_an_end_of_its_own(self, worker: Worker, shop: Shop) -> None:
        end = datetime(2130, 1, 1, tzinfo=UTC)
        sent = shop.charge.s().set(expires=end)
        shop.place(worker, lambda order: order.send(sent, then="paid", otherwise="unpaid", within=HOUR))

        assert datetime.fromisoformat(only(worker).headers["expires"]) == end

    def test_without_it_nothing_expires(self, worker: Worker, shop: Shop) -> None:
        ask(shop, worker, within=None)

        assert only(worker).headers["expires"] is None
        assert shop.rows() == []


class TestLate:
    """An answer after the deadline still runs ``then``, and is marked."""

    @pytest.fixture
    def timed_out(self, worker: Worker, shop: Shop) -> Any:
        """The message of the task that was asked, once its time is over."""
        ask(shop, worker)
        charge = only(worker)
        worker.app.control.purge()
        shop.fire(*shop.rows())
        worker.run()
        assert shop.seen() == ["unpaid deadline"]
        return charge

    def test_answer(self, worker: Worker, shop: Shop, timed_out: Any) -> None:
        worker.deliver_again(timed_out)
        worker.run()

        assert shop.seen() == ["unpaid deadline", "paid receipt late"]
        assert shop.pending().requests == {}
        assert json.loads(shop.entries()[-1].detail) == {"request": timed_out.id, "came": "answer", "late": True}

    def test_second_answer_does_nothing(self, worker: Worker, shop: Shop, timed_out: Any) -> None:
        for _ in range(2):
            worker.deliver_again(timed_out)
            worker.run()

        assert shop.seen() == ["unpaid deadline", "paid receipt late"]

    def test_failure_does_nothing(self, worker: Worker, shop: Shop, timed_out: Any) -> None:
        """And an answer may still come."""

        def fail(task: Any) -> None:
            raise Boom

        shop.work = fail
        worker.deliver_again(timed_out)
        worker.run()
        assert (worker.done[-1].task, shop.seen()) == ("order.unpaid", ["unpaid deadline"])
        shop.work = lambda task: "receipt"
        worker.deliver_again(timed_out)
        worker.run()

        assert shop.seen() == ["unpaid deadline", "paid receipt late"]

    def test_of_an_instance_that_has_ended(self, worker: Worker, shop: Shop, timed_out: Any) -> None:
        shop.saga.end("42")
        worker.deliver_again(timed_out)

        assert worker.one().fate == "acked"

    def test_of_a_request_without_a_step_for_it(self, worker: Worker, shop: Shop) -> None:
        """Nobody waits for it any more."""
        shop.place(worker, lambda order: order.send(shop.charge.s(), otherwise="unpaid", within=HOUR))
        shop.fire(*shop.rows())
        charge, deadline = worker.one(), worker.one()
        assert (charge.task, deadline.task) == ("charge", "order.unpaid")
        assert shop.pending().requests == {}
        worker.run()

        assert shop.seen() == ["unpaid deadline"]

    def test_answer_on_its_way_when_the_time_is_over(self, worker: Worker, shop: Shop) -> None:
        ask(shop, worker)
        worker.one()
        answer = only(worker)
        worker.app.control.purge()
        shop.fire(*shop.rows())
        worker.run()
        worker.deliver_again(answer)

        assert shop.seen() == ["unpaid deadline", "paid receipt late"]

    def test_deadline_that_failed_and_was_discarded(self, app: Celery, worker: Worker, shop: Shop) -> None:
        """Its answer may still come."""
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise=broken(shop), within=HOUR))
        charge = only(worker)
        app.control.purge()
        shop.fire(*shop.rows())
        worker.run()
        (dead_letter,) = backend_of(app).dead.list(10)

        assert discard_dead_letter(runtime_of(app), dead_letter)
        worker.deliver_again(charge)
        worker.run()
        assert shop.seen() == ["paid receipt late"]

    def test_failure_that_failed_and_was_discarded(self, app: Celery, worker: Worker, shop: Shop) -> None:
        def fail(task: Any) -> None:
            raise Boom

        shop.work = fail
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise=broken(shop), within=HOUR))
        worker.run()
        (dead_letter,) = backend_of(app).dead.list(10)
        assert (len(shop.pending().requests), len(shop.rows())) == (1, 1)

        assert discard_dead_letter(runtime_of(app), dead_letter)
        assert (shop.pending().requests, shop.rows()) == ({}, [])


def broken(shop: Shop) -> Any:
    """Return a step that cannot handle the failure that it is given."""

    @shop.saga.handles
    def broken(order: Any, failure: Failure) -> None:
        raise Boom

    return broken


class TestRefused:
    """What makes no sense is refused at the call."""

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"otherwise": None}, TypeError, "within= needs otherwise="),
            ({"within": 0}, ValueError, "over before it begins"),
            ({"within": timedelta(-1)}, ValueError, "over before it begins"),
            ({"within": float("nan")}, ValueError, ""),
            ({"within": float("inf")}, ValueError, "beyond all dates"),
            ({"within": 1e15}, ValueError, "beyond all dates"),
            ({"within": "1h"}, TypeError, "within= takes a timedelta or seconds, not str"),
            ({"within": True}, TypeError, "within= takes a timedelta or seconds, not bool"),
        ],
        ids=repr,
    )
    @as_tasks
    def test_options(self, worker: Worker, shop: Shop, options: dict[str, Any], error: type[Exception], text: str) -> None:
        errors: list[Exception] = []

        def asking(order: Any) -> None:
            try:
                order.send(shop.charge.s(), **{"then": "paid", "otherwise": "unpaid", "within": HOUR, **options})
            except Exception as exc:
                errors.append(exc)
                raise

        shop.place(worker, asking)
        assert [type(each) for each in errors] == [error]
        assert text in str(errors[0])
        assert (worker.waiting(), shop.rows()) == ([], [])

    @pytest.mark.parametrize("option", [{"countdown": 5}, {"eta": datetime(2130, 1, 1, tzinfo=UTC)}, {"countdown": 0}], ids=repr)
    @pytest.mark.parametrize("place", ["task", "chain", "in a chain"])
    def test_message_that_waits_by_itself(self, worker: Worker, shop: Shop, option: dict[str, Any], place: str) -> None:
        """From when would the time count?"""
        task = shop.charge.s()
        sent = task if place == "task" else chain(task, shop.ship.s())
        (task if place == "in a chain" else sent).set(**option)
        sent = chain(task, shop.ship.s()) if place == "in a chain" else sent
        shop.place(worker, lambda order: order.send(sent, then="paid", otherwise="unpaid", within=HOUR))

        assert "use after=" in str(worker.done[-1].error)
        assert worker.waiting() == []

    def test_without_a_deadline_it_may(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s().set(countdown=3600), then="paid"))
        (row,) = shop.rows()
        shop.fire(row)
        worker.run()

        assert shop.seen() == ["paid receipt"]


def test_eager_mode_says_that_nothing_is_sent_later(
    eager: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "_told", [])
    shop = define(eager)
    shop.ask = lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid", within=HOUR)
    shop.saga.place("42")

    assert "order.unpaid is due later, and nothing that is scheduled runs" in caplog.text
    assert (shop.seen(), shop.rows()) == (["paid receipt"], [])


class TestDoubt:
    """A failure after which an answer may come all the same."""

    @pytest.mark.parametrize("kind", ["revoked", "lost"])
    def test_answer_comes_after_it(self, worker: Worker, shop: Shop, kind: Any) -> None:
        """Another delivery of the message has expired; or its worker was lost once it had answered."""
        ask(shop, worker)
        (asked,) = worker.waiting()
        request = Context(dict(asked.headers), headers=dict(asked.headers), id=asked.id, task="charge")
        assert notify_requester(worker.app, request, "gone", kind)
        worker.run()

        assert shop.seen() == [f"unpaid {kind}", "paid receipt late"]
        assert (shop.rows(), shop.pending().requests) == ([], {})

    def test_answer_comes_after_the_dead_letter_of_a_step_is_retried(self, worker: Worker, shop: Shop) -> None:
        """It was dead-lettered, and its asker told; the retry has an answer."""
        ask(shop, worker)
        (asked,) = worker.waiting()
        request = Context(dict(asked.headers), headers=dict(asked.headers), id=asked.id, task="charge")
        assert notify_requester(worker.app, request, Boom("broken"), dead_letter="dead_letter")
        worker.run()

        assert shop.seen() == ["unpaid error", "paid receipt late"]
