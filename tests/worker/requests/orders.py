"""An order that asks tasks for answers, and notes what it is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Failure, Saga
from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.stores.records import KEY, Entry, Lookup, OutboxRow, Record
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of


class Boom(Exception):
    """What a task raises."""


@dataclass
class Shop:
    """The saga, the task that it asks, and what both do in a test."""

    app: Celery
    saga: Any = None
    charge: Any = None
    ship: Any = None
    ask: Callable[[Any], object] = lambda order: None
    work: Callable[..., Any] = lambda task, *args: "receipt"
    ran: list[Any] = field(default_factory=list)  #: the arguments of each run of a task

    def place(self, worker: Worker, ask: Callable[[Any], object], key: str = "42") -> None:
        """Have an order ask; what it sends waits in the queue."""
        self.ask = ask
        self.saga.place.delay(key)
        worker.one()

    def order(self, key: str = "42") -> Any:
        """Return an order."""
        order = self.saga.find(key)
        assert order is not None, f"there is no order {key}"
        return order

    def seen(self, key: str = "42") -> list[str]:
        """Return what an order was told."""
        return list(self.order(key).seen)

    def failure(self, key: str = "42") -> Failure:
        """Return the one failure of which an order was told."""
        (failure,) = self.order(key).failures
        return Failure.model_validate(failure.model_dump())

    def record(self, key: str = "42") -> Record:
        """Return what is stored of an order."""
        record = backend_of(self.app).sagas.find(Lookup(("order",), KEY, key)).record
        assert record is not None, f"there is no order {key}"
        return record

    def pending(self, key: str = "42") -> Pending:
        """Return what an order waits for."""
        return read_pending(self.record(key).pending)

    def entries(self, key: str = "42") -> list[Entry]:
        """Return the journal of an order."""
        return backend_of(self.app).journal.history(["order"], key, 100)

    def rows(self) -> list[OutboxRow]:
        """Return the rows of the outbox."""
        return [row.message for row in backend_of(self.app).outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]

    def fire(self, *waiting: OutboxRow) -> None:
        """Publish rows, whether they are still there or not: they were claimed a moment ago."""
        for row in waiting:
            runtime_of(self.app).publisher.publish(row)


def define(app: Celery) -> Shop:
    """Define the saga and the tasks in an app."""
    shop = Shop(app)

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []
        failures: list[Failure] = []

        def note(self, what: str) -> None:
            self.seen.append(f"{what} late" if self.saga.message.late else what)

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        shop.ask(order)

    @Order.handles
    def paid(order: Order, receipt: Any, where: str = "", *, how: str = "") -> None:
        order.note(" ".join(str(part) for part in ("paid", receipt, where, how) if part != ""))

    @Order.handles
    def unpaid(order: Order, failure: Failure, where: str = "") -> None:
        order.note(f"unpaid {failure.kind} {where}".strip())
        order.failures.append(failure)

    @Order.handles
    def told(order: Order) -> None:
        order.note("told")

    @Order.handles
    def counted(order: Order, count: int) -> None:
        order.note(f"counted {count}")

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    @app.task(name="charge", bind=True, acks_late=True)
    def charge(self: Any, *args: Any) -> Any:
        shop.ran.append(list(args))
        return shop.work(self, *args)

    @app.task(name="ship", bind=True, acks_late=True)
    def ship(self: Any, *args: Any) -> Any:
        shop.ran.append(["ship", *args])
        return f"shipped {args[0]}" if args else "shipped"

    Order.place, Order.paid, Order.unpaid, Order.told = place, paid, unpaid, told  # type: ignore[attr-defined]
    Order.counted, Order.end = counted, end  # type: ignore[attr-defined]
    shop.saga, shop.charge, shop.ship = Order, charge, ship
    return shop


@pytest.fixture
def shop(app: Celery) -> Shop:
    """The saga and the tasks, of this test alone."""
    return define(app)


def only(worker: Worker) -> Delivered:
    """Return the one message that waits in the queue."""
    (delivered,) = worker.waiting()
    return delivered


def refused(delivered: Delivered) -> Any:
    """Return the error with which a message failed."""
    assert delivered.error is not None, f"{delivered.task} did not fail"
    return delivered.error
