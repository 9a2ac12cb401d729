"""The backend is made ready, or refused, before a worker consumes anything."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.concurrency import prefork, solo, thread
from celery.worker import state

from celery_sagas import Saga
from celery_sagas.errors import ConfigurationError, DefinitionError, StoreUnavailable, UnsafeBackend
from celery_sagas.worker.celery_internals import time_limit_s
from celery_sagas.worker.process.bootsteps import PrepareBackend, RunRelay, add_bootstep
from celery_sagas.worker.process.relay import relay_of
from tests.apps import NewApp, backend_of


@pytest.fixture
def saga(app: Celery) -> Any:
    """A saga, without which there is nothing to prepare."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    return Order


def worker_of(app: Celery, pool: Any = thread.TaskPool, concurrency: int = 4) -> Any:
    """Return what the step needs of a worker."""
    return SimpleNamespace(app=app, pool_cls=pool, concurrency=concurrency)


def start(worker: Any) -> None:
    """Start the step."""
    PrepareBackend(worker).start(worker)


def test_is_added_to_a_worker_that_begins(app: Celery) -> None:
    """Once, however often that is."""
    for _ in range(2):
        add_bootstep(sender=SimpleNamespace(app=app, _process_task=print))

    assert app.steps["worker"] == {PrepareBackend, RunRelay}
    assert any("celery_sagas.bootstep" in str(key) for key, _ in [receiver[:2] for receiver in signals.worker_init.receivers])


def test_an_earlier_worker_that_has_ended_by_itself_ends_no_other(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, as in tests."""
    monkeypatch.setattr(state, "should_stop", 1)
    add_bootstep(sender=SimpleNamespace(app=app, _process_task=print))

    assert state.should_stop is None


def test_creates_the_tables(new_app: NewApp, saga: Any, tmp_path: Path) -> None:
    """They are there when the first message comes."""
    app = new_app()
    app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"

    start(worker_of(app, prefork.TaskPool))

    assert saga.find("42") is None


def test_looks_once_for_each_saga(app: Celery, saga: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of several parts tells that it would not find the instances, before a message is lost over it."""
    looked_for: list[Any] = []
    sagas = backend_of(app).sagas
    monkeypatch.setattr(sagas, "find", looked_for.append)

    start(worker_of(app))

    assert [(lookup.names, lookup.has_alternate_keys) for lookup in looked_for] == [(("order",), False)]


def test_does_not_create_the_tables_if_told_so(new_app: NewApp, saga: Any, tmp_path: Path) -> None:
    """``saga_create_schema=False``."""
    app = new_app(saga_create_schema=False)
    app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"

    with pytest.raises(ConfigurationError):
        start(worker_of(app))


def test_imports_the_backend_before_the_pool_forks(tmp_path: Path) -> None:
    """Each of its processes would import the backend's modules again, at its first message."""
    script = """
import sys
from types import SimpleNamespace
from celery import Celery
from celery_sagas import Saga
from celery_sagas.worker.process.bootsteps import PrepareBackend

class Order(Saga, correlate_by="order_id"):
    order_id: str

app = Celery(broker="memory://")
app.conf.saga_backend = sys.argv[1]
pool = SimpleNamespace(on_apply=print)
PrepareBackend.create(None, SimpleNamespace(app=app, pool=pool, time_limit=None))
print("celery_sagas.stores.sql.backend" in sys.modules)
"""
    printed = [
        subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, check=True).stdout.split()[-1]
        for url in (f"sqlite:///{tmp_path}/sagas.sqlite3", "nosuch://")
    ]

    assert printed == ["True", "False"]
    assert list(tmp_path.iterdir()) == [], "nothing is connected"


def test_without_sagas_nothing_is_opened(app: Celery) -> None:
    app.conf.saga_backend = "nosuch://"

    start(worker_of(app))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_unsafe_backend_ends_the_worker(app: Celery, saga: Any, concurrency: int) -> None:
    """Each process of a pool would have a memory of its own; the parent, too."""
    with pytest.raises(UnsafeBackend, match="processes"):
        start(worker_of(app, prefork.TaskPool, concurrency))


