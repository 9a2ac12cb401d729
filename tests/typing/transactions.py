"""Transactions as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from celery_sagas import Aggregator, Batch, Message, Saga, aggregator, publish, send


class Own(Session):
    """A session of the user's own."""

    def audit(self) -> None: ...


class Reading(Message):
    celsius: float


class Order(Saga, correlate_by="order_id"):
    order_id: str


@Order.starts(transaction=Session)
def begin(order: Order, session: Session, order_id: str, total: int) -> int:
    return total


@Order.handles(transaction=Connection, if_missing="raise", acks_late=True)
def paid(order: Order, connection: Connection, order_id: str) -> None: ...


@Order.handles(transaction=Own)
def audited(order: Order, session: Own, order_id: str) -> None:
    session.audit()


@Order.handles(transaction=Session, bind=True)
def bound(self: Any, order: Order, session: Session, order_id: str) -> None: ...


@Order.handles(transaction="default")
def by_models(order: Order, order_id: str) -> None: ...


def is_open(order: Order, order_id: str) -> bool:
    return True


@Order.handles(transaction=Session, when=is_open)
def conditional(order: Order, session: Session, order_id: str) -> None: ...


@Order.handles(transaction=Session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def without_a_session(order: Order, order_id: str) -> None: ...


@Order.handles(transaction=Session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def with_another(order: Order, connection: Connection, order_id: str) -> None: ...


@aggregator(size=10, transaction=Session)
def store(batch: Batch[Reading], session: Session) -> None: ...


@aggregator(size=10, transaction=Session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def store_without(batch: Batch[Reading]) -> None: ...


@aggregator(size=10, transaction="default")
def store_by_models(batch: Batch[Reading]) -> None: ...


def a_session_is_no_part_of_the_message() -> None:
    begin.delay("1", total=2)
    begin.delay("1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    paid.delay(order_id="1")
    audited.si("1")
    conditional.delay("1")
    by_models.delay("1")
    assert_type(store, Aggregator[Reading])


def anything_is_sent(session: Session, scoped: scoped_session[Session], connection: Connection) -> None:
    assert_type(send(begin.si("1", 2), using=session), str)
    send(store.s(Reading(celsius=1.0)), using=scoped, after=timedelta(hours=1), id="reading-1")
    send(paid.si("1"), using=connection)
    send(paid.si("1"), using="default")
    send(begin.si("1", 2))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send(begin.si("1", 2), using=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send(begin, using=session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(publish(Reading(celsius=1.0), using=session), str)
