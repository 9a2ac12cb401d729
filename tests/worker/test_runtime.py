"""One runtime for each app and process."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import ConfigurationError
from celery_sagas.worker import backends
from celery_sagas.worker import runtime as runtimes
from celery_sagas.worker.runtime import Runtime, close_runtime, runtime_of
from tests.apps import NewApp
from tests.processes import in_child
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Runtime]:
    """The runtimes that were closed."""
    closed: list[Runtime] = []
    close = Runtime.close
    monkeypatch.setattr(Runtime, "close", lambda self: (closed.append(self), close(self))[1])
    return closed


def test_is_made_once(app: Celery) -> None:
    """And again after it was closed."""
    first = runtime_of(app)
    assert runtime_of(app) is first

    close_runtime(app)
    assert runtime_of(app) is not first


def test_each_app_has_its_own(new_app: NewApp) -> None:
    """Each with its settings."""
    first, second = new_app(saga_conflict_retries=1), new_app(saga_conflict_retries=2)

    assert runtime_of(first).services.conflict_retries == 1
    assert runtime_of(second).services.conflict_retries == 2


def test_settings_reach_the_services(new_app: NewApp) -> None:
    """In the units that they want."""
    runtime = runtime_of(new_app(saga_dispatch_grace=7, saga_max_state_bytes=5_000, saga_conflict_retries=0))

    assert (runtime.services.terms.grace_ms, runtime.services.dispatcher.grace_s) == (7_000, 7.0)
    assert runtime.services.terms.state_bytes == 5_000


def test_each_backend_has_a_dispatcher(new_app: NewApp) -> None:
    """What is committed to it is published under a lease of its own, for as long."""
    runtime = runtime_of(new_app(saga_dispatch_grace=7, saga_aggregator_backend="memory://batches"))
    first, second = (runtime.dispatcher_of(backend) for backend in runtime.backends)

    assert first is runtime.services.dispatcher
    assert (first.outbox, second.outbox) == (runtime.backend.outbox, runtime.batches.outbox)
    assert (second.grace_s, first.owner == second.owner) == (7.0, False)


def test_threads_share_one(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when they ask at once."""
    made: list[Runtime] = []
    init = Runtime.__init__

    def slow(self: Runtime, app: Celery) -> None:
        wait_until(lambda: len(asking.threads) == 8, "threads that ask")
        init(self, app)
        made.append(self)

    monkeypatch.setattr(runtimes, "_lock", asking := Asking())
    monkeypatch.setattr(Runtime, "__init__", slow)
    seen: list[Runtime] = []
    threads = [threading.Thread(target=lambda: seen.append(runtime_of(app))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert {id(runtime) for runtime in seen} == {id(made[0])}


class Asking:
    """A lock that tells who has asked for it."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.threads.add(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class TestFork:
    """A runtime of the parent process is not used, closed or collected in the child (a shared engine finished 9 of 60 tasks)."""

    def test_child_makes_its_own(self, app: Celery) -> None:
        parent = runtime_of(app)

        assert in_child(lambda: runtime_of(app) is not parent and runtime_of(app) is runtime_of(app))
        assert runtime_of(app) is parent

    @pytest.mark.parametrize("use", ["use", "close", "use and close"])
    def test_child_leaves_the_parents_alone(self, app: Celery, closed: list[Runtime], use: str) -> None:
        parent = runtime_of(app)
        seen = weakref.ref(parent)
        backend = weakref.ref(parent.backend)
        del parent

        def check() -> bool:
            own = runtime_of(app) if "use" in use else None
            if "close" in use:
                close_runtime(app)
            gc.collect()
            return closed == ([own] if use == "use and close" else []) and seen() is not None and backend() is not None

        assert in_child(check)

    def test_child_closes_its_own(self, app: Celery, closed: list[Runtime]) -> None:
        def check() -> bool:
            own = runtime_of(app)
            close_runtime(app)
            return closed == [own]

        assert in_child(check)

    def test_lock_that_was_held_at_the_fork(self, app: Celery) -> None:
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            with runtimes._lock:
                held.set()
                go.wait(DEADLINE_S)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(DEADLINE_S)
        try:
            assert in_child(lambda: runtime_of(app) is not None)
        finally:
            go.set()
            thread.join()

    def test_sql_engine_is_not_shared(self, new_app: NewApp, tmp_path: Path) -> None:
        app = new_app()
        app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        runtime_of(app).backend.prepare(create_schema=True, processes=2)
        place("1")

        def check() -> bool:
            place("2")
            close_runtime(app)
            return True

        assert in_child(check)
        place("3")
        assert [Order.find(key) is not None for key in "123"] == [True, True, True]


def test_default_backend_is_named_once(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever falls back on it says so, with the file's absolute path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backends, "_told", [])
    fallback = Celery("fallback", broker="memory://", set_as_current=False)

    for _ in range(2):
        runtime_of(fallback)
        close_runtime(fallback)
    fallback.close()

    told = [record.getMessage() for record in caplog.records if record.name == "celery_sagas"]
    assert told == [f"saga_backend is not set: sagas are kept in {tmp_path / 'celery-sagas.sqlite3'}"]


def test_chosen_backend_is_not_named(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """It may hold a password."""
    runtime_of(app)

    assert "saga_backend" not in caplog.text


@pytest.mark.parametrize("settings", [{"saga_conflict_retries": "many"}, {"saga_unknown": 1}, {"saga_backend": "nosuch://x"}])
def test_wrong_setting(new_app: NewApp, settings: dict[str, Any]) -> None:
    """It says so where it is first needed, each time."""
    app = new_app()
    app.conf.update(settings)

    for _ in range(2):
        with pytest.raises(ConfigurationError):
            runtime_of(app)


def test_pool_process_that_ends_closes_its_connections(app: Celery, closed: list[Runtime]) -> None:
    """So does a worker."""
    from celery import signals

    for signal, sender in ((signals.worker_process_shutdown, None), (signals.worker_shutdown, _WorkerOf(app))):
        own = runtime_of(app)
        signal.send(sender=sender)
        assert closed.pop() is own


class _WorkerOf:
    def __init__(self, app: Celery) -> None:
        self.app = app
