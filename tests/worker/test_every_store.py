"""What holds wherever sagas are kept, and what a worker does with a backend of one's own."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from celery import Celery
from celery.concurrency import prefork
from pydantic import BaseModel, Field
from sqlalchemy import text

from celery_sagas import Batch, Failure, Message, Saga, aggregator
from celery_sagas.errors import LeaseLost, MisuseError, StoreUnavailable
from celery_sagas.stores import urls
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.scripts import Script
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.urls import open_backend, register_backend
from celery_sagas.testing.batches import CLOSED, add, buffered, flush
from celery_sagas.worker.process.bootsteps import PrepareBackend
from celery_sagas.worker.runtime import runtime_of
from tests import servers
from tests.apps import NewApp, Worker, backend_of
from tests.every_store import DATABASES, STORES, stored_app, url
from tests.integration.proxy import Proxy
from tests.servers import unique
from tests.waiting import wait_until

__all__ = ["stored_app", "url"]


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app


class Address(BaseModel):
    """A part of a state."""

    lines: list[str]


class Parcel(BaseModel):
    """One of two kinds of a part."""

    kind: Literal["parcel"] = "parcel"
    weight: Decimal


class Letter(BaseModel):
    """The other one."""

    kind: Literal["letter"] = "letter"
    pages: list[int]


Item = Annotated[Parcel | Letter, Field(discriminator="kind")]


def test_starters_come_to_the_same_in_any_order(app: Celery, worker: Worker) -> None:
    """Each of them may be the first, and the last of them ends the instance."""
    shipped: list[tuple[str, int]] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        is_placed: bool = False
        is_closed: bool = False
        paid: int = 0

        def ship_when_whole(self) -> None:
            if self.is_placed and self.is_closed and self.paid:
                self.send(ship.si(self.order_id, self.paid))
                self.complete()

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.is_placed = True
        order.ship_when_whole()

    @Order.starts
    def pay(order: Order, order_id: str, amount: int) -> None:
        order.paid += amount
        order.ship_when_whole()

    @Order.starts
    def close(order: Order, order_id: str) -> None:
        order.is_closed = True
        order.ship_when_whole()

    @app.task(name="ship")
    def ship(order_id: str, amount: int) -> None:
        shipped.append((order_id, amount))

    messages: tuple[Callable[[str], object], ...] = (place.delay, lambda key: pay.delay(key, 5), close.delay)
    orders = dict(enumerate(permutations(messages)))
    for number, order in orders.items():
        for send in order:
            send(str(number))
    done = worker.run()
    for first in [delivered for delivered in done if delivered.task == place.name]:
        worker.deliver_again(first)

    assert sorted(shipped) == [(str(number), 5) for number in orders]
    for number in map(str, orders):
        assert Order.find(number) is None
        history = backend_of(app).journal.history(["order"], number, 9)
        assert [entry.outcome for entry in history] == ["started", "handled", "completed"]


@pytest.mark.parametrize("url", STORES[1:], indirect=True)
def test_state_is_kept_as_one_document_that_a_person_can_read(app: Celery, worker: Worker) -> None:
    """With any program: it is the JSON of the fields."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: Decimal = Decimal(0)
        addresses: dict[str, Address] = {}
        items: list[Item] = []
        note: str | None = None

    @Order.starts
    def place(order: Order, order_id: str, items: list[Item]) -> None:
        order.total = Decimal("9.50")
        order.addresses["home"] = Address(lines=['Zoë "Z"', "東京"])
        order.items = items

    place.delay("42", [Letter(pages=[1, 2]).model_dump()])
    worker.run()

    kept = _kept_data(backend_of(app))
    assert json.loads(kept) == {
        "order_id": "42",
        "total": "9.50",
        "addresses": {"home": {"lines": ['Zoë "Z"', "東京"]}},
        "items": [{"kind": "letter", "pages": [1, 2]}],
        "note": None,
    }
    assert "Zoë" in kept
    assert "東京" in kept


