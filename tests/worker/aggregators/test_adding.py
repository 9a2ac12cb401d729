"""Items that a step sends, and that a task adds."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import InvalidMessage, MisuseError
from tests.apps import NewApp, Worker
from tests.worker.aggregators.collectors import Reading, collector, counts, ids

D1, D2 = Reading(device="d1"), Reading(device="d2")


class TestInAStep:
    """A step's effects are one commit."""

    def order(self) -> Any:
        """Define a saga."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        return Order

    @pytest.mark.parametrize("how", ["add", "add_many", "nested add", "call"])
    def test_add_is_refused(self, app: Celery, how: str) -> None:
        collect, _ = collector()
        Order = self.order()

        @app.task
        def plain() -> None:
            collect.add(D1)

        give = {
            "add": lambda: collect.add(D1),
            "add_many": lambda: collect.add_many([D1]),
            "nested add": lambda: plain.apply(throw=True),
            "call": lambda: collect(D1),
        }[how]

        @Order.starts
        def place(order: Any, order_id: str) -> None:
            give()

        with pytest.raises(MisuseError, match=r"send it: order\.send"):
            place("42")
        assert (Order.find("42"), counts(app).buffered) == (None, 0)

    @pytest.mark.parametrize("is_eager", [False, True])
    def test_send(self, new_app: NewApp, is_eager: bool) -> None:
        """It joins the outbox."""
        app = new_app(eager=is_eager)
        collect, collected = collector(size=1)
        Order = self.order()

        @Order.starts
        def place(order: Any, order_id: str) -> None:
            order.send(collect.s(D1))
            assert counts(app).buffered == 0

        place.delay("42")
        if not is_eager:
            Worker(app).run()

        assert collected.items == [[D1]]
        assert Order.find("42") is not None

    def test_send_is_published_again_under_its_id(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(size=9)
        Order = self.order()

        @Order.starts
        def place(order: Any, order_id: str) -> None:
            order.send(collect.s(D1))

        place.delay("42")
        worker.one()
        sent = worker.one()
        worker.deliver_again(sent)

        assert ids(app) == [sent.id]

    def test_wrong_item_is_refused_where_it_is_sent(self, app: Celery) -> None:
        collect, _ = collector()
        Order = self.order()

        @Order.starts
        def place(order: Any, order_id: str) -> None:
            order.send(collect.s({"celsius": 5}))

        with pytest.raises(InvalidMessage, match="device"):
            place("42")
        assert Order.find("42") is None


class TestInATask:
    """What a plain task adds, or publishes, is the same when it is delivered again."""

    @pytest.mark.parametrize(
        "give",
        [
            lambda collect: [collect.add(D1), collect.add(D1), *collect.add_many([D1, D2])],
            lambda collect: [collect.delay(reading).id for reading in (D1, D1, D1, D2)],
        ],
    )
    def test_ids_are_derived(self, app: Celery, worker: Worker, give: Any) -> None:
        collect, _ = collector(size=99)
        given: list[list[str]] = []

        @app.task
        def measure() -> None:
            given.append(give(collect))

        measure.delay()
        delivered = worker.one()
        worker.run()
        worker.deliver_again(delivered)
        worker.run()
        measure.delay()
        worker.run()

        first, again, other = given
        assert first == again
        assert len(set(first) | set(other)) == 8
        assert collect.read() == [D1, D1, D1, D2] * 2

    def test_ids_that_are_given_are_kept(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(size=99)

        @app.task
        def measure() -> None:
            collect.add(D1, id="a")

        measure.delay()
        worker.run()

        assert ids(app) == ["a"]


@pytest.mark.parametrize("id", [None, "", 7, "a" * 256, "a\0b", "\ud800", "a\nb"])
def test_id_that_no_store_keeps_is_refused(app: Celery, id: Any) -> None:
    collect, _ = collector(size=99)
    with pytest.raises(InvalidMessage, match="1 to 255 printable"):
        collect.add_many([D1, D2], ids=["b", id])
    assert ids(app) == []
