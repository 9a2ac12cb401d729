"""The life of an instance and of a batch, wherever they are kept: what the rules, the engine and each store come to together."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Message, Missing, Saga, publish
from celery_sagas.errors import DefinitionError, SagaAlreadyExists, SagaNotFound
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of, interposed
from tests.every_store import stored_app, url
from tests.waiting import wait_until
from tests.worker.aggregators.collectors import Boom, Reading, collector, counts

__all__ = ["stored_app", "url"]


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app


def outcomes(app: Celery, key: str, saga: str = "order") -> list[str]:
    """Return what the journal has of a key, sorted: several entries may be of one millisecond."""
    return sorted(entry.outcome for entry in backend_of(app).journal.history([saga], key, 99))


def errors(worker: Worker) -> list[type[BaseException]]:
    """Return the errors of all messages that wait."""
    return [type(delivered.error) for delivered in worker.run() if delivered.error is not None]


def test_key_of_an_instance_that_has_completed_belongs_to_the_next(app: Celery, worker: Worker) -> None:
    """It is inserted once, updated with each further message, and deleted by the last one."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        notes: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.notes.append("placed" if order.saga.is_new else "placed again")

    @Order.handles
    def close(order: Order, order_id: str) -> None:
        order.notes.append("closed")
        order.complete()

    place.delay("42")
    place.delay("42")
    worker.run()
    first = Order.find("42")
    assert first is not None
    assert (first.notes, first.saga.version) == (["placed", "placed again"], 2)

    close.delay("42")
    close.delay("42")
    worker.run()
    assert Order.find("42") is None
    ended = Order.outcome("42")
    assert ended is not None
    assert (ended.step, ended.instance_id) == ("order.close", first.saga.id)

    place.delay("42")
    worker.run()
    second = Order.find("42")
    assert second is not None
    assert (second.notes, second.saga.version) == (["placed"], 1)
    assert second.saga.id != first.saga.id
    assert outcomes(app, "42") == ["completed", "handled", "ignored", "started", "started"]


def test_instance_that_completes_with_its_first_message_is_never_written(app: Celery, worker: Worker) -> None:
    """What it sends is sent, and the journal has it."""
    told: list[str] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int

    @Order.starts
    def refuse(order: Order, order_id: str) -> None:
        order.send(tell.si(order_id))
        order.complete()

    @app.task(name="tell")
    def tell(order_id: str) -> None:
        told.append(order_id)

    store = interposed(app)
    refuse.delay("42")
    first, *_ = worker.run()
    worker.deliver_again(first)

    assert set(store.calls) == {"find", "record"}
    assert (told, Order.find("42"), outcomes(app, "42")) == (["42"], None, ["completed"])


def test_instance_is_found_by_all_that_was_declared_and_by_nothing_else(app: Celery, worker: Worker) -> None:
    """By the alternate keys of its abstract bases too, as the property's type has them, and by its id."""

    class Tracked(Saga, also_by="parcel"):
        parcel: int | None = None

    class Order(Tracked, correlate_by="order_id", also_by="email"):
        order_id: int
        email: str | None = None
        seen: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str, parcel: str, email: str) -> None:
        order.parcel, order.email = int(parcel), email

    @Order.handles
    def delivered(order: Order, parcel: str) -> None:
        order.seen.append("delivered")
        order.parcel = None

    place.delay("42", "7", "a@b")
    place.delay("43", "8", "c@d")
    worker.run()
    order = Order.find(42)
    assert order is not None
    for found in (Order.find("42"), Order.find(parcel=7), Order.find(parcel="7"), Order.find(email="a@b")):
        assert found == order
    assert Order.find(id=order.saga.id) == order
    assert (Order.find(email="A@B"), Order.find(parcel=42), Order.find(id="42")) == (None, None, None)
    with pytest.raises(DefinitionError, match="by order_id, or by parcel or email or id; others are declared with also_by="):
        Order.find(seen="delivered")

    delivered.delay(parcel="7")
    delivered.delay(parcel="7")
    worker.run()
    order = Order.find(42)
    assert order is not None
    assert (order.seen, order.saga.version, Order.find(parcel=7)) == (["delivered"], 2, None)


def test_policies_say_what_becomes_of_a_message(app: Celery, worker: Worker) -> None:
    """For an instance that is there already, or that is missing."""
    asked: list[str] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        count: int = 0

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.count += 1

    @Order.starts(if_exists="ignore")
    def place_once(order: Order, order_id: str) -> None:
        order.count += 10

    @Order.starts(if_exists="raise")
    def place_new(order: Order, order_id: str) -> None:
        order.count += 100

    @Order.handles
    def change(order: Order, order_id: str) -> None:
        order.count += 1_000

    @Order.handles(if_missing="raise")
    def change_known(order: Order, order_id: str) -> None:
        order.count += 1_000

    @Order.handles
    def change_or_ask(order: Order, order_id: str) -> None:
        order.count += 1_000

    @change_or_ask.if_missing
    def ask(missing: Missing, order_id: str) -> None:
        missing.send(tell.si(order_id))

    @app.task(name="tell")
    def tell(order_id: str) -> None:
        asked.append(order_id)

    handlers = (change, change_known, change_or_ask)
    for step in handlers:
        step.delay("42")
    assert (errors(worker), asked, Order.find("42")) == ([SagaNotFound], ["42"], None)
    assert outcomes(app, "42") == ["failed", "ignored", "missing"]

    for step in (place, place_once, place_new, place, *handlers):
        step.delay("42")
    assert errors(worker) == [SagaAlreadyExists]
    order = Order.find("42")
    assert order is not None
    assert (order.count, asked) == (3_002, ["42"])
    assert backend_of(app).dead.count() == 2