def _kept_data(backend: Backend) -> str:
    """Return what stands in the store for the state of its only instance."""
    if isinstance(backend, SqlBackend):
        statement, values = text("SELECT data FROM saga_instance WHERE prefix = :prefix"), {"prefix": backend.database.prefix}
        with backend.database.connect() as connection:
            return str(connection.execute(statement, values).scalar_one())
    assert isinstance(backend, RedisBackend)
    keys = ([shard.instances("order")] for shard in backend._placement.shards)
    (record,) = (record for key in keys for record in backend.client.run(_VALUES, key, []))
    head, _, _ = record.partition(b"\n")  # of numbers, the last of which is the length of what comes last
    return bytes(record[-int(head.split()[-1]) :]).decode()


def _script(name: str, source: str) -> Script:
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


_VALUES = _script("values", "return redis.call('HVALS', KEYS[1])")


def test_state_may_be_nested_and_inherited(app: Celery, worker: Worker) -> None:
    """Nothing of it needs an id or a table of its own, and no text is cut."""

    class Traced(Saga):
        notes: list[str] = []

    class Order(Traced, correlate_by="order_id"):
        order_id: str
        numbers: list[int] = []
        addresses: dict[str, Address] = {}
        items: list[Item] = []

    @Order.starts
    def place(order: Order, order_id: str, address: Address, items: list[Item]) -> None:
        order.addresses["home"] = address
        order.items = items

    @Order.handles
    def add(order: Order, order_id: str, number: int, note: str) -> None:
        order.numbers.append(number)
        order.notes.append(note)
        order.addresses["home"].lines.append(note)
        first = order.items[0]
        assert isinstance(first, Parcel)
        first.weight += number

    long = "é" * 300
    place.delay("42", Address(lines=["here"]), [Parcel(weight=Decimal("1.50")), Letter(pages=[1, 2])])
    for number, note in ((7, "a"), (8, long)):
        add.delay("42", number, note)
    worker.run()

    order = Order.find("42")
    assert order is not None
    assert (order.notes, order.numbers) == (["a", long], [7, 8])
    assert order.addresses == {"home": Address(lines=["here", "a", long])}
    assert order.items == [Parcel(weight=Decimal("16.50")), Letter(pages=[1, 2])]


def test_step_is_not_called_inside_a_step_of_its_own_instance(app: Celery, worker: Worker) -> None:
    """It would not see what the outer one has changed: what is sent instead does."""
    seen: list[int] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    @Order.starts
    def place(order: Order, order_id: str, how: str) -> None:
        order.total = 5
        if how == "call":
            look("42")
        order.send(look.si("42"))

    @Order.handles
    def look(order: Order, order_id: str) -> None:
        seen.append(order.total)

    place.delay("42", how="call")
    assert isinstance(worker.one().error, MisuseError)
    assert (Order.find("42"), worker.waiting(), seen) == (None, [], [])

    place.delay("42", how="send")
    worker.run()
    assert seen == [5]


@pytest.mark.parametrize("url", STORES[1:], indirect=True)
def test_what_comes_late_for_an_instance_that_was_deleted_by_hand_changes_nothing(
    app: Celery, worker: Worker, at_one_time: None
) -> None:
    """Its timeout, an answer and a message find nobody; a starter makes another one, which gets none of them."""

    class Order(Saga, correlate_by="order_id", also_by="parcel"):
        order_id: str
        parcel: str | None = None
        seen: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str, asks: bool) -> None:
        order.seen.append("placed")
        order.parcel = "p"
        if asks:
            order.schedule(remind.s(), after=0.05)
            order.send(charge.s(), then=paid, otherwise=unpaid, within=3_600)

    @Order.handles
    def remind(order: Order) -> None:
        order.seen.append("reminded")

    @Order.handles
    def paid(order: Order, receipt: str) -> None:
        order.seen.append(receipt)

    @Order.handles
    def unpaid(order: Order, failure: Failure) -> None:
        order.seen.append(failure.kind)

    @Order.handles
    def add(order: Order, parcel: str) -> None:
        order.seen.append("added")

    @app.task(name="charge", acks_late=True)
    def charge() -> str:
        return "receipt"

    place.delay("42", asks=True)
    worker.one()
    order = Order.find("42")
    assert order is not None
    _delete_by_hand(backend_of(app), order.saga.id)
    assert (Order.find("42"), Order.find(parcel="p")) == (None, None)
    add.delay("p")
    done = worker.run()
    for row in wait_until(lambda: backend_of(app).outbox.claim_due("relay", 9, 1, None), "the timeout"):
        runtime_of(app).publisher.publish(row)
    place.delay("42", asks=False)
    done += worker.run()

    assert [str(delivered.error) for delivered in done if delivered.error] == []
    assert {delivered.task for delivered in done} >= {"charge", paid.name, remind.name, add.name}
    order = Order.find("42")
    assert order is not None
    assert order.seen == ["placed"]
    assert backend_of(app).dead.count() == 0


