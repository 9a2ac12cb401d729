"""The facts of an app, its broker and its backends, as they are read."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, shared_task
from kombu import Queue

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.doctor.facts import Configuration, Store
from celery_sagas.operate.doctor.reading import ahead, open_app, outside, read_broker, read_configuration, read_store
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.settings import Settings
from celery_sagas.stores.memory.journal import MemoryJournal
from celery_sagas.stores.memory.outbox import MemoryOutbox
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.samples import HOUR, MINUTE, claim, dead_letter, ids, outgoing, send, start
from celery_sagas.testing.view import nothing_written
from tests.apps import NewApp, backend_of


@pytest.fixture
def shop(definitions: None) -> Any:
    """A saga that asks participants."""

    @shared_task(name="shop.pay", acks_late=True, time_limit=30)
    def pay() -> None: ...

    @shared_task(name="shop.notify")
    def notify() -> None: ...

    class Order(Saga, correlate_by="order_id", schema_version=3):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(pay.si(), then=paid)
        order.send(notify.si(), then=paid)
        order.send(notify.si(), then=paid, within=60, otherwise=paid)
        order.send(notify.si())

    @Order.handles
    def paid(order: Order) -> None: ...

    @Order.handles(acks_late=False)
    def early(order: Order) -> None: ...

    return SimpleNamespace(Order=Order)


def configured(app: Celery) -> Configuration:
    """Read what an app's settings say."""
    opened = open_app(app)
    try:
        return read_configuration(app, opened)
    finally:
        if opened.backends is not None:
            opened.backends.close()


class TestConfiguration:
    """No server is asked."""

    def test_what_definitions_say(self, app: Celery, shop: Any) -> None:
        facts = configured(app)
        assert facts.refusals == []
        assert facts.early_requests == [("order.place", "shop.notify")]
        assert facts.early_steps == ["order.early"]
        assert facts.limits_s == {"shop.pay": 30.0}
        assert (facts.retention_s, facts.redelivery_s, facts.default_file) == (7 * 86_400.0, None, "")

    def test_time_limit_of_the_app(self, app: Celery, shop: Any) -> None:
        app.conf.task_time_limit = 600
        facts = configured(app)
        assert facts.limits_s["order.place"] == 600
        assert facts.limits_s["shop.pay"] == 30
        assert "shop.notify" not in facts.limits_s  # it is never delivered again

    @pytest.mark.parametrize(
        ("url", "options", "redelivery_s", "is_assumed"),
        [
            ("redis://127.0.0.1:1", {}, 3600.0, False),
            ("redis://127.0.0.1:1", {"visibility_timeout": 60}, 60.0, False),
            ("amqp://127.0.0.1:1", {}, 1800.0, True),
            ("no-such-broker://127.0.0.1", {}, None, False),
        ],
    )
    def test_time_after_which_the_broker_delivers_again(
        self, new_app: NewApp, shop: Any, url: str, options: dict[str, int], redelivery_s: float | None, is_assumed: bool
    ) -> None:
        app = new_app(broker_transport_options=options)
        app.conf.broker_url = app.conf.broker_write_url = app.conf.broker_read_url = url
        facts = configured(app)
        assert (facts.redelivery_s, facts.is_redelivery_assumed) == (redelivery_s, is_assumed)

    def test_wrong_setting(self, app: Celery, shop: Any) -> None:
        app.conf.saga_batch = 0
        facts = configured(app)
        [(problem, _)] = facts.refusals
        assert "saga_batch" in problem
        assert facts.early_steps == ["order.early"]  # the rest is read all the same
        assert facts.retention_s is None

    def test_backend_that_the_settings_lack(self, app: Celery, definitions: None) -> None:
        class Parcel(Saga, correlate_by="number", backend="parcels"):
            number: str

        [(problem, remedy)] = configured(app).refusals
        assert "names the backend 'parcels'" in problem
        assert "saga_backends" in remedy

    def test_backend_that_keeps_no_saga(self, new_app: NewApp, shop: Any) -> None:
        """Its journal is none that matters."""
        app = new_app(saga_backends={"other": {"backend": "redis://127.0.0.1:1/0"}})
        assert configured(app).retention_s == 7 * 86_400.0

    def test_queue_that_drops_messages(self, new_app: NewApp, shop: Any) -> None:
        app = new_app(task_queues=[Queue("q", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})])
        [(problem, _)] = configured(app).refusals
        assert "x-delivery-limit of 5" in problem

    def test_definition_that_is_refused(self, app: Celery, definitions: None) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        [(problem, _)] = configured(app).refusals
        assert "place" in problem

    def test_default_file(self, app: Celery, shop: Any) -> None:
        del app.conf["saga_backend"]
        assert configured(app).default_file.endswith("celery-sagas.sqlite3")


