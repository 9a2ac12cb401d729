"""A saga that asks carriers for quotes, and gathers what they answer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Gathered, Message, Saga
from celery_sagas.core.pending import read_pending
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.errors import PublishError, StoreUnavailable
from celery_sagas.stores.memory.state import wall_clock
from celery_sagas.stores.records import KEY, Lookup, OutboxRow, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.headers import ADDRESS
from celery_sagas.worker.requests.gather_task import GATHER, GatherTask
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of

#: Where the answers to a gather of an order are kept.
BUFFER = buffer_of("order")


def by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers come as they do from a worker without this library."""
    monkeypatch.setattr(GatherTask, "collects", lambda *_: False)


@pytest.fixture(params=["by message", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How answers come: see ``by_message``; or collected where the member has run."""
    if request.param == "by message":
        by_message(monkeypatch)


class Quote(Message):
    """An answer that is a model."""

    carrier: str
    price: int


def define(app: Celery) -> Any:
    """Define the saga, and the tasks that it asks."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []
        values: list[Any] = []
        failed: dict[int, str] = {}
        silent: list[int] = []

        def note(self, step: str, came: Gathered[Any]) -> None:
            self.seen.append(step)
            self.values, self.silent = came.values, came.silent
            self.failed = {position: f"{failure.error} {failure.text}" for position, failure in came.failures.items()}

    @app.task(name="quote")
    def quote(price: int) -> int:
        if price < 0:
            raise ValueError(f"no price is {price}")
        return price

    @app.task(name="double")
    def double(price: int) -> int:
        return 2 * price

    @Order.starts
    def place(
        order: Order,
        order_id: str,
        prices: list[int],
        otherwise: str | None = None,
        at_least: int | None = None,
        within: int | None = None,
        extra: str | None = None,
        is_slow: bool = False,
    ) -> None:
        then: Any = quoted.s(extra=extra) if extra else quoted
        members = [quote.s(price).set(queue=slow_queue(app)) if is_slow else quote.s(price) for price in prices]
        order.gather(members, then=then, otherwise=otherwise, at_least=at_least, within=within)

    @Order.handles
    def quoted(order: Order, came: Gathered[int], extra: str = "") -> None:
        order.note(f"quoted {extra}".strip(), came)

    @Order.handles
    def too_few(order: Order, came: Gathered[int]) -> None:
        order.note("too few", came)

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    return SimpleNamespace(saga=Order, place=place, quote=quote, double=double, quoted=quoted, too_few=too_few, end=end)


@pytest.fixture
def shop(app: Celery) -> Any:
    """The saga, and the tasks that it asks."""
    return define(app)


def slow_queue(app: Celery) -> str:
    """Return the name of a queue that no worker takes from, until ``hurry`` moves what is in it."""
    return f"{app.conf.task_default_queue}-slow"


def hurry(app: Celery) -> None:
    """Let the carriers that are slow begin."""
    with app.connection_for_read() as connection:
        slow, queue = connection.SimpleQueue(slow_queue(app)), connection.SimpleQueue(app.conf.task_default_queue)
        while slow.qsize():
            message = slow.get_nowait()
            names = {name: message.properties.get(name) for name in ("correlation_id", "reply_to")}
            queue.put(message.payload, headers=message.headers, **names)
            message.ack()


def begin(shop: Any, worker: Worker, prices: list[int], **options: Any) -> None:
    """Have the order 42 ask for some prices; the members wait in the queue."""
    shop.place.delay("42", prices, **options)
    worker.one()


def start(shop: Any, worker: Worker, gather: Callable[[Any], Any]) -> None:
    """Have the order 42 gather in its own way."""

    @shop.saga.starts
    def start(order: Any, order_id: str) -> None:
        gather(order)

    start.delay("42")
    worker.one()


def found(shop: Any) -> Any:
    """Return the order 42."""
    order = shop.saga.find("42")
    assert order is not None
    return order


def record_of(app: Celery) -> Record:
    """Return what is stored of the order 42."""
    record = backend_of(app).sagas.find(Lookup(("order",), KEY, "42")).record
    assert record is not None
    return record


def request_of(app: Celery) -> str:
    """Return the id of the one gather for which the order 42 waits."""
    (request,) = read_pending(record_of(app).pending).requests
    return request


def collected(app: Celery) -> int:
    """Return how much of all gathers is kept beside their instances."""
    return backend_of(app).buffers.count(BUFFER).buffered


def rows(app: Celery) -> list[OutboxRow]:
    """Return the rows of the outbox."""
    return [row.message for row in backend_of(app).outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]


def fire(app: Celery, *waiting: OutboxRow) -> None:
    """Publish rows, whether they are still there or not: they were claimed a moment ago."""
    for row in waiting:
        runtime_of(app).publisher.publish(row)


def tasks_of(done: list[Delivered]) -> list[str]:
    """Return the tasks that were run."""
    return [delivered.task for delivered in done]


def address(shop: Any, came: ReplyKind = ReplyKind.ANSWER) -> dict[str, Any]:
    """Return the headers of something that came of a member of the order 42."""
    return {ADDRESS: {"instance": found(shop).saga.id, "request": "of the member", "came": came.value}}


def answer(app: Celery, headers: dict[str, Any], request: str, position: int, value: Any) -> None:
    """Send an answer of a member."""
    app.send_task(GATHER, (value, "order", request, position, "quote"), headers=headers)


class Failing:
    """A store and a broker that fail for a while."""

    def __init__(self) -> None:
        self.insertions = 0  #: that will fail
        self.told = 0  #: messages to steps that will not be published
        self.error: Exception = PublishError("the broker is away", True)


@pytest.fixture
def failing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """What can be made to fail."""
    made, store, publisher = Failing(), backend_of(app).aggregates, runtime_of(app).publisher
    insert, publish = store.insert, publisher.publish_signature

    def failing_insert(*args: Any) -> Any:
        if made.insertions:
            made.insertions -= 1
            raise StoreUnavailable("memory://", "it is away")
        return insert(*args)

    def failing_publish(sent: Any) -> None:
        if made.told and sent.task.startswith("order."):
            made.told -= 1
            raise made.error
        publish(sent)

    monkeypatch.setattr(store, "insert", failing_insert)
    monkeypatch.setattr(publisher, "publish_signature", failing_publish)
    return made


@pytest.fixture
def clock(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the app's store, and of what a process remembers, which stands still."""
    clock, backend = Clock(wall_clock()), backend_of(app)
    for part in (backend.aggregates, backend.buffers):
        monkeypatch.setattr(part, "_clock", clock)
    for name in ("clock", "wall_clock"):
        monkeypatch.setattr(runtime_of(app).gathering_in(runtime_of(app).backend), name, lambda: clock.now / 1000)
    return clock