@pytest.mark.parametrize("url", STORES[1:], indirect=True)
def test_key_that_is_left_behind_by_hand_makes_a_dead_letter(
    app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error says what to delete; once that is gone, the key is free."""
    monkeypatch.setattr("celery_sagas.engine.conflicts._LONGEST_PAUSE_S", 0.0)

    class Order(Saga, correlate_by="order_id", also_by="parcel"):
        order_id: str
        parcel: str | None = None

    @Order.starts
    def place(order: Order, order_id: str, parcel: str) -> None:
        order.parcel = parcel

    place.delay("42", "p")
    worker.one()
    order = Order.find("42")
    assert order is not None
    _delete_by_hand(backend_of(app), order.saga.id, with_keys=False)
    place.delay("42", "p")
    assert "gone" in str(worker.one().error)
    assert [dead_letter.error for dead_letter in backend_of(app).dead.list(9)] == ["UnreadableState"]

    _delete_by_hand(backend_of(app), order.saga.id)
    place.delay("42", "p")
    assert worker.one().error is None
    assert Order.find(parcel="p") is not None


def _delete_by_hand(backend: Backend, instance_id: str, *, with_keys: bool = True) -> None:
    """Do what the runbook says, and nothing else; or forget the keys."""
    if isinstance(backend, SqlBackend):
        values = {"prefix": backend.database.prefix, "id": instance_id}
        with backend.database.connect() as connection:
            connection.execute(text("BEGIN"))
            connection.execute(text("DELETE FROM saga_instance WHERE prefix = :prefix AND id = :id"), values)
            if with_keys:
                connection.execute(text("DELETE FROM saga_key WHERE prefix = :prefix AND instance_id = :id"), values)
            connection.execute(text("COMMIT"))
    else:
        assert isinstance(backend, RedisBackend)
        for shard in backend._placement.shards:
            keys = shard.keys("order" if with_keys else "nothing")
            backend.client.run(_DELETE, [shard.instances("order"), keys], [instance_id])


#: As atomic as ``MULTI``.
_DELETE = _script(
    "delete",
    """
local id, keys = ARGV[1], redis.call('HGETALL', KEYS[2])
redis.call('HDEL', KEYS[1], id)
for at = 1, #keys, 2 do
  if keys[at + 1] == id then redis.call('HDEL', KEYS[2], keys[at]) end
end
redis.call('HDEL', KEYS[2], '#' .. id)
return 'ok'
""",
)


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/sagas.sqlite3"
    else:
        with servers.database(request.param) as url:
            yield url


def test_worker_makes_the_schema_by_itself(new_app: NewApp, empty_url: str) -> None:
    """Nobody has to create anything before the first message."""
    app = new_app()
    app.conf.saga_backend = empty_url

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    step = SimpleNamespace(app=app, pool_cls=prefork.TaskPool, concurrency=2)
    PrepareBackend(step).start(step)
    place.delay("42")
    Worker(app).run()

    assert Order.find("42") is not None
    runtime_of(app).close()


#: How long a silent server is waited for. Seconds.
_SHORT = {
    "postgresql": {"answer_timeout": 2},
    "mariadb": {"answer_timeout": 2},
    "redis": {"socket_timeout": 2, "socket_connect_timeout": 2, "total_timeout": 2},
}
_PORTS = {"postgresql": 5432, "mariadb": 3306, "redis": 6379}


@pytest.mark.parametrize("url", _PORTS, indirect=True)
def test_nothing_counts_as_buffered_or_handled_that_the_store_has_not_answered(
    request: pytest.FixtureRequest, url: str, app: Celery
) -> None:
    """A write is never sent and forgotten: without an answer it is an error, and may be made again."""
    engine = request.node.callspec.params["url"]
    prefix, rules = app.conf.saga_prefix, CLOSED._replace(size=1)
    kept = backend_of(app)
    add(kept, rules, "a")
    snapshot = flush(kept, rules)
    with (
        closing(Proxy(url, _PORTS[engine])) as proxy,
        closing(open_backend(proxy.url, prefix=prefix, options=_SHORT[engine])) as backend,
    ):
        wait_until(lambda: _is_connected(backend), "a connection")
        proxy.silence()
        with pytest.raises(StoreUnavailable):
            add(backend, rules, "b")
        with pytest.raises(StoreUnavailable):
            backend.aggregates.remove(rules, "", "one")
    assert [item.id for item in snapshot.items] == ["a"]
    add(kept, rules, "b")
    with suppress(LeaseLost):  # the removal may have got there all the same
        kept.aggregates.remove(rules, "", "one")
    assert buffered(kept) == ["b"]


def _is_connected(backend: Backend) -> bool:
    """Connect; on a busy machine it may take longer than this backend waits."""
    with suppress(StoreUnavailable):
        backend.dead.count()
        return True
    return False


class Shelf(Backend):
    """A backend of one's own, which keeps its data as this library's memory backend does."""

    journal_retention_s = MemoryBackend.journal_retention_s

    def __init__(self, url: str, *, prefix: str, options: Any, clock: Any) -> None:
        kept = MemoryBackend(url.replace("shelf://", "memory://"), prefix=prefix, clock=clock)
        self.url, self.prepared = url, 0
        self.sagas, self.outbox, self.journal, self.deliveries = kept.sagas, kept.outbox, kept.journal, kept.deliveries
        self.dead, self.aggregates, self.buffers = kept.dead, kept.aggregates, kept.buffers

    def prepare(self, *, create_schema: bool, processes: int) -> list[str]:
        self.prepared += 1
        return []

    def schema(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is open."""


class Reading(Message):
    """An item."""

    celsius: float


@pytest.mark.parametrize("setting", ["saga_backend", "saga_aggregator_backend"])
def test_another_store_takes_the_place_of_ours(new_app: NewApp, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """Every process of a worker may have it, since it refuses none; nobody else is asked."""
    monkeypatch.setattr(urls, "_REGISTERED", {})
    register_backend("shelf", Shelf)
    app = new_app()
    app.conf[setting] = f"shelf://{unique()}"
    batches: list[list[float]] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        receipt: str = ""

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=paid)

    @Order.handles
    def paid(order: Order, receipt: str) -> None:
        order.receipt = receipt

    @app.task(name="charge", acks_late=True)
    def charge(order_id: str) -> str:
        return f"receipt {order_id}"

    @aggregator(name="collect", size=2)
    def collect(batch: Batch[Reading]) -> None:
        batches.append([reading.celsius for reading in batch])

    place.delay("42")
    for celsius in (20.0, 21.0):
        collect.add(Reading(celsius=celsius))
    Worker(app).run()

    runtime = runtime_of(app)
    shelf = runtime.backend if setting == "saga_backend" else runtime.batches
    assert isinstance(shelf, Shelf)
    assert shelf.prepared == 0  # no message does that
    runtime.prepare(processes=1)
    assert shelf.prepared == 1
    order = Order.find("42")
    assert order is not None
    assert (order.receipt, batches) == ("receipt 42", [[20.0, 21.0]])
    if setting == "saga_backend":
        assert runtime.batches is shelf
        assert len(shelf.journal.history(["order"], "42", 9)) == 2
