"""Sagas in backends of their own: everything of an instance is in the one that its class names."""

import uuid
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection

from celery_sagas import Gathered, Saga
from celery_sagas.core.registry import registry
from celery_sagas.engine import waves
from celery_sagas.errors import ConfigurationError, DefinitionError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing import SagaHarness
from celery_sagas.testing.samples import dead_letter
from celery_sagas.worker.batches.steps import consumer_for, handle_together
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.process import bootsteps
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.cli.test_dead import WHY
from tests.cli.test_describe import run
from tests.waiting import DEADLINE_S
from tests.worker.consumers import Consumer

HOUR = timedelta(hours=1)
Shop = Any


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    """An app with a further backend."""
    return new_app(saga_backends={"orders": {"backend": f"memory://{uuid.uuid4()}"}})


@pytest.fixture
def shop(app: Celery) -> Shop:
    """An order that lives elsewhere, and its parcel, which does not."""
    shop = SimpleNamespace(app=app, fails=False)

    class Order(Saga, correlate_by="order_id", backend="orders"):
        order_id: str
        status: str = ""
        answers: list[Any] = []

    class Parcel(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.status = "placed"
        order.schedule(remind, after=HOUR)

    @Order.starts
    def ship(order: Order, order_id: str) -> None:
        order.send(pack.si(order_id=order_id), then=packed)

    @Order.starts
    def ask(order: Order, order_id: str) -> None:
        order.gather([quote.s(number) for number in range(3)], then=quoted)

    @Order.starts
    def fail(order: Order, order_id: str) -> None:
        if shop.fails:
            raise ValueError(order_id)

    @Order.handles
    def remind(order: Order) -> None:
        order.status = "reminded"
        if shop.fails:
            raise ValueError(order.order_id)

    @Order.handles
    def packed(order: Order, answer: str) -> None:
        order.status = answer
        order.complete()

    @Order.handles
    def quoted(order: Order, quotes: Gathered[int]) -> None:
        order.answers = list(quotes.answers.values())

    @Order.handles(if_missing="defer", defer_for=HOUR)
    def pay(order: Order, order_id: str) -> None:
        order.status = "paid"

    @Parcel.starts
    def pack(parcel: Parcel, order_id: str) -> None:
        parcel.reply("packed")
        parcel.complete()

    @app.task(name="quote", shared=False)
    def quote(number: int) -> int:
        return number * 10

    app.finalize()
    for step in (place, ship, ask, fail, remind, packed, quoted, pay, pack):
        setattr(shop, step.name.rpartition(".")[2], step)
    shop.order, shop.parcel = Order, Parcel
    return shop


def elsewhere(app: Celery) -> Backend:
    """Return the further backend."""
    named = runtime_of(app).backends.named
    assert named is not None
    return named["orders"]


def history(backend: Backend, key: str = "1") -> list[str]:
    return [entry.step for entry in backend.journal.history(["order", "parcel"], key, 100)]


class TestAnInstance:
    """With its journal, its timeouts and what it has sent."""

    def test_is_in_the_backend_that_its_class_names(self, shop: Shop, worker: Worker) -> None:
        shop.place.delay(order_id="1")
        worker.run()
        assert shop.order.find("1").status == "placed"
        assert (history(elsewhere(shop.app)), history(backend_of(shop.app))) == (["order.place"], [])
        assert (elsewhere(shop.app).outbox.count(), backend_of(shop.app).outbox.count()) == (1, 0)

    def test_is_waited_for_and_remembered_there(self, shop: Shop, worker: Worker) -> None:
        shop.ship.delay(order_id="1")
        worker.run()
        assert shop.order.find("1") is None
        assert shop.order.outcome("1").step == "order.packed"
        assert shop.order.wait("1", until="completed", timeout=0).step == "order.packed"

    def test_exchanges_messages_with_one_in_another_backend(self, shop: Shop, worker: Worker) -> None:
        shop.ship.delay(order_id="1")
        worker.run()
        assert history(elsewhere(shop.app)) == ["order.ship", "order.packed"]
        assert history(backend_of(shop.app)) == ["parcel.pack"]
        assert [backend.outbox.count() for backend in runtime_of(shop.app).backends] == [0, 0]

    def test_gathers_there(self, shop: Shop, worker: Worker) -> None:
        shop.ask.delay(order_id="1")
        worker.run()
        assert sorted(shop.order.find("1").answers) == [0, 10, 20]
        assert backend_of(shop.app).buffers.names() == []

    def test_is_found_by_a_message_that_was_deferred(self, shop: Shop, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_sagas.worker.failures.deferral._IN_WORKERS_S", 0.0)
        shop.pay.delay(order_id="1")
        worker.run()
        assert (elsewhere(shop.app).outbox.count(), backend_of(shop.app).outbox.count()) == (1, 0)
        shop.place.delay(order_id="1")
        worker.run()
        (waiting,) = [row for row in rows_in(elsewhere(shop.app)) if row.task == "order.pay"]
        runtime_of(shop.app).publisher.publish(waiting)
        worker.run()
        assert shop.order.find("1").status == "paid"

    def test_handles_a_repeated_message_once(self, shop: Shop, worker: Worker) -> None:
        shop.place.delay(order_id="1")
        (placed,) = worker.run()
        worker.deliver_again(placed)
        assert history(elsewhere(shop.app)) == ["order.place"]


def rows_in(backend: Backend) -> list[Any]:
    """Return what is in an outbox, whenever it is due."""
    return [row.message for row in backend.outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]


class TestDeadLetters:
    """They are with the instance, and an operator sees them beside those of others."""

    def test_are_kept_and_retried_there(self, shop: Shop, worker: Worker) -> None:
        shop.fails = True
        shop.fail.delay(order_id="1")
        worker.run()
        (dead_letter,) = elsewhere(shop.app).dead.list(10)
        assert backend_of(shop.app).dead.count() == 0
        assert dead_letter.id in run(shop.app, "dead", "list").output
        assert "ValueError" in run(shop.app, "dead", "show", dead_letter.id).output

        shop.fails = False
        assert retry_dead_letter(runtime_of(shop.app), dead_letter).id
        worker.run()
        assert shop.order.find("1") is not None
        assert elsewhere(shop.app).dead.count() == 0

    def test_are_shown_once_if_two_names_are_one_database(self, new_app: NewApp, tmp_path: Path) -> None:
        file = tmp_path / "sagas.sqlite3"
        app = new_app(saga_backends={"orders": {"backend": f"db+sqlite:///{file}"}}, saga_outbox_backend="orders")
        app.conf.saga_backend = f"sqlite:///{file}"
        runtime_of(app).prepare(processes=1)
        backend_of(app).dead.add(made := dead_letter())
        assert run(app, "dead", "list").output.count(made.id) == 1
        discarded = run(app, "dead", "discard", *WHY, "--all", "--yes")
        assert (discarded.exit_code, elsewhere(app).dead.count()) == (0, 0)

    def fail_timeout(self, shop: Shop, worker: Worker) -> DeadLetter:
        shop.place.delay(order_id="1")
        worker.run()
        shop.fails = True
        (row,) = rows_in(elsewhere(shop.app))
        runtime_of(shop.app).publisher.publish(row)
        worker.run()
        (dead_letter,) = elsewhere(shop.app).dead.list(10)
        return dead_letter

    def test_of_a_timeout_is_discarded_with_the_wait_for_it(self, shop: Shop, worker: Worker) -> None:
        dead_letter = self.fail_timeout(shop, worker)
        assert [discard_dead_letter(runtime_of(shop.app), dead_letter) for _ in range(2)] == [True, False]

    def test_of_an_instance_that_has_completed_is_not_sent_again(self, shop: Shop, worker: Worker) -> None:
        dead_letter = self.fail_timeout(shop, worker)
        shop.ship.delay(order_id="1")
        worker.run()
        retried = retry_dead_letter(runtime_of(shop.app), dead_letter)
        assert (retried.id, "does not wait for it any more" in retried.reason) == ("", True)


class TestStart:
    """A worker prepares the backends of its sagas, and its relay sweeps them."""

    def test_each_is_prepared(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        prepared: list[Backend] = []
        for backend in runtime_of(shop.app).backends.opened:
            monkeypatch.setattr(backend, "prepare", lambda *, backend=backend, **_: prepared.append(backend) or [])
        bootsteps.prepare(shop.app, 2)
        assert prepared == [backend_of(shop.app), elsewhere(shop.app)]

    def test_one_that_no_saga_names_is_left_alone(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        assert list(runtime_of(app).backends) == [backend_of(app)]
        assert runtime_of(app).backends.opened == [backend_of(app), elsewhere(app)]

    @pytest.mark.parametrize("name", ["elsewhere", "orders.2"])
    def test_an_unknown_name_is_refused(self, app: Celery, name: str) -> None:
        class Order(Saga, correlate_by="order_id", backend=name):
            order_id: str

        expected = f"{Order.__qualname__} names the backend '{name}', and saga_backends has orders. Add it: saga_backends = "
        for use in (lambda: bootsteps.prepare(app, 1), lambda: Order.find("1"), lambda: Order.outcome("1")):
            with pytest.raises(ConfigurationError) as caught:
                use()
            assert str(caught.value).startswith(expected)

    @pytest.mark.parametrize("setting", ["saga_aggregator_backend", "saga_outbox_backend"])
    def test_an_unknown_name_in_a_setting_is_refused(self, app: Celery, setting: str) -> None:
        app.conf[setting] = "order"
        with pytest.raises(ConfigurationError, match=f"{setting} names the backend 'order', and saga_backends has orders"):
            runtime_of(app)

    @pytest.mark.parametrize("setting", ["saga_aggregator_backend", "saga_outbox_backend"])
    @pytest.mark.parametrize("wrong", ["shop:secret@localhost/orders", ""])
    def test_neither_a_url_nor_a_name_in_a_setting_is_refused(self, app: Celery, setting: str, wrong: str) -> None:
        app.conf[setting] = wrong
        with pytest.raises(ConfigurationError, match=f"{setting} is neither the URL of a backend nor its name") as caught:
            runtime_of(app)
        assert "secret" not in str(caught.value)

    def test_a_setting_may_name_one(self, app: Celery) -> None:
        app.conf.update(saga_aggregator_backend="orders", saga_outbox_backend="orders")
        runtime = runtime_of(app)
        assert runtime.batches is runtime.outbox is elsewhere(app)
        assert list(runtime.backends) == [backend_of(app), elsewhere(app)]

    def test_one_url_with_the_same_options_is_one_backend(self, app: Celery) -> None:
        app.conf.saga_backends = {name: {"backend": app.conf.saga_backend} for name in ("orders", "again")}
        runtime = runtime_of(app)
        assert runtime.backends.opened == [runtime.backend]

    def test_a_transaction_is_that_of_its_own_backend(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id", backend="orders"):
            order_id: str

        @Order.starts(transaction=Connection)
        def place(order: Order, connection: Connection, order_id: str) -> None: ...

        url = elsewhere(app).url
        with pytest.raises(ConfigurationError) as caught:
            bootsteps.prepare(app, 1)
        assert str(caught.value).startswith(f"order.place has transaction=, but {url} takes no part")
        assert 'Set saga_backends["orders"]["backend"] to the URL' in str(caught.value)

    def test_a_journal_that_forgets_too_early_is_refused(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        class Order(Saga, correlate_by="order_id", backend="orders", keep=HOUR):
            order_id: str

        monkeypatch.setattr(elsewhere(app), "journal_retention_s", 60.0)
        with pytest.raises(ConfigurationError, match="Order keeps final states for 3600 s, and the journal its entries for 60 s"):
            bootsteps.prepare(app, 1)

    def test_each_has_a_relay_with_its_gathers(self, shop: Shop) -> None:
        runtime = runtime_of(shop.app)
        relays = [open_relay(runtime, backend) for backend in runtime.backends]
        assert [relay.backend for relay in relays] == [backend_of(shop.app), elsewhere(shop.app)]
        named = [[saga.name for saga in relay.gathers.sagas()] for relay in relays if relay.gathers]
        assert named == [["parcel"], ["order"]]

    def test_what_a_process_has_left_is_sent(self, shop: Shop, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatcher = runtime_of(shop.app).dispatcher_of(elsewhere(shop.app))
        monkeypatch.setattr(dispatcher, "dispatch", lambda rows, at: None)
        shop.ship.delay(order_id="1")
        worker.run()
        assert shop.parcel.outcome("1") is None
        (row,) = rows_in(elsewhere(shop.app))
        elsewhere(shop.app).outbox.release(dispatcher.owner, [row.id])
        open_relay(runtime_of(shop.app), elsewhere(shop.app)).sweep()
        worker.run()
        assert history(backend_of(shop.app)) == ["parcel.pack"]


class TestDefinition:
    """The class keyword."""

    def test_is_inherited_from_an_abstract_class(self, app: Celery) -> None:
        class Orders(Saga, backend="orders"):
            order_id: str

        class Order(Orders, correlate_by="order_id"): ...

        class Other(Orders, correlate_by="order_id", backend="other"): ...

        assert [saga.backend for saga in registry.sagas.values()] == ["orders", "other"]

    @pytest.mark.parametrize("wrong", ["", "postgresql://shop:secret@host/orders", "with space", 3, "x" * 65])
    def test_anything_but_a_name_is_refused(self, app: Celery, wrong: Any) -> None:
        with pytest.raises(DefinitionError, match="backend= is no name of a backend") as caught:

            class Order(Saga, correlate_by="order_id", backend=wrong):
                order_id: str

        assert "secret" not in str(caught.value)


class TestBatches:
    """Messages that are handled together are about instances in one backend."""

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a batch take its time, however busy the machine is."""
        monkeypatch.setattr(waves, "BATCH_S", DEADLINE_S)

    def test_of_each_backend_are_apart(self, shop: Shop) -> None:
        consumer, tasks = Consumer(), shop.app.tasks
        place, ship, pack = (consumer_for(tasks[name], consumer) for name in ("order.place", "order.ship", "parcel.pack"))
        assert place is ship
        assert place is not pack

    def test_hand_over_what_stays_in_the_backend(self, shop: Shop) -> None:
        assert self.handle(shop, shop.place) == []

    def test_publish_what_goes_to_another(self, shop: Shop) -> None:
        assert self.handle(shop, shop.pack) == ["parcel.pack"]

    def handle(self, shop: Shop, step: Any) -> list[str]:
        """Handle a message of a step that sends to another; return what is published."""

        @shop.order.starts
        def begin(order: Any, order_id: str) -> None:
            order.send(step.si(order_id=order_id))

        described = {"task": begin.name, "id": "m1", "args": [], "kwargs": {"order_id": "1"}, "hostname": "w1@host"}
        request = described | {"retries": 0, "delivery_info": {"redelivered": False}}
        settled = handle_together([request], queues=(shop.app.conf.task_default_queue,))
        assert settled.left == []
        return [delivered.task for delivered in Worker(shop.app).waiting()]


class TestCommands:
    """They look where the saga lives."""

    def test_a_history_is_exported_and_replayed(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id", backend="orders", history="messages"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place.delay(order_id="1")
        worker.run()
        assert '"saga": "order"' in run(app, "export", "order", "1").output
        assert "1 instance was replayed" in run(app, "replay", "order", "--since", "1h").output

    def test_instances_are_renamed(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id", backend="orders"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place.delay(order_id="1")
        worker.run()
        registry.sagas.clear()
        registry.steps.clear()

        class Purchase(Saga, correlate_by="order_id", backend="orders", formerly="order"):
            order_id: str

        assert "purchase  order     1" in run(app, "rename").output
        assert "1 instance was moved from order, 0 are left" in run(app, "rename", "--all").output

    def test_describe_names_it(self, shop: Shop) -> None:
        assert "\n  backend: orders\n" in run(shop.app, "describe", "order").output
        assert "backend:" not in run(shop.app, "describe", "parcel").output

    def test_schema_of_a_name(self, app: Celery) -> None:
        options = {"schema": "sagas", "table_prefix": "shop_"}
        app.conf.saga_backends = {"orders": {"backend": "postgresql://host/x", "options": options}}
        assert "CREATE TABLE sagas.shop_saga_instance" in run(app, "schema", "--backend", "orders").output
        assert (
            "--backend names the backend 'nosuch', and saga_backends has orders"
            in run(app, "schema", "--backend", "nosuch").output
        )


def test_the_harness_has_one_backend_for_all(app: Celery) -> None:
    class Order(Saga, correlate_by="order_id", backend="nowhere"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    with SagaHarness(app) as harness:
        harness.send(place, order_id="1")
        harness.run()
        assert harness.state(Order, "1") is not None
