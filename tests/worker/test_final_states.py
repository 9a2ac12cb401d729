"""What stays of a finished instance, wherever sagas are kept."""

from datetime import timedelta
from typing import Annotated, Any

import pytest
from celery import Celery
from pydantic import Field

from celery_sagas import Saga, signals
from celery_sagas.engine.history import history_of
from celery_sagas.errors import ConfigurationError
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.every_store import stored_app, url
from tests.waiting import wait_until
from tests.worker.requests.trips import on_every_store

__all__ = ["stored_app", "url"]

#: More than a column of 64 KiB takes, in characters that JSON escapes, or that have several bytes.
LONG = '"Größe"\\\n' * 10_000


def define(keep: Any) -> Any:
    """Define a saga whose final state is kept."""

    class Order(Saga, correlate_by="order_id", keep=keep):
        order_id: str
        note: str = ""

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    @Order.starts
    def finish(order: Order, order_id: str, note: str = "") -> None:
        order.note = note
        order.complete()

    return Order, place, finish


@on_every_store
class TestEveryStore:
    """On each store."""

    def test_final_state(self, url: str, app: Celery, worker: Worker) -> None:
        order, place, finish = define(timedelta(hours=1))
        place.delay("42")
        worker.run()
        found = order.find("42")
        finish.delay("42", LONG)
        finish.delay("43", "at once")
        done = worker.run()
        worker.deliver_again(done[0])

        assert order.find("42") is None
        state = order.outcome("42").state
        assert (type(state), state.note, state.saga.version) == (order, LONG, 2)
        assert (state.saga.id, state.saga.created_at) == (found.saga.id, found.saga.created_at)
        assert state.saga.updated_at == order.outcome("42").at >= found.saga.updated_at
        assert order.outcome("43").state.note == "at once"
        assert order.wait("42", until="completed", timeout=0).state == state
        assert [entry.outcome for entry in backend_of(app).journal.history(["order"], "42", 9)] == ["started", "completed"]

    def test_state_as_large_as_may_be(self, url: str, app: Celery, worker: Worker) -> None:
        """All of it is escaped twice."""
        order, _, finish = define(timedelta(hours=1))
        note = '"' * 499_900
        finish.delay("42", note)
        (done,) = worker.run()

        assert done.error is None
        assert order.outcome("42").state.note == note

    def test_it_ends(self, url: str, app: Celery, worker: Worker) -> None:
        """By the clock of the store."""
        order, _, finish = define(0.001)
        finish.delay("42")
        worker.run()

        wait_until(lambda: order.outcome("42").state is None, "the end of the final state")
        assert order.outcome("42").step == "order.finish"


@pytest.fixture
def app(request: pytest.FixtureRequest, new_app: NewApp) -> Celery:
    """An app; on a store, if the test names one."""
    app: Celery = request.getfixturevalue("stored_app") if "url" in request.fixturenames else new_app()
    return app


def test_in_virtual_time(app: Celery) -> None:
    order, _, finish = define(timedelta(days=3))
    with SagaHarness(app) as harness:
        harness.send(finish, "42", "kept")
        harness.run()
        assert harness.assert_completed(order, "42").state.note == "kept"
        harness.advance(timedelta(days=3) - timedelta(seconds=1))
        assert order.outcome("42").state.note == "kept"
        harness.advance(1)
        assert order.outcome("42").state is None
        assert harness.assert_completed(order, "42", by=finish).state is None


def test_history_that_is_exported_has_no_final_state(app: Celery, worker: Worker) -> None:
    """Its hidden fields would leave the store with it."""

    class Order(Saga, correlate_by="order_id", keep=60, history="messages"):
        order_id: str
        card: Annotated[str, Field(repr=False)] = ""

    @Order.starts
    def pay(order: Order, order_id: str) -> None:
        order.card = "ADA-4111"
        order.complete()

    pay.delay("42")
    worker.run()

    assert Order.outcome("42").state.card == "ADA-4111"  # type: ignore[union-attr]
    (entry,) = backend_of(app).journal.history(["order"], "42", 9)
    assert "ADA-4111" in entry.detail
    assert "ADA-4111" not in history_of(backend_of(app).journal, Order.__saga__, "42").to_text()  # type: ignore[arg-type]


def test_signals_carry_no_state(app: Celery, worker: Worker) -> None:
    _, _, finish = define(60)
    seen: list[Any] = []

    def note(outcome: Any, **_: Any) -> None:
        seen.append(outcome)

    signals.saga_completed.connect(note)
    finish.delay("42")
    worker.run()
    signals.saga_completed.disconnect(note)
    assert [(outcome.kind, outcome.state) for outcome in seen] == [("completed", None)]


class TestRetention:
    """The journal must not forget the state earlier."""

    def test_shorter_retention(self, new_app: NewApp) -> None:
        app = new_app(saga_journal_retention=3600)
        define(timedelta(hours=1, milliseconds=1))
        with pytest.raises(ConfigurationError) as caught:
            runtime_of(app).prepare(processes=1)
        problem = "Order keeps final states for 3601 s, and the journal its entries for 3600 s. "
        assert problem + "Set saga_journal_retention to at least 3601, or shorten keep=" in str(caught.value)

    def test_same_retention(self, new_app: NewApp) -> None:
        app = new_app(saga_journal_retention=3600)
        define(timedelta(hours=1))
        runtime_of(app).prepare(processes=1)

    def test_retention_of_the_backend(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        define(timedelta(hours=2))
        monkeypatch.setattr(backend_of(app), "journal_retention_s", 3600.0)
        with pytest.raises(ConfigurationError, match="saga_journal_retention to at least 7200"):
            runtime_of(app).prepare(processes=1)

    def test_eager_app(self, new_app: NewApp) -> None:
        """It has no worker that could refuse to start."""
        app = new_app(eager=True, saga_journal_retention=60)
        _, place, _ = define(61)
        with pytest.raises(ConfigurationError, match="saga_journal_retention"):
            place.delay("42")
        assert app.conf.task_always_eager
