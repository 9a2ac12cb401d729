"""On a backend without aggregators, sagas run; aggregators and ``gather`` need ``saga_aggregator_backend``."""

import uuid
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.memory.state import wall_clock
from celery_sagas.stores.records import KEY, Lookup
from celery_sagas.testing import collected
from celery_sagas.worker.process import bootsteps
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.worker.aggregators.collectors import Reading, collector
from tests.worker.requests.quotes import BUFFER, begin, define, found, way

__all__ = ["way"]

#: How every error of these ends.
REMEDY = "a backend without aggregators. Set saga_aggregator_backend to the URL of a backend that has them."


def lacking() -> str:
    """Return the URL of a backend without aggregators."""
    return f"tests.apps:WithoutAggregators+memory://{uuid.uuid4()}"


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    """An app on a backend without aggregators."""
    app = new_app()
    app.conf.saga_backend = lacking()
    return app


@pytest.fixture
def helped(app: Celery) -> Celery:
    """The app with another backend for what aggregators buffer."""
    app.conf.saga_aggregator_backend = f"memory://{uuid.uuid4()}"
    return app


class TestAggregators:
    """An aggregator is refused before anything is consumed, and where an item is added."""

    def test_worker_does_not_start(self, app: Celery) -> None:
        collector(name="shop.audit")
        with pytest.raises(ConfigurationError) as caught:
            bootsteps.prepare(app, 1)
        assert str(caught.value) == f"the items of shop.audit cannot be kept in {backend_of(app).url}, {REMEDY}"

    def test_items_are_refused(self, app: Celery) -> None:
        """A process that only adds items prepares no backend."""
        collect, _ = collector()
        with pytest.raises(ConfigurationError, match="Set saga_aggregator_backend"):
            collect.add(Reading(device="d1"))

    def test_eager_app_is_refused(self, new_app: NewApp) -> None:
        app = new_app(eager=True)
        app.conf.saga_backend = lacking()
        collector()
        with pytest.raises(ConfigurationError, match="Set saga_aggregator_backend"):
            runtime_of(app)

    def test_another_backend_keeps_the_items(self, helped: Celery) -> None:
        collect, batches = collector()
        bootsteps.prepare(helped, 1)
        for device in ("d1", "d2"):
            collect.add(Reading(device=device))
        Worker(helped).run()
        assert [[item.device for item in items] for items in batches.items] == [["d1", "d2"]]

    def test_another_backend_without_aggregators_does_not_help(self, app: Celery) -> None:
        app.conf.saga_aggregator_backend = lacking()
        collector()
        with pytest.raises(ConfigurationError, match="Set saga_aggregator_backend"):
            bootsteps.prepare(app, 1)


class TestSagas:
    """What sagas alone need works."""

    def test_requests_and_timeouts(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            seen: list[str] = []

        @app.task(name="charge", acks_late=True)
        def charge(order_id: str) -> str:
            return f"receipt {order_id}"

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charge.s(order_id), then=paid)
            order.schedule(remind, after=60)

        @Order.handles
        def paid(order: Order, receipt: str) -> None:
            order.seen.append(receipt)

        @Order.handles
        def remind(order: Order) -> None:
            order.seen.append("reminded")
            order.complete()

        bootsteps.prepare(app, 1)
        place.delay("42")
        worker.run()
        assert Order.find("42").seen == ["receipt 42"]
        monkeypatch.setattr(backend_of(app).outbox, "_clock", lambda: wall_clock() + 60_000)
        sweep = open_relay(runtime_of(app)).sweep()
        worker.run()
        assert (sweep.error, sweep.sent) == ("", 1)
        assert Order.find("42") is None
        assert backend_of(app).journal.outcome_of(["order"], "42") is not None


class TestGather:
    """The answers to a gather are collected in the buffers of a backend."""

    def test_it_is_refused_at_the_call(self, app: Celery, worker: Worker) -> None:
        shop = define(app)
        begin(shop, worker, [3, 1])
        (delivered,) = worker.done
        assert str(delivered.error).endswith(f"the answers of gather() cannot be kept in {backend_of(app).url}, {REMEDY}")
        assert backend_of(app).sagas.find(Lookup(("order",), KEY, "42")).record is None
        assert worker.waiting() == []

    def test_handler_that_is_called_as_a_function_may_gather(self, app: Celery) -> None:
        """Nothing of it leaves the process, and its test needs no backend."""
        shop = define(app)
        order = shop.saga(order_id="42")
        shop.place.handler(order, "42", [3, 1])
        assert [message.args for message in collected(order).messages] == [(3,), (1,)]

    def test_another_backend_collects_the_answers(self, helped: Celery, worker: Worker, way: None) -> None:
        shop = define(helped)
        bootsteps.prepare(helped, 1)
        begin(shop, worker, [3, 1])
        buffered, answered = [], []
        while worker.step():
            buffered.append(runtime_of(helped).batches.buffers.count(BUFFER).buffered)
            answered += [gather.answered for gather in found(shop).saga.gathers.values()]
        assert (0,) in answered
        assert 1 in buffered
        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])
        assert runtime_of(helped).batches.buffers.count(BUFFER).buffered == 0

    def test_relay_of_it_ends_what_is_left(self, helped: Celery, worker: Worker) -> None:
        define(helped)
        relay = open_relay(runtime_of(helped))
        assert relay.gathers is not None
        assert relay.gathers.gathering.answers is runtime_of(helped).batches
        assert relay.sweep().error == ""

    def test_late_answer_is_dropped(self, app: Celery, worker: Worker) -> None:
        """An instance that waits for it may have been stored before the backend was changed."""
        shop = define(app)
        gathering: Any = runtime_of(app).gathering_in(runtime_of(app).backend)
        gathering.forget(shop.saga.__saga__, "id", "request")
        assert open_relay(runtime_of(app)).gathers is None