class TestBroker:
    """Nothing is published."""

    def test_broker_that_is_there(self, app: Celery) -> None:
        broker = read_broker(app)
        assert (broker.error, broker.driver, broker.confirms) == ("", "memory", None)

    @pytest.mark.parametrize("url", ["redis://:s3cret@127.0.0.1:1/0", "amqp://guest:s3cret@127.0.0.1:1//"])
    def test_broker_that_is_away(self, new_app: NewApp, url: str) -> None:
        app = new_app(broker_transport_options={"confirm_publish": False, "read_timeout": 5})
        app.conf.broker_url = app.conf.broker_write_url = app.conf.broker_read_url = url
        broker = read_broker(app)
        assert "refused" in broker.error
        assert "s3cret" not in f"{broker.url} {broker.error}"
        assert (broker.confirms, broker.has_timeouts) == (False, True)

    def test_broker_of_no_kind(self, new_app: NewApp) -> None:
        app = new_app()
        app.conf.broker_url = app.conf.broker_write_url = app.conf.broker_read_url = "no-such-broker://127.0.0.1"
        assert "no-such-broker" in read_broker(app).error


def stored(app: Celery, **known: int) -> Store:
    """Read the backend of an app."""
    return read_store(backend_of(app), Settings(), registry.sagas.values(), known)


class TestStore:
    """Nothing is changed."""

    @pytest.fixture
    def backend(self, app: Celery, shop: Any) -> Backend:
        return backend_of(app)

    def test_empty_one(self, app: Celery, backend: Backend) -> None:
        facts = stored(app)
        assert facts.is_read
        assert (facts.due, facts.oldest_due_ms, facts.failing, facts.late, facts.dead_letters) == (0, 0, [], 0, 0)
        assert (facts.journal_ms, facts.retention_ms, facts.newer) == (0, 7 * 24 * HOUR, {})

    def test_everything(self, app: Celery, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        send(backend, *(outgoing("scheduled", due_at=1) for _ in range(3)))
        failing, published, _ = ids(claim(backend))
        backend.outbox.fail("relay", failing, "no queue", HOUR)
        backend.outbox.confirm("relay", [published], 24 * HOUR)
        backend.dead.add(dead_letter())
        now = backend.outbox.time()
        monkeypatch.setattr(MemoryOutbox, "time", lambda _: now + LATE_MS + MINUTE)
        monkeypatch.setattr(MemoryJournal, "oldest_at", lambda _: now)
        with nothing_written(backend):
            facts = stored(app)
        assert [row.id for row in facts.failing] == [failing]
        assert facts.late == 2  # one was published, and one was never tried
        assert facts.dead_letters == 1
        assert facts.journal_ms == LATE_MS + MINUTE
        assert LATE_MS <= facts.ahead_ms <= LATE_MS + MINUTE

    @pytest.mark.parametrize(("rows", "cut"), [(3, {"due", "late"}), (4, set[str]())])
    def test_counts_that_stop(
        self, app: Celery, backend: Backend, monkeypatch: pytest.MonkeyPatch, rows: int, cut: set[str]
    ) -> None:
        """Three rows that no relay has taken; one of them is no timeout."""
        send(backend, *(outgoing("scheduled", due_at=1) for _ in range(2)), outgoing(due_at=1))
        later = backend.outbox.time() + LATE_MS + MINUTE
        monkeypatch.setattr(MemoryOutbox, "time", lambda _: later)
        monkeypatch.setattr("celery_sagas.operate.doctor.reading._ROWS", rows)
        facts = stored(app)
        assert (facts.due, facts.late, facts.cut) == (3, 2, cut)

    @pytest.mark.parametrize(("rows", "cut"), [(1, {"failing", "late"}), (2, set[str]())])
    def test_look_at_what_was_tried_stops(
        self, app: Celery, backend: Backend, monkeypatch: pytest.MonkeyPatch, rows: int, cut: set[str]
    ) -> None:
        send(backend, outgoing())
        backend.outbox.fail("relay", ids(claim(backend))[0], "no queue", HOUR)
        monkeypatch.setattr("celery_sagas.operate.doctor.reading._ROWS", rows)
        facts = stored(app)
        assert (len(facts.failing), facts.cut) == (1, cut)

    def test_newer_instances(self, app: Celery, backend: Backend) -> None:
        """The sample has the schema version 3."""
        start(backend)
        assert stored(app).newer == {}
        registry.sagas["order"] = replace(registry.sagas["order"], schema_version=2)
        assert stored(app).newer == {"order": (3, 2)}
        assert stored(app, order=3).newer == {}  # a worker has the code

    def test_store_that_goes_away(self, app: Celery, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(*_: object) -> Any:
            raise StoreUnavailable("memory://", "it is away")

        monkeypatch.setattr(MemoryOutbox, "tally", away)
        facts = stored(app)
        assert not facts.is_read
        assert "it is away" in facts.error

    def test_nothing_is_read_where_nothing_is_stored(self, new_app: NewApp, shop: Any, tmp_path: Path) -> None:
        app = new_app()
        app.conf.saga_backend = f"sqlite:///{tmp_path}/none.sqlite3"
        facts = stored(app)
        assert not facts.is_read
        assert facts.error == ""
        assert list(tmp_path.iterdir()) == []


def test_clocks() -> None:
    assert [outside(at, 10, 20) for at in (5, 10, 15, 20, 27)] == [-5, 0, 0, 0, 7]
    assert ahead(lambda: 10**15) > 0
    assert ahead(lambda: 0) < 0
