"""Causation: which instances caused a message, handed on by tasks that know nothing of sagas."""

from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_sagas import Saga
from celery_sagas.errors import CorrelationError, InvalidMessage
from celery_sagas.worker.headers import CAUSATION, CAUSE, MESSAGE_ID
from tests.apps import NewApp, Worker


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga with a starter that sends, and a handler that names no key."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        receipts: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(charge.si(order_id))

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.receipts.append(receipt)

    @app.task(name="charge")
    def charge(order_id: str) -> str:
        charged.delay(f"r{order_id}")
        return order_id

    Order.place, Order.charged, Order.charge = place, charged, charge  # type: ignore[attr-defined]
    return Order


def id_of(order: Any, key: str = "42") -> str:
    """Return an instance's id."""
    instance_id: str = order.find(key).saga.id
    return instance_id


def begin(order: Any, worker: Worker, sent: Any) -> None:
    """Have the order 42 send a message; everything that follows runs."""

    @order.starts
    def begin(order: Any, order_id: str) -> None:
        order.send(sent)

    begin.delay("42")
    worker.run()
    assert [done.error for done in worker.done if done.task.startswith("order.") and done.error] == []


class TestHandedOn:
    """Plain participants hand the correlation on."""

    def test_leads_a_handler_without_key_to_its_instance(self, worker: Worker, order: Any) -> None:
        order.place.delay("41")
        order.place.delay("42")
        worker.run()

        assert [order.find(key).receipts for key in ("41", "42")] == [["r41"], ["r42"]]

    def test_names_the_instance_and_the_cause(self, worker: Worker, order: Any) -> None:
        placed = order.place.delay("42")
        worker.one()
        (charge,) = worker.waiting()

        assert charge.headers[CAUSATION] == {"order": id_of(order)}
        assert charge.headers[CAUSE] == placed.id
        worker.one()
        (charged,) = worker.waiting()
        assert charged.headers[CAUSATION] == {"order": id_of(order)}
        assert charged.headers[CAUSE] == charge.id

    def test_through_any_number_of_tasks(self, app: Celery, worker: Worker, order: Any) -> None:
        @app.task(name="relay")
        def relay(count: int) -> None:
            (relay.si(count - 1) if count else order.charged.si("far")).delay()

        begin(order, worker, relay.si(3))

        assert order.find("42").receipts == ["far"]

    @pytest.mark.parametrize("how", ["link", "chain", "sent chain", "retry", "replace"])
    def test_through_what_follows_a_task(self, app: Celery, worker: Worker, order: Any, how: str) -> None:
        @app.task(name="pay", bind=True, default_retry_delay=0)
        def pay(self: Any) -> str:
            if how == "retry" and not self.request.retries:
                raise self.retry()
            if how == "replace":
                raise self.replace(other.si())
            return "paid"

        @app.task(name="other")
        def other() -> str:
            return "paid"

        @app.task(name="later")
        def later() -> None:
            chain(pay.si(), charged.s()).delay()

        charged, sent = order.charged, pay.si()
        if how in ("link", "retry"):
            sent.set(link=charged.s())
        else:
            sent = later.si() if how == "chain" else chain(sent, charged.s())
        begin(order, worker, sent)

        assert order.find("42").receipts == ["paid"]

    def test_through_a_group(self, app: Celery, worker: Worker, order: Any) -> None:
        """Each member of it may call a step, or be followed by one."""

        @app.task(name="member")
        def member(receipt: str) -> str:
            order.charged.delay(f"within {receipt}")
            return receipt

        @app.task(name="pay")
        def pay() -> None:
            group(member.s("1") | order.charged.s(), member.s("2")).delay()

        begin(order, worker, pay.si())

        assert sorted(order.find("42").receipts) == ["1", "within 1", "within 2"]

    @pytest.mark.parametrize("body", ["step", "task"])
    def test_through_a_chord(self, app: Celery, worker: Worker, order: Any, body: str) -> None:
        """Its body is published by whichever member ends last."""

        @app.task(name="member")
        def member(receipt: str) -> str:
            return receipt

        @app.task(name="join")
        def join(receipts: list[str]) -> str:
            order.charged.delay("+".join(sorted(receipts)))
            return "joined"

        @order.handles
        def all_charged(order: Any, receipts: list[str]) -> None:
            order.receipts += receipts

        @app.task(name="pay")
        def pay() -> None:
            chord([member.s("1"), member.s("2")], all_charged.s() if body == "step" else join.s()).delay()

        begin(order, worker, pay.si())

        assert sorted(order.find("42").receipts) == (["1", "2"] if body == "step" else ["1+2"])

    @pytest.mark.parametrize("how", ["error", "chord", "sent"])
    def test_through_what_follows_a_failure(self, app: Celery, worker: Worker, order: Any, how: str) -> None:
        @app.task(name="fail")
        def fail() -> None:
            raise ValueError("the card is blocked")

        @app.task(name="pay")
        def pay() -> None:
            if how == "chord":
                chord([fail.si(), fail.si()], fail.si().on_error(failed)).delay()
            else:
                fail.apply_async(link_error=failed)

        failed = order.charged.si("failed")
        begin(order, worker, fail.si().on_error(failed) if how == "sent" else pay.si())

        assert set(order.find("42").receipts) == {"failed"}

    def test_names_no_id_that_is_longer_than_a_step_takes(self, app: Celery, worker: Worker) -> None:
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="pay")
        def pay() -> None:
            other.delay()

        pay.apply_async(headers={MESSAGE_ID: "x" * 1_000_000})
        worker.one()

        (published,) = worker.waiting()
        assert published.headers[CAUSE] == "x" * 255

    def test_through_a_task_that_replaces_itself(self, app: Celery, worker: Worker, order: Any) -> None:
        """The replacement is the same message to those who wait for it, and has the same cause."""

        @app.task(name="other")
        def other() -> None:
            order.charged.delay("replaced")

        @app.task(name="pay", bind=True)
        def pay(self: Any) -> None:
            raise self.replace(other.si())

        begin(order, worker, pay.si())

        begun, _, replaced, _ = worker.done
        assert (replaced.headers[CAUSE], replaced.headers[CAUSATION]) == (begun.id, {"order": id_of(order)})
        assert order.find("42").receipts == ["replaced"]

    def test_what_a_replacement_bears_is_bounded(self, app: Celery, worker: Worker) -> None:
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="pay", bind=True)
        def pay(self: Any) -> None:
            raise self.replace(other.si())

        pay.apply_async(headers={CAUSE: "x" * 1_000, CAUSATION: {"order": "x" * 1_000, **{f"s{n}": "1" for n in range(20)}}})
        worker.one()

        (published,) = worker.waiting()
        assert published.headers[CAUSE] == "x" * 255
        assert published.headers[CAUSATION] == {f"s{n}": "1" for n in range(12, 20)}

    def test_through_another_service(self, new_app: NewApp, worker: Worker, order: Any) -> None:
        """It runs plain tasks in an app of its own."""
        bank = new_app()

        @bank.task(name="bank.transfer")
        def transfer() -> None:
            bank.send_task("order.charged", ("transferred",), queue=worker.app.conf.task_default_queue)

        worker.app.set_current()
        begin(order, worker, worker.app.signature("bank.transfer", queue=bank.conf.task_default_queue))
        Worker(bank).run()
        worker.run()

        assert order.find("42").receipts == ["transferred"]

    def test_of_another_saga_never_leads_here(self, worker: Worker, order: Any) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> None:
            parcel.send(order.charged.si("r"))

        pack.delay("1")
        worker.run()

        assert isinstance(worker.done[-1].error, CorrelationError)
        assert "no instance of order caused it" in str(worker.done[-1].error)

    def test_of_several_sagas_are_all_handed_on(self, worker: Worker, order: Any) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> None:
            parcel.send(order.charged.si("packed"))

        begin(order, worker, pack.si("1"))

        assert order.find("42").receipts == ["packed"]
        parcel = Parcel.find("1")
        assert parcel is not None
        assert worker.done[-1].headers[CAUSATION] == {"order": id_of(order), "parcel": parcel.saga.id}

    def test_of_a_completed_instance_reaches_no_later_one(self, worker: Worker, order: Any) -> None:
        """It is an id, not a key."""

        @order.handles
        def cancel(order: Any, order_id: str) -> None:
            order.complete()

        order.place.delay("42")
        worker.one()
        cancel("42")
        order.place("42")
        charged = [delivered for delivered in worker.run() if delivered.task == "order.charged"]

        assert len(charged) == 2
        assert order.find("42").receipts == ["r42"]