def test_unsafe_aggregator_backend_ends_the_worker(app: Celery, saga: Any, tmp_path: Path) -> None:
    """However safe the other one is."""
    app.conf.update(saga_backend=f"sqlite:///{tmp_path}/sagas.sqlite3", saga_aggregator_backend="memory://batches-alone")

    with pytest.raises(UnsafeBackend, match="processes"):
        start(worker_of(app, prefork.TaskPool))


@pytest.mark.parametrize("pool", [thread.TaskPool, solo.TaskPool])
def test_pool_of_one_process(app: Celery, saga: Any, pool: Any) -> None:
    """However many threads it has."""
    start(worker_of(app, pool))


def test_unsafe_backend_is_warned_of_if_told_so(new_app: NewApp, saga: Any, caplog: pytest.LogCaptureFixture) -> None:
    """``saga_unsafe_backend="warn"``."""
    app = new_app(saga_unsafe_backend="warn")

    start(worker_of(app, prefork.TaskPool))

    assert "processes" in caplog.text


def test_only_unsafety_can_be_overridden(new_app: NewApp, saga: Any) -> None:
    """Not a wrong setting."""
    app = new_app(saga_unsafe_backend="warn")
    app.conf.saga_backend = "nosuch://"

    with pytest.raises(ConfigurationError):
        start(worker_of(app))


def test_unreachable_backend_ends_the_worker(app: Celery, saga: Any, tmp_path: Path) -> None:
    """Before anything is consumed."""
    app.conf.saga_backend = f"sqlite:///{tmp_path}/missing/sagas.sqlite3"

    with pytest.raises((StoreUnavailable, ConfigurationError)):
        start(worker_of(app))


