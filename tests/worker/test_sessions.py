"""A session stands with the request of its task: sessions nest as tasks do, and end with them."""

import threading
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.engine.session import Session
from celery_sagas.worker.headers import CAUSATION
from celery_sagas.worker.sessions import current_session, open_sessions
from tests.apps import Worker

STAMPED = {CAUSATION: {"order": "1"}}


@pytest.fixture
def order(eager: Celery) -> Any:
    """A saga with a starter."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    Order.place = place  # type: ignore[attr-defined]
    return Order


def test_there_is_none_outside_a_task() -> None:
    assert current_session() is None
    assert list(open_sessions()) == []


def test_it_is_that_of_the_message_and_ends_with_the_task(app: Celery) -> None:
    seen: list[Session | None] = []

    @app.task
    def note() -> None:
        seen.extend((current_session(), current_session()))

    note.apply(task_id="m1", headers=STAMPED, throw=True)

    first, second = seen
    assert first is second
    assert first is not None
    assert (first.message_id, first.causation) == ("m1", {"order": "1"})
    assert current_session() is None


def test_it_ends_with_a_task_that_failed(app: Celery) -> None:
    @app.task
    def fail() -> None:
        current_session()
        raise KeyError

    fail.apply(headers=STAMPED)

    assert current_session() is None


def test_sessions_nest_also_of_one_task(app: Celery) -> None:
    """There is one for each message; one that was not published has the causation of what runs around it."""
    seen: list[list[str]] = []

    @app.task
    def nest(depth: int) -> None:
        session = current_session()
        assert session is not None
        session.belongs_to("parcel", str(depth))
        if depth:
            nest.apply((depth - 1,), task_id=f"m{depth - 1}", throw=True)
        seen.append([each.message_id for each in open_sessions()])
        assert current_session() is session
        assert session.causation == {"order": "1", "parcel": str(depth)}

    nest.apply((2,), task_id="m2", headers=STAMPED, throw=True)

    assert seen == [["m0", "m1", "m2"], ["m1", "m2"], ["m2"]]


def test_a_plain_task_that_is_called_is_a_part_of_its_caller(app: Celery) -> None:
    seen: list[Session | None] = []

    @app.task
    def helper() -> None:
        seen.append(current_session())

    @app.task
    def call() -> None:
        seen.append(current_session())
        helper()

    call.apply(task_id="m1", headers=STAMPED, throw=True)

    assert seen[0] is seen[1] is not None


def test_a_called_step_leaves_no_session_behind(order: Any) -> None:
    order.place("42")
    assert current_session() is None
    order.place.run("43")
    assert current_session() is None
    assert order.find("43") is not None


def test_threads_have_sessions_of_their_own(app: Celery) -> None:
    seen: list[Session | None] = []

    @app.task
    def start_thread() -> None:
        assert current_session() is not None
        thread = threading.Thread(target=lambda: seen.append(current_session()))
        thread.start()
        thread.join()

    start_thread.apply(throw=True)

    assert seen == [None]


@pytest.mark.parametrize("called", [True, False])
def test_a_step_inside_a_step_is_refused_in_whatever_way_it_is_called(eager: Celery, order: Any, called: bool) -> None:
    @order.starts
    def outer(order_: Any, order_id: str) -> None:
        order.place("43") if called else order.place.apply(("43",), throw=True)

    with pytest.raises(Exception, match="was called inside"):
        outer("42")
    assert order.find("43") is None


class TestAnswers:
    """A participant that is delivered again answers under the same ids, so that the saga drops the repeat."""

    @pytest.fixture
    def order(self, app: Celery) -> Any:
        """A saga that counts its answers."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            answers: int = 0

        @Order.starts
        def charged(order: Order, order_id: str, card: str = "") -> None:
            order.answers += 1

        Order.charged = charged  # type: ignore[attr-defined]
        return Order

    def test_it_runs_twice(self, app: Celery, worker: Worker, order: Any) -> None:
        cards = iter(["a", "a", "b"])

        @app.task
        def charge() -> None:
            order.charged.delay("42")
            order.charged.si("42").apply_async()
            order.charged.apply_async(("42",), {"card": next(cards)})

        charge.delay()
        first = worker.run()[0]
        worker.deliver_again(first)
        worker.run()
        assert order.find("42").answers == 3
        worker.deliver_again(first)
        worker.run()
        assert order.find("42").answers == 4  # another answer is another message

    def test_by_a_link(self, app: Celery, worker: Worker, order: Any) -> None:
        @app.task
        def charge() -> None: ...

        charge.apply_async(link=order.charged.si("42"))
        first = worker.run()[0]
        worker.deliver_again(first)
        worker.run()
        assert order.find("42").answers == 1

    def test_a_retry_is_another_run(self, app: Celery, worker: Worker, order: Any) -> None:
        """Of a task that polls, say."""

        @app.task(bind=True, max_retries=1, default_retry_delay=0)
        def poll(self: Any) -> None:
            order.charged.delay("42")
            if not self.request.retries:
                raise self.retry()

        poll.delay()
        worker.run()
        assert order.find("42").answers == 2

    def test_who_names_an_id_keeps_it(self, app: Celery, worker: Worker, order: Any) -> None:
        @app.task
        def charge() -> None:
            order.charged.apply_async(("42",), task_id="mine")
            order.charged.apply_async(("42",), None, "mine too")

        charge.delay()
        worker.run()
        assert [done.id for done in worker.done[1:]] == ["mine", "mine too"]