class TestStamping:
    """It never overwrites a header that is there, and never stamps a message with its own id."""

    def test_message_from_outside_has_none(self, worker: Worker, order: Any) -> None:
        order.place.delay("42")

        assert not {CAUSE, CAUSATION} & worker.waiting()[0].headers.keys()

    def test_plain_message_of_a_plain_task_names_its_cause(self, app: Celery, worker: Worker) -> None:
        @app.task(name="first")
        def first() -> None:
            app.send_task("second")

        sent = first.delay()
        worker.one()

        (second,) = worker.waiting()
        assert second.headers[CAUSE] == sent.id
        assert CAUSATION not in second.headers

    @pytest.mark.parametrize("header", [{CAUSATION: {"order": "theirs"}}, {CAUSE: "theirs"}])
    def test_headers_that_are_there_stay(self, app: Celery, worker: Worker, order: Any, header: dict[str, Any]) -> None:
        @app.task(name="first")
        def first() -> None:
            app.send_task("second", headers=header)

        first.apply_async(headers={CAUSATION: {"order": "mine"}})
        worker.one()

        (second,) = worker.waiting()
        assert {name: second.headers.get(name) for name in header} == header
        assert second.headers.get(CAUSATION, {}) != {"order": "mine"}

    def test_retry_is_not_its_own_cause(self, app: Celery, worker: Worker) -> None:
        @app.task(name="first", bind=True)
        def first(self: Any) -> None:
            raise self.retry()

        first.delay()
        worker.one()

        assert CAUSE not in worker.waiting()[0].headers

    def test_outside_a_task_nothing_is_stamped_after_one_ran(self, app: Celery, worker: Worker, order: Any) -> None:
        order.place.delay("42")
        worker.run()
        order.place.delay("43")

        assert CAUSE not in worker.waiting()[0].headers

    def test_at_most_eight(self, worker: Worker, order: Any) -> None:
        """The newest; this message's own among them."""
        causation = {f"saga-{n}": str(n) for n in range(10)}
        order.place.apply_async(("42",), headers={CAUSATION: causation})
        worker.one()

        (charge,) = worker.waiting()
        assert charge.headers[CAUSATION] == {f"saga-{n}": str(n) for n in range(3, 10)} | {"order": id_of(order)}

    def test_at_most_eight_through_a_plain_task(self, app: Celery, worker: Worker) -> None:
        @app.task(name="first")
        def first() -> None:
            app.send_task("second")

        first.apply_async(headers={CAUSATION: {f"saga-{n}": str(n) for n in range(10)}})
        worker.one()

        assert worker.waiting()[0].headers[CAUSATION] == {f"saga-{n}": str(n) for n in range(2, 10)}

    def test_message_of_a_worker_inherits_nothing_from_what_runs_around_it(self, app: Celery, worker: Worker, order: Any) -> None:
        """It was published: whoever published it could stamp it."""
        order.place("42")
        order.charged.delay("r")
        seen = []

        @app.task
        def around() -> None:
            delivered = worker.step()
            while delivered is not None and delivered.task != "order.charged":
                delivered = worker.step()
            seen.append(delivered)

        around.apply(headers={CAUSATION: {"order": id_of(order)}}, throw=True)

        (delivered,) = seen
        assert delivered is not None
        assert isinstance(delivered.error, CorrelationError)