def test_timeout_is_handled_by_the_instance_that_scheduled_it_or_by_none(app: Celery, worker: Worker, at_one_time: None) -> None:
    """Also one whose step is a starter: a later instance of the key does not get it, and it begins none.

    One that is cancelled does not run, although it is on its way.
    """

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        reminders: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str, due: bool = False) -> None:
        if due:
            order.schedule(place.s(order_id=order_id), after=0.05)
            for text in ("first", "second"):
                order.schedule(remind.s(text), after=0.05, name="reminder")
            order.schedule(remind.s("cancelled"), after=0.05, name="other")
            order.unschedule("other")

    @Order.handles
    def remind(order: Order, text: str) -> None:
        order.reminders.append(text)

    @Order.handles
    def cancel(order: Order, order_id: str) -> None:
        order.unschedule("reminder")

    @Order.handles
    def close(order: Order, order_id: str) -> None:
        order.complete()

    for key in ("42", "43", "44", "45"):
        place.delay(key, due=True)
    worker.run()
    rows: list[Any] = []
    wait_until(lambda: rows.extend(backend_of(app).outbox.claim_due("relay", 9, 60_000)) or len(rows) == 8, "the timeouts")
    for key in ("43", "44"):
        close.delay(key)
    place.delay("44")
    cancel.delay("45")
    worker.run()
    for row in rows:
        runtime_of(app).publisher.publish(row)
    assert errors(worker) == []

    assert Order.find("43") is None
    found = {key: Order.find(key) for key in ("42", "44", "45")}
    assert {key: (order.reminders, order.saga.version) for key, order in found.items() if order} == {
        "42": (["second"], 3),
        "44": ([], 1),
        "45": ([], 3),
    }


def test_answers_find_who_has_asked_without_a_key(app: Celery, worker: Worker) -> None:
    """Through a plain task, and from another saga, which answers whoever has begun it, and later."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        answers: list[str] = []

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: int

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(charge.s(), then=answered)
        order.send(pack.s(7), then=answered)

    @Order.handles
    def answered(order: Order, answer: str) -> None:
        order.answers.append(answer)

    @Parcel.starts
    def pack(parcel: Parcel, parcel_id: int) -> None: ...

    @Parcel.handles
    def packed(parcel: Parcel, parcel_id: int) -> None:
        parcel.reply("packed")

    @app.task(name="charge", acks_late=True)
    def charge() -> str:
        return "charged"

    place.delay("42")
    place.delay("43")
    worker.run()
    packed.delay(7)
    packed.delay(7)
    assert errors(worker) == []

    found = [Order.find(key) for key in ("42", "43")]
    assert sorted(order.answers for order in found if order) == [["charged"], ["charged", "packed"]]


def test_handler_runs_again_on_what_a_rival_has_committed(app: Celery, worker: Worker) -> None:
    seen: list[int] = []

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    @Order.starts
    def add(order: Order, order_id: str, amount: int) -> None:
        seen.append(order.total)
        order.total += amount
        order.send(tell.si(order.total))

    @app.task(name="tell")
    def tell(total: int) -> None:
        told.append(total)

    told: list[int] = []
    add.delay("42", 1)
    worker.run()
    rival = Worker(app)
    add.delay("42", 10)
    add.delay("42", 100)
    interposed(app).once_before("update", lambda: str(rival.one()))
    worker.run()

    order = Order.find("42")
    assert order is not None
    assert (order.total, order.saga.version, seen) == (111, 3, [0, 1, 1, 101])
    assert sorted(told) == [1, 101, 111]


class Paid(Message):
    """An event of two sagas."""

    order_id: str


def test_message_for_two_sagas_is_handled_by_each_for_itself(app: Celery, worker: Worker) -> None:
    """With a commit of its own: if one fails, the other has its effect, once."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        paid: int = 0

    class Invoice(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def order_paid(order: Order, event: Paid) -> None:
        order.paid += 1

    @Invoice.starts
    def invoice_paid(invoice: Invoice, event: Paid) -> None:
        raise Boom

    publish(Paid(order_id="42"))
    done = worker.run()
    for delivered in done:
        worker.deliver_again(delivered)
    worker.run()

    order = Order.find("42")
    assert order is not None
    assert (order.paid, Invoice.find("42")) == (1, None)
    assert (outcomes(app, "42"), outcomes(app, "42", "invoice")) == (["started"], ["failed"])


def test_batch_that_fails_comes_again_and_is_removed_once_it_was_handled(app: Celery, worker: Worker) -> None:
    """Items are buffered once under their ids, and flushed when there are enough; what comes meanwhile stays."""
    collect, collected = collector(size=2)
    first, second, third = (Reading(device=f"d{number}") for number in (1, 2, 3))

    def fail(batch: Any) -> None:
        collect.add(third, id="c")
        raise Boom

    collected.work = fail
    for id, reading in (("a", first), ("a", first), ("b", second)):
        collect.add(reading, id=id)
    assert worker.one().task == "shop.collect.flush"
    buffered = [(each.id, each.state, each.attempts) for each in collect.items()]
    assert buffered == [("a", "free", 1), ("b", "free", 1), ("c", "free", 0)]

    collected.work = lambda batch: None
    assert collect.flush() == 1  # which ends the pause
    worker.run()
    assert collected.items == [[first, second], [first, second], [third]]
    assert collect.add_many([first, second, third], ids=["a", "b", "c"]) == ["a", "b", "c"]  # all of them are remembered
    assert counts(app).buffered == 0