def test_warnings_are_logged_and_connections_closed(
    app: Celery, saga: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the parent process are not for its children."""
    backend = backend_of(app)
    closed: list[str] = []
    asked: list[dict[str, Any]] = []

    def prepare_backend(**options: Any) -> list[str]:
        asked.append(options)
        return ["It is slow."]

    monkeypatch.setattr(backend, "prepare", prepare_backend)
    monkeypatch.setattr(backend, "close", lambda: closed.append("closed"))

    start(worker_of(app, prefork.TaskPool, 3))

    assert asked == [{"create_schema": True, "processes": 3}]
    assert closed == ["closed"]
    assert f"{backend.url}: It is slow." in caplog.text


@pytest.mark.parametrize(("option", "setting", "limit_s"), [(20.0, 60, 20), (None, 60, 60), (None, None, None)])
def test_time_limit_of_the_command_line_is_known_to_the_pool(
    app: Celery, option: float | None, setting: float | None, limit_s: float | None
) -> None:
    """To what must be done before a run is ended by force."""
    app.conf.task_time_limit = setting
    worker = worker_of(app)
    worker.time_limit = option or setting  # as Celery's worker has it
    worker.pool = SimpleNamespace(on_apply=None)

    PrepareBackend(worker).create(worker)

    assert time_limit_s(app.tasks["celery.accumulate"]) == limit_s


class TestOtherApps:
    """Two apps under one prefix of one backend: each would publish what is due for the other."""

    @pytest.fixture
    def named(self, new_app: NewApp, tmp_path: Path) -> Callable[[str | None], Any]:
        """Return a function that makes a worker of an app with a name; all of them have one backend and one prefix."""

        def make(name: str | None, **settings: Any) -> Any:
            app = new_app(**settings)
            app.main = name
            app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"
            return worker_of(app)

        return make

    def test_second_one_is_warned_of(self, saga: Any, named: Any, caplog: pytest.LogCaptureFixture) -> None:
        """And the first, when it starts again; with what to do."""
        for name in ("shop", "billing", "shop"):
            start(named(name))

        told = [text for text in caplog.messages if "saga_prefix" in text]
        assert [text.partition(", as this one, ")[0].rpartition(" here is ")[2] for text in told] == [
            "'shop', under the same saga_prefix, ''",
            "'billing', under the same saga_prefix, ''",
        ]
        assert all("Give each app a saga_prefix of its own" in text for text in told)

    def test_renamed_app_is_told_once(self, saga: Any, named: Any, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("shop", "store", "store", "store"):
            start(named(name))

        assert caplog.text.count("'shop', under the same saga_prefix") == 1

    @pytest.mark.parametrize("name", [None, "", "__main__", "default"])
    def test_app_without_a_name_is_not_noted(self, saga: Any, named: Any, caplog: pytest.LogCaptureFixture, name: str) -> None:
        for each in ("shop", name, "shop"):
            start(named(each))

        assert "under the same saga_prefix" not in caplog.text

    def test_prefixes_of_their_own(self, saga: Any, named: Any, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("shop", "billing"):
            start(named(name, saga_prefix=name))

        assert "under the same saga_prefix" not in caplog.text

    def test_backend_that_cannot_note_it_ends_no_worker(self, saga: Any, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may have no room, or its user no right to the table."""
        worker = named("shop")

        def fail(_: str) -> str:
            raise StoreUnavailable("sqlite://", "full")

        monkeypatch.setattr(backend_of(worker.app), "note_app", fail)
        start(worker)

    def test_both_backends_are_looked_at(self, saga: Any, named: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """That of aggregators, too."""
        for name in ("shop", "billing"):
            worker = named(name)
            worker.app.conf.saga_aggregator_backend = f"sqlite:///{tmp_path}/batches.sqlite3"
            start(worker)

        assert caplog.text.count("'shop', under the same saga_prefix") == 2


def test_step_that_was_defined_late_is_checked(app: Celery, saga: Any) -> None:
    """An app that was finalised before its sagas were imported must not lose their messages one by one."""
    app.finalize()

    @saga.starts
    def nameless(order: Any, total: int) -> None: ...

    with pytest.raises(DefinitionError, match="nameless"):
        start(worker_of(app))


def test_is_started_after_the_pool() -> None:
    """Children of the pool inherit no connection."""
    assert "celery.worker.components:Pool" in PrepareBackend.requires
    assert PrepareBackend in RunRelay.requires


def test_journal_that_forgets_too_early_ends_the_worker(new_app: NewApp, saga: Any) -> None:
    """The broker would deliver a message again that is no longer known as a repeat."""
    app = new_app(saga_journal_retention=3600, broker_url="redis://localhost:1")

    with pytest.raises(ConfigurationError, match="saga_journal_retention to more than 3600"):
        start(worker_of(app))


def test_journal_that_forgets_final_states_too_early_ends_the_worker(new_app: NewApp) -> None:
    app = new_app(saga_journal_retention=3600)

    class Order(Saga, correlate_by="order_id", keep=7200):
        order_id: str

    with pytest.raises(ConfigurationError, match="saga_journal_retention to at least 7200"):
        start(worker_of(app))


class TestRelay:
    """It runs from when the pool has started."""

    def run(self, app: Celery) -> RunRelay:
        worker = worker_of(app)
        start(worker)
        step = RunRelay(worker)
        step.start(worker)
        return step

    def test_runs_until_it_is_stopped(self, app: Celery, saga: Any) -> None:
        step = self.run(app)
        relay = relay_of(app)
        assert relay is not None
        assert relay.shown()["running"]

        step.stop(worker_of(app))

        assert not relay.shown()["running"]

    def test_is_stopped_when_the_worker_is_terminated(self, app: Celery, saga: Any) -> None:
        step = self.run(app)
        relay = relay_of(app)
        assert relay is not None

        step.terminate(worker_of(app))

        assert not relay.shown()["running"]
        assert relay_of(app) is None

    def test_can_be_turned_off(self, new_app: NewApp, saga: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Then somebody else must run one."""
        app = new_app(saga_relay=False)

        step = self.run(app)
        step.stop(worker_of(app))

        assert relay_of(app) is None
        assert "saga_relay is off: this worker sends no timeouts" in caplog.text
        assert "celery sagas relay" in caplog.text

    def test_does_not_run_in_eager_mode(self, eager: Celery, saga: Any) -> None:
        """Nothing waits there."""
        self.run(eager)

        assert relay_of(eager) is None

    def test_does_not_run_without_sagas(self, app: Celery) -> None:
        app.conf.saga_backend = "nosuch://"

        self.run(app)

        assert relay_of(app) is None
