"""A handler that is called as a function: what it sends is collected, and nothing leaves the process."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Failure, Message, Saga, publish
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.testing import Collected, collected
from tests.apps import Worker, backend_of
from tests.worker.moments import Moment

HOUR = timedelta(hours=1)


class Placed(Message):
    order_id: str


class Shop:
    """A saga whose steps do everything that a step may do."""

    def __init__(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            total: int = 0

        @app.task(acks_late=True)
        def charge(card: str) -> str: ...

        @Order.starts
        def place(order: Order, order_id: str, card: str = "visa") -> str:
            order.total += 1
            order.send(charge.s(card), then=paid, otherwise=unpaid, within=HOUR)
            publish(Placed(order_id=order_id))
            order.schedule(remind, after=HOUR, name="reminder")
            return "placed"

        @Order.handles(bind=True)
        def paid(task: Any, order: Order, receipt: str) -> None:
            order.unschedule("reminder")
            order.send(charge.s(receipt), after=HOUR)
            assert order.reply("done") is False

        @Order.handles
        def unpaid(order: Order, failure: Failure) -> None:
            order.complete()

        @Order.handles
        def remind(order: Order) -> None:
            order.gather([charge.s("a"), charge.s("b")], then=gathered)

        @Order.handles
        def gathered(order: Order, answers: Any) -> None: ...

        @Order.handles
        def call_another(order: Order) -> None:
            place("43")

        @Order.handles
        def send_too_much(order: Order, order_id: str) -> None:
            order.send(charge.s("x" * 2_000_000))

        self.saga, self.charge, self.place, self.paid, self.unpaid = Order, charge, place, paid, unpaid
        self.remind, self.call_another, self.send_too_much = remind, call_another, send_too_much


@pytest.fixture
def shop(app: Celery) -> Shop:
    """The saga."""
    return Shop(app)


def test_nothing_leaves_the_process(app: Celery, worker: Worker, shop: Shop) -> None:
    order = shop.saga(order_id="42")

    assert shop.place.handler(order, "42") == "placed"
    assert (worker.waiting(), backend_of(app).outbox.count(), shop.saga.find("42")) == ([], 0, None)


def test_messages_in_the_order_of_the_calls(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    shop.place.handler(order, "42", card="amex")

    charge, event = collected(order).messages
    assert (charge.task, charge.args, charge.kwargs, charge.due_at) == (shop.charge.name, ("amex",), {}, None)
    assert charge.signature.options["expires"]
    assert (event.task, event.args[1]) == ("celery_sagas.publish", {"order_id": "42"})


def test_timeouts(shop: Shop) -> None:
    moment, order = Moment(), shop.saga(order_id="42")
    shop.place.handler(order, order_id="42")

    (reminder,) = collected(order).timeouts.values()
    assert reminder.task == "order.remind"
    assert reminder.due_at is not None
    assert moment.is_before(int(reminder.due_at.timestamp() * 1000), 3600)


def test_handlers_that_are_called_one_after_the_other(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    shop.place.handler(order, "42")
    shop.paid.handler(None, order, "receipt")
    shop.remind.handler(order)
    shop.unpaid.handler(order, failure=Failure(kind="deadline", task="charge", task_id="1"))

    done = collected(order)
    assert [message.args[0] for message in done.messages if message.task == shop.charge.name] == ["visa", "receipt", "a", "b"]
    assert done.messages[2].due_at is not None
    assert done.messages[2].due_at > datetime.now(UTC)
    assert (done.timeouts, done.completed, order.total) == ({}, True, 1)
    assert len({message.signature.options["task_id"] for message in done.messages}) == 5


def test_view_of_an_instance_that_is_none(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    shop.place.handler(order, "42")

    assert (order.saga.key, order.saga.version, order.saga.is_new, order.saga.message.step) == ("42", 0, True, "order.place")


def test_state_may_be_changed_afterwards(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    shop.place.handler(order, "42")
    order.total = 7

    with pytest.raises(MisuseError, match="outside a step"):
        order.send(shop.charge.s("a"))


def test_handler_that_has_sent_nothing(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    shop.unpaid.handler(order, Failure(kind="deadline", task="charge", task_id="1"))

    assert collected(order) == Collected((), {}, completed=True)


def test_state_on_which_none_was_called(shop: Shop) -> None:
    with pytest.raises(MisuseError, match="no handler was called on this Order"):
        collected(shop.saga(order_id="42"))


def test_copy_is_read_only_as_always(worker: Worker, shop: Shop) -> None:
    """Nor is anything published by a handler that is called on one."""
    shop.place.delay("42")
    worker.one()
    waiting = worker.waiting()

    @shop.saga.handles
    def tell(order: Any, order_id: str) -> None:
        publish(Placed(order_id=order_id))

    for step in (shop.place, tell):
        with pytest.raises(MisuseError, match=r"that find\(\) returned is read-only"):
            step.handler(shop.saga.find("42"), "42")
    assert [message.id for message in worker.waiting()] == [message.id for message in waiting]


def test_within_a_step_a_handler_is_a_part_of_it(app: Celery, worker: Worker) -> None:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @app.task
    def charge() -> None: ...

    @Order.handles
    def again(order: Order) -> None:
        order.send(charge.s())

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        again.handler(order)

    place.delay("42")
    worker.one()

    assert [message.task for message in worker.waiting()] == [charge.name]


def test_within_a_handler_another_one_is_a_part_of_it(app: Celery, worker: Worker) -> None:
    """As in a worker: what the outer one sends afterwards is collected, too."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @app.task(acks_late=True)
    def charge(card: str) -> None: ...

    @Order.handles
    def again(order: Order) -> None:
        order.send(charge.s("b"))

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(charge.s("a"))
        again.handler(order)
        order.send(charge.s("c"))
        publish(Placed(order_id=order_id))

    order = Order(order_id="42")
    place.handler(order, "42")

    messages = collected(order).messages
    assert [message.args[0] for message in messages[:3]] == ["a", "b", "c"]
    assert [message.task for message in messages[3:]] == ["celery_sagas.publish"]
    assert len({message.signature.options["task_id"] for message in messages}) == 4
    assert (order.saga.message.step, worker.waiting()) == ("order.place", [])


def test_call_that_does_not_fit(shop: Shop) -> None:
    """The error names the handler, as Python's own does."""
    order = shop.saga(order_id="42")

    with pytest.raises(TypeError, match=r"place\(\) got an unexpected keyword argument 'cart'"):
        shop.place.handler(order, "42", cart="visa")
    with pytest.raises(TypeError, match=r"place\(\) missing 2 required positional arguments: 'order' and 'order_id'"):
        shop.place.handler()


def test_what_a_step_refuses_is_refused(shop: Shop) -> None:
    order = shop.saga(order_id="42")
    with pytest.raises(MisuseError, match="was called inside"):
        shop.call_another.handler(order)
    with pytest.raises(InvalidMessage, match="saga_max_state_bytes"):
        shop.send_too_much.handler(order, "42")
    assert collected(order).messages == ()


def test_afterwards_messages_are_published_again(worker: Worker, shop: Shop) -> None:
    """Also if the handler has failed."""
    order = shop.saga(order_id="42")
    with pytest.raises(InvalidMessage):
        shop.send_too_much.handler(order, "42")
    publish(Placed(order_id="42"))

    assert [message.task for message in worker.waiting()] == ["celery_sagas.publish"]
