"""Steps as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type

from celery.schedules import crontab

from celery_sagas import Message, Missing, Saga


class Order(Saga, correlate_by="order_id"):
    order_id: str
    total: Decimal


class Other(Saga, correlate_by="order_id"):
    order_id: str


class Paid(Message):
    order_id: str


@Order.starts
def place(order: Order, order_id: str, total: Decimal, *, gift: bool = False) -> int:
    order.total = total
    return 3


@Order.starts(if_exists="ignore", by="order_id", formerly=("order.begin",), batch=10, queue="orders", max_retries=3)
def begin(order: Order, order_id: str) -> None:
    order.send(place.si(order_id, Decimal(1)))


@Order.handles
def paid(order: Order, event: Paid) -> str:
    return event.order_id


@Order.handles(if_missing="raise", by={"order_id": "reference"}, acks_late=True, autoretry_for=(KeyError,))
def cancel(order: Order, reference: str) -> None: ...


@Order.handles(by={"order_id": lambda arguments: str(arguments["reference"])})
def archive(order: Order, reference: str) -> None: ...


@Order.handles(bind=True, default_retry_delay=3)
def retry(self: Any, order: Order, order_id: str) -> Decimal:
    raise self.retry()


@Order.starts(bind=True)
def start_bound(self: Any, order: Order, order_id: str) -> None: ...


@Order.handles
def shared(order: Saga, order_id: str) -> None: ...


@cancel.if_missing
def cancelled_nothing(missing: Missing, reference: str) -> None:
    missing.send(place.si(reference, Decimal(1)))


@cancel.if_missing  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def cancelled_something(order: Order, reference: str) -> None: ...


@cancel.if_missing  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def cancelled_otherwise(missing: Missing, order_id: str) -> None: ...


@Order.if_missing
def no_order(missing: Missing) -> str:
    assert_type(missing.step, str)
    return str(missing.arguments["order_id"])


@Order.if_missing  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def no_reference(missing: Missing, reference: str) -> None: ...


@Order.if_missing  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def not_missing(order: Order) -> None: ...


def messages() -> None:
    assert_type(no_order, Callable[[Missing], str])
    place.delay("42", Decimal(3))
    place.delay(order_id="42", total=Decimal(3), gift=True)
    place.si("42", Decimal(3), gift=True)
    place.s("42")
    place.s()
    place.apply_async(("42", Decimal(3)), {"gift": True}, countdown=3, queue="orders")
    place.signature(("42",), immutable=False)
    retry.delay("42")
    start_bound.delay(order_id="42")
    paid.delay(Paid(order_id="42"))
    assert_type(place("42", Decimal(3)), int)
    assert_type(paid(event=Paid(order_id="42")), str)
    assert_type(retry("42"), Decimal)
    assert_type(place.name, str)
    assert_type(place.max_retries, Any)


def wrong_messages() -> None:
    place.delay("42")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    place.delay("42", "3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    place.delay("42", Decimal(3), True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    place.delay("42", Decimal(3), present=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    place.si(order_id=42, total=Decimal(3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    place.si()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    place("42")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    begin.delay("42", "43")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cancel.delay(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    retry.delay(order_id=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    retry.delay("task", "42")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    paid.delay("42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    place.apply_async("42", Decimal(3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def timeouts(order: Order) -> None:
    assert_type(order.send(place.si("42", Decimal(3)), after=timedelta(days=1)), str)
    order.send(place.s("42"), after=1.5)
    assert_type(order.schedule(place, at=datetime.now(UTC)), str)
    order.schedule(retry, after=3, name="again")
    order.schedule(place.s("42", Decimal(3)), after=timedelta(minutes=1))
    order.schedule("place", after=1)
    assert_type(order.schedule(retry, every=timedelta(hours=1), name="hourly"), str)
    order.schedule(retry, every=timedelta(hours=1), at=datetime.now(UTC))
    order.schedule(retry, every=crontab(minute=0, hour="6"), after=timedelta(days=1))
    order.unschedule("again")
    assert_type(order.saga.timeouts["again"], datetime)
    assert_type(order.saga.requests["6f1"].deadline, datetime | None)
    assert_type([request.task for request in order.saga.requests.values()], list[str])
    order.schedule(place, after="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.schedule(place, after=1, name=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.unschedule(place)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def handlers(order: Order) -> None:
    assert_type(place.handler(order, "42", Decimal(3)), int)
    place.handler("42", Decimal(3))  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    place.handler(Other(order_id="42"), "42", Decimal(3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    place.handler(order, "42", "3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(retry.handler(object(), order, "42"), Decimal)
    start_bound.handler(order, "42")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


@Order.starts(if_exists="perhaps")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_policy(order: Order, order_id: str) -> None: ...


@Order.handles(if_missing=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_type_of_policy(order: Order, order_id: str) -> None: ...


@Order.starts(by=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_by(order: Order, order_id: str) -> None: ...


@Order.handles  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def state_of_another_saga(order: Other, order_id: str) -> None: ...


@Order.handles(if_missing="raise")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def state_of_another_saga_too(order: Other, order_id: str) -> None: ...


@Order.handles  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def no_state() -> None: ...


@Order.handles(bind=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def no_task(order: Order) -> None: ...