@pytest.mark.parametrize(
    "header",
    [
        "text",
        5,
        None,
        [],
        [["order", "1"]],
        {"order": 5},
        {"order": None},
        {"order": ""},
        {"order": "x" * 256},
        {"": "1"},
        {"order": {}},
    ],
    ids=repr,
)
def test_malformed_header_is_ignored(worker: Worker, order: Any, header: object) -> None:
    """Anybody may send anything."""
    order.charged.apply_async(("r",), headers={CAUSATION: header})

    assert isinstance(worker.one().error, CorrelationError)


def test_unknown_instance_is_missing(worker: Worker, order: Any) -> None:
    """A causation is no proof that the instance is still there."""
    order.charged.apply_async(("r",), headers={CAUSATION: {"order": "gone"}})

    delivered = worker.one()
    assert (delivered.error, delivered.fate) == (None, "acked")


def test_instance_of_another_saga_is_missing(worker: Worker, order: Any) -> None:
    """Nor does a causation reach what is not of the type that it names."""

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: str

    @Parcel.starts
    def pack(parcel: Parcel, parcel_id: str) -> None: ...

    pack("1")
    parcel = Parcel.find("1")
    assert parcel is not None
    order.charged.apply_async(("r",), headers={CAUSATION: {"order": parcel.saga.id}})

    assert (worker.one().error, Parcel.find("1")) == (None, parcel)
    assert order.find("1") is None


def test_starter_is_led_nowhere(worker: Worker, order: Any) -> None:
    """It creates what its key names, whatever has caused it."""
    order.place("42")
    order.place.apply_async(("43",), headers={CAUSATION: {"order": id_of(order)}})
    worker.run()

    assert id_of(order, "43") != id_of(order)


class TestMessageId:
    """A producer may call a message by an id of its own."""

    @pytest.fixture
    def place(self, app: Celery) -> Any:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            count: int = 0
            sent: list[str] = []

        @app.task(name="plain")
        def plain() -> None: ...

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.count += 1
            order.sent += [order.saga.message.id, order.send(plain.si())]
            if order_id == "ends":
                order.complete()

        return place

    def test_two_messages_of_one_id_are_one(self, worker: Worker, place: Any) -> None:
        for _ in range(2):
            place.apply_async(("42",), headers={MESSAGE_ID: "mqtt-7"})
        worker.run()

        found = saga_of(place).find("42")
        assert (found.count, found.sent[0]) == (1, "mqtt-7")

    def test_also_for_a_starter_after_completion(self, worker: Worker, place: Any) -> None:
        for _ in range(2):
            place.apply_async(("ends",), headers={MESSAGE_ID: "mqtt-8"})
        worker.run()

        assert sum(done.task == "plain" for done in worker.done) == 1

    def test_what_it_causes_has_ids_of_its_own(self, worker: Worker, place: Any) -> None:
        for name in ("a", "b"):
            place.apply_async(("42",), headers={MESSAGE_ID: name})
        worker.run()

        sent = saga_of(place).find("42").sent
        assert len(set(sent)) == 4
        assert all(MESSAGE_ID not in done.headers for done in worker.done if done.task == "plain")

    @pytest.mark.parametrize("named", ["", "x" * 256, 5, "a\0b", ["x"]])
    def test_id_that_is_none(self, app: Celery, worker: Worker, place: Any, named: object) -> None:
        """Refused where it is sent, and where it arrives from a producer without this library."""
        with pytest.raises(InvalidMessage, match=MESSAGE_ID):
            place.apply_async(("42",), headers={MESSAGE_ID: named})
        app.send_task(place.name, ("42",), headers={MESSAGE_ID: named})

        assert isinstance(worker.one().error, InvalidMessage)


def saga_of(step: Any) -> Any:
    """Return the saga of a step."""
    return step.saga_step.saga.cls
