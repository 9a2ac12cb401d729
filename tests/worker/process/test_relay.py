"""The relay's thread: it goes on whatever happens, until it is stopped."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery import Celery
from celery.worker.control import Panel

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.engine.relay import Relay
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Change, Effects, OutboxRow, Outgoing
from celery_sagas.testing.samples import by_key, dead_letter, entry, found, new_id, send
from celery_sagas.worker.process import control, relay
from celery_sagas.worker.process.relay import RelayThreads, open_relay, relay_of, terms_of
from celery_sagas.worker.runtime import close_runtime, runtime_of
from celery_sagas.worker.serialization import serialized
from tests.apps import NewApp, Worker, backend_of
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def fast(new_app: NewApp) -> Celery:
    """An app whose relay sweeps all the time."""
    return new_app(saga_relay_interval=0.01)


@pytest.fixture
def thread(fast: Celery) -> Iterator[RelayThreads]:
    """Its relay, not started yet."""
    made = RelayThreads(fast)
    yield made
    assert made.stop(DEADLINE_S)


@pytest.fixture
def order(fast: Celery, at_one_time: None) -> Any:
    """A saga that reminds itself."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        reminders: int = 0

    @Order.handles
    def remind(order: Order) -> None:
        order.reminders += 1

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.schedule(remind, after=timedelta(milliseconds=500))

    return SimpleNamespace(saga=Order, place=place)


def test_sends_timeouts(fast: Celery, thread: RelayThreads, order: Any) -> None:
    """The step runs on its instance, some time later."""
    order.place("42")
    worker = Worker(fast)
    assert worker.waiting() == []

    thread.start()
    wait_until(lambda: thread.tally.sent, "a timeout that is sent")
    worker.run()

    assert backend_of(fast).outbox.count() == 0
    assert order.saga.find("42").reminders == 1
    assert worker.done[0].task == "order.remind"


class TestKept:
    """A timeout that was published, and whose row is due again."""

    @pytest.fixture
    def relay(self, fast: Celery, order: Any) -> Relay:
        """A relay that has published it."""
        order.place("42")
        relay = open_relay(runtime_of(fast))
        wait_until(lambda: relay.sweep().sent, "a timeout that is sent")
        return relay

    def test_published_again_while_its_instance_waits(self, fast: Celery, relay: Relay) -> None:
        due_again(relay)
        assert relay.sweep().sent == 1
        assert relay.backend.outbox.count() == 1
        worker = Worker(fast)
        worker.run()
        assert [done.task for done in worker.done] == ["order.remind", "order.remind"]
        assert relay.backend.outbox.count() == 0

    def test_removed_if_its_instance_does_not_wait(self, relay: Relay) -> None:
        """A worker of an earlier release has handled the message, and left the row."""
        due_again(relay)
        record = found(relay.backend, by_key("42", ("order",)))
        change = Change(("order",), record.schema_version, record.data, "{}")
        relay.backend.sagas.update(record, change, Effects(entry(record)))
        assert (relay.sweep().sent, relay.backend.outbox.count()) == (0, 0)

    def test_removed_if_its_message_has_failed(self, relay: Relay) -> None:
        """Its dead letter was retried, under another id."""
        [row] = due_again(relay)
        failed = entry(step="order.remind", message_id=row.message_id, outcome="failed")
        relay.backend.sagas.record(Effects(failed))
        assert (relay.sweep().sent, relay.backend.outbox.count()) == (0, 0)

    def test_kept_if_it_waits_with_its_instance(self, fast: Celery, at_one_time: None) -> None:
        """For another status: it may be lost once more when it is released."""

        class Door(Saga, correlate_by="name", status_by="status"):
            name: str
            status: Literal["shut", "open"] = "shut"

        @Door.handles(when="open", if_not="defer")
        def ring(door: Door) -> None: ...

        @Door.starts
        def put(door: Door, name: str) -> None:
            door.schedule(ring, after=timedelta(milliseconds=300))

        put("a")
        relay = open_relay(runtime_of(fast))
        wait_until(lambda: relay.sweep().sent, "a timeout that is sent")
        Worker(fast).run()
        assert [each.step for each in Door.find("a").saga.deferred] == ["door.ring"]
        for _ in range(2):
            due_again(relay)
            assert (relay.sweep().sent, relay.backend.outbox.count()) == (0, 1)

    def test_published_again_if_that_cannot_be_read(self, relay: Relay) -> None:
        due_again(relay)
        record = found(relay.backend, by_key("42", ("order",)))
        change = Change(("order",), record.schema_version, record.data, "[]")
        relay.backend.sagas.update(record, change, Effects(entry(record)))
        assert relay.sweep().sent == 1


def due_again(relay: Relay) -> list[OutboxRow]:
    """Let the rows that were published be due again; return them."""
    assert isinstance(relay.backend, MemoryBackend)
    state = relay.backend._state
    for row in list(state.outbox):
        state.outbox.put(replace(row, due_since=1))
    return [row.message for row in state.outbox]


def test_step_of_another_worker_is_left_to_it(fast: Celery, thread: RelayThreads, order: Any) -> None:
    """This process does not know it."""
    order.place("42")
    fast.finalize()
    del fast.tasks["order.remind"]

    thread.start()
    wait_until(lambda: thread.tally.unknown, "a row that is passed over")

    assert thread.tally.sent == 0
    assert backend_of(fast).outbox.count() == 1


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> "Sweeps":
    """Sweeps that do as they are told."""
    made = Sweeps()
    monkeypatch.setattr(Relay, "sweep", made.sweep)
    return made


class Sweeps:
    """What happens in the sweeps of a relay."""

    def __init__(self) -> None:
        self.outcomes: list[Exception | str] = []  #: of the next ones: an error that is raised, or that ends it
        self.count = 0

    def sweep(self) -> Sweep:
        self.count += 1
        outcome = self.outcomes.pop(0) if self.outcomes else ""
        if isinstance(outcome, Exception):
            raise outcome
        return Sweep(0.0, error=outcome)


def test_survives_any_exception(thread: RelayThreads, sweeps: Sweeps, caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback in the log: a relay that is dead and silent is the worst of all."""
    sweeps.outcomes = [RuntimeError("never heard of"), StoreUnavailable("x", "y")]

    thread.start()
    wait_until(lambda: sweeps.count > 3, "sweeps after an exception")

    assert "RuntimeError: never heard of" in caplog.text
    assert "Traceback" in caplog.text


def test_pauses_grow_while_sweeps_fail(fast: Celery, monkeypatch: pytest.MonkeyPatch, sweeps: Sweeps) -> None:
    """Up to a bound, and not once all is well again."""
    monkeypatch.setattr(relay.random, "uniform", lambda low, high: 1.0)
    sweeps.outcomes = ["away"] * 12 + [RuntimeError("x"), ""]
    thread = RelayThreads(fast)

    pauses = [thread._sweep(0) for _ in range(14)]

    assert pauses[:3] == [0.02, 0.04, 0.08]
    assert pauses[11:] == [10, 10, 0.01]


def test_long_interval_is_kept_while_sweeps_fail(new_app: NewApp, monkeypatch: pytest.MonkeyPatch, sweeps: Sweeps) -> None:
    """It is the user's."""
    monkeypatch.setattr(relay.random, "uniform", lambda low, high: 1.0)
    sweeps.outcomes = ["away", "away"]
    thread = RelayThreads(new_app(saga_relay_interval=60))

    assert [thread._sweep(0) for _ in range(3)] == [60, 60, 60]


def test_pauses_are_jittered(fast: Celery, sweeps: Sweeps) -> None:
    """Workers that start together do not sweep together indefinitely."""
    thread = RelayThreads(fast)
    pauses = [thread._sweep(0) for _ in range(50)]

    assert len(set(pauses)) > 1
    assert all(0.008 <= pause <= 0.012 for pause in pauses)


def test_stop_does_not_wait_for_the_interval(new_app: NewApp) -> None:
    """A worker ends at once."""
    thread = RelayThreads(new_app(saga_relay_interval=3600))
    thread.start()

    assert thread.stop(DEADLINE_S)


def test_stop_before_start(fast: Celery) -> None:
    """A worker may end before it has begun."""
    assert RelayThreads(fast).stop()


def test_stop_waits_for_a_bounded_time(thread: RelayThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own loop is not the relay's."""
    entered, leave = threading.Event(), threading.Event()

    def sweep(_: Relay) -> Sweep:
        entered.set()
        leave.wait()
        return Sweep(0.0)

    monkeypatch.setattr(Relay, "sweep", sweep)
    thread.start()
    entered.wait()

    assert not thread.stop(timeout_s=0.05)
    leave.set()
    assert thread.stop(DEADLINE_S)


def test_what_fails_because_the_worker_ends_is_not_reported(
    fast: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker closes what a relay uses that did not end in time."""
    thread = RelayThreads(fast)

    def sweep(_: Relay) -> Sweep:
        thread._stopping.set()
        raise RuntimeError("closed")

    monkeypatch.setattr(Relay, "sweep", sweep)
    thread.start()
    wait_until(lambda: not thread.is_running, "the end of the relay")

    assert "closed" not in caplog.text


def test_uses_the_runtime_of_its_process(fast: Celery, thread: RelayThreads) -> None:
    """One that was closed is replaced."""
    first = runtime_of(fast).backend
    thread.start()
    wait_until(lambda: thread.tally.sweeps > 1, "sweeps")
    relay = thread._relay_of(0)
    assert relay is not None
    assert relay.backend is first

    close_runtime(fast)

    again = thread._relay_of(0)
    assert again is not None
    assert again.backend is not first
    assert again.tally is thread.tally


@pytest.mark.parametrize(("setting", "retention_s"), [(None, 7200.0), (timedelta(hours=3), 10_800.0)])
def test_terms_are_the_settings(new_app: NewApp, monkeypatch: pytest.MonkeyPatch, setting: Any, retention_s: float) -> None:
    """The retention is the backend's if they do not say it."""
    app = new_app(
        saga_relay_interval=2,
        saga_lease_ttl=timedelta(minutes=2),
        saga_max_deliveries=5,
        saga_journal_retention=setting,
        saga_audit_retention=timedelta(days=30),
    )
    monkeypatch.setattr(backend_of(app), "journal_retention_s", 7200.0)

    terms = terms_of(runtime_of(app), backend_of(app))

    assert (terms.interval_s, terms.lease_s, terms.max_attempts, terms.retention_s) == (2, 120, 5, retention_s)
    assert terms.audit_s == 30 * 86_400


def test_publishes_through_its_own_app(fast: Celery, thread: RelayThreads) -> None:
    """Its publisher is the one of the runtime, with confirms and deadlines."""
    thread.start()
    wait_until(lambda: thread.tally.sweeps, "a sweep")

    runtime, relay = runtime_of(fast), thread._relay_of(0)
    assert relay is not None
    assert (relay.backend, relay.publisher) == (runtime.backend, runtime.publisher)


class TestSeveralBackends:
    """Aggregators on another backend than sagas: the outbox of each is swept."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        app = new_app(saga_relay_interval=0.01, saga_aggregator_backend=f"memory://{uuid4()}")

        @app.task(name="plain")
        def plain() -> None: ...

        return app

    @pytest.fixture
    def thread(self, app: Celery) -> Iterator[RelayThreads]:
        made = RelayThreads(app)
        yield made
        assert made.stop(DEADLINE_S)

    def leave(self, app: Celery, backend: Backend) -> str:
        """Leave a message in an outbox, whose process has died."""
        message = serialized(app, app.signature("plain"), lambda: str(uuid4()), 10_000)
        send(backend, Outgoing(new_id(), "sent", message.message_id, message.task, message.payload))
        return message.message_id

    def test_what_was_left_in_each_outbox_is_sent(self, app: Celery, thread: RelayThreads) -> None:
        assert Worker(app).waiting() == []  # declares the queue, as a worker does: two threads must not begin that at once
        ids = [self.leave(app, backend) for backend in runtime_of(app).backends]
        thread.start()
        wait_until(lambda: not any(backend.outbox.count() for backend in runtime_of(app).backends), "empty outboxes")
        assert sorted(message.id for message in Worker(app).waiting()) == sorted(ids)

    def test_each_has_a_tally_of_its_own(self, app: Celery, thread: RelayThreads) -> None:
        """An operator sees the sagas' first, as if there were no other."""
        sagas, batches = runtime_of(app).backends
        self.leave(app, batches)
        thread.start()
        wait_until(lambda: thread.tallies[1:] and thread.tallies[1][1].sent, "a message that is sent")
        shown = Panel.data["sagas_relay"](SimpleNamespace(app=app))
        assert shown["sent"] == thread.tally.sent == 0
        assert [(each["url"], each["sent"]) for each in shown["other_backends"]] == [(batches.url, 1)]
        assert [url for url, _ in thread.tallies] == [sagas.url, batches.url]

    def test_those_with_one_url_are_swept_both(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """They differ in what is not shown, such as their schema. An outage of one is not over with a sweep of the other."""
        sagas, batches = runtime_of(app).backends
        monkeypatch.setattr(batches, "url", sagas.url)
        for backend in (sagas, batches):
            self.leave(app, backend)
        thread = RelayThreads(app)
        thread.start()
        wait_until(lambda: not sagas.outbox.count() + batches.outbox.count(), "empty outboxes")
        assert thread.stop(DEADLINE_S)
        assert [(url, tally.sent) for url, tally in thread.tallies] == [(sagas.url, 1)] * 2
        assert [each["sent"] for each in thread.shown()["other_backends"]] == [1]

    def test_one_that_is_away_holds_up_no_other(
        self, app: Celery, thread: RelayThreads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whatever the error is."""
        sagas, batches = runtime_of(app).backends
        monkeypatch.setattr(sagas.outbox, "claim_due", Mock(side_effect=RuntimeError("broken")))
        self.leave(app, batches)
        thread.start()
        wait_until(lambda: batches.outbox.count() == 0, "a message that is sent")
        wait_until(lambda: "the relay met with an error" in caplog.text, "the other one's sweep")

    def test_one_that_does_not_answer_delays_no_other(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        entered, leave, swept = threading.Event(), threading.Event(), Counter[str]()

        def sweep(relay: Relay) -> Sweep:
            swept[relay.backend.url] += 1
            if relay.backend is sagas:
                entered.set()
                assert leave.wait(DEADLINE_S)
            return Sweep(0.0)

        monkeypatch.setattr(Relay, "sweep", sweep)
        sagas, batches = runtime_of(app).backends
        thread = RelayThreads(app)
        thread.start()
        try:
            assert entered.wait(DEADLINE_S)
            before = swept[batches.url]
            wait_until(lambda: swept[batches.url] > before + 2, "sweeps of the other one")
            assert swept[sagas.url] == 1
        finally:
            leave.set()
            assert thread.stop(DEADLINE_S)

    @pytest.mark.parametrize("backend", ["orders", "nowhere"])
    def test_one_that_a_later_definition_names_stops_no_other(
        self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch, backend: str
    ) -> None:
        """A module that is imported while the worker runs may have a saga in it."""
        app = new_app(saga_backends={"orders": {"backend": f"memory://{uuid4()}"}})
        swept: list[Backend] = []
        monkeypatch.setattr(Relay, "sweep", lambda relay: swept.append(relay.backend) or Sweep(0.0))
        thread, opened = RelayThreads(app), runtime_of(app).backends.opened
        for number in (0, 1):
            thread._sweep(number)

        class Order(Saga, correlate_by="order_id", backend=backend):
            order_id: str

        for number in (0, 1):
            thread._sweep(number)
        assert swept == [opened[0], *(opened if backend == "orders" else opened[:1])]

    def test_groups_are_seen_to_once(self, app: Celery) -> None:
        """By the relay of the backend that keeps them: one that is away, or does not answer, delays no timeouts of sagas."""

        @aggregator(size=2)
        def collect(batch: Batch[int]) -> None: ...

        runtime = runtime_of(app)
        sagas, batches = (open_relay(runtime, backend) for backend in runtime.backends)
        assert sagas.groups is None
        assert batches.groups is not None
        assert batches.groups.backend is batches.backend is runtime.batches

    def test_groups_of_a_later_definition_are_seen_to(self, app: Celery, thread: RelayThreads) -> None:
        """Of a module that is imported while the worker runs."""
        thread.start()
        wait_until(lambda: all(tally.last for _, tally in thread.tallies), "a sweep of each backend")
        flushed: list[int] = []

        @aggregator(within=0.05)
        def collect(batch: Batch[int]) -> None:
            flushed.extend(batch)

        worker = Worker(app)
        collect.add(1)
        wait_until(lambda: worker.run() or flushed, "the flush of a group that is due")
        assert flushed == [1]

    def test_retention_is_that_of_the_backend(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = runtime_of(app)
        monkeypatch.setattr(runtime.batches, "journal_retention_s", 60.0)
        assert [terms_of(runtime, backend).retention_s for backend in runtime.backends] == [7 * 86_400.0, 60.0]


class TestInspect:
    """``celery inspect sagas_relay``."""

    @pytest.fixture(autouse=True)
    def long_timeouts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the store time to answer, however busy the machine is."""
        monkeypatch.setattr(control, "_COUNT_S", DEADLINE_S)

    def ask(self, app: Celery) -> Any:
        answer: Callable[..., Any] = Panel.data["sagas_relay"]
        return answer(SimpleNamespace(app=app))

    def test_tells_what_the_relay_has_done(self, fast: Celery, thread: RelayThreads, order: Any) -> None:
        order.place("42")
        thread.start()
        wait_until(lambda: thread.tally.sent and thread.tally.last, "a sweep")

        answer = self.ask(fast)

        assert (answer["running"], answer["sent"]) == (True, 1)
        assert answer["last"]["ended_at"] >= answer["last"]["began_at"]

    def test_tells_that_there_is_none(self, fast: Celery) -> None:
        assert relay_of(fast) is None
        assert self.ask(fast) == {"running": False, "dead_letters": 0}

    def test_tells_how_many_dead_letters_the_store_has(self, fast: Celery, thread: RelayThreads) -> None:
        """Whoever kept them: those that this relay could not publish are counted apart."""
        for _ in range(4):
            backend_of(fast).dead.add(dead_letter())
        thread.start()
        wait_until(lambda: thread.tally.last, "a sweep")

        answer = self.ask(fast)

        assert (answer["dead_letters"], answer["dead_lettered"]) == (4, 0)
        assert "dead" not in answer

    def test_of_a_process_that_has_opened_no_backend(self, new_app: NewApp, tmp_path: Path) -> None:
        """It is opened, and closed again."""
        app = new_app()
        app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"
        runtime_of(app).prepare(processes=1)
        runtime_of(app).backend.dead.add(dead_letter())
        close_runtime(app)

        assert self.ask(app)["dead_letters"] == 1

    def test_counts_those_of_the_aggregators_backend_too(self, new_app: NewApp, tmp_path: Path) -> None:
        """Whether a runtime is open, or the backends are opened for it."""
        backends = {name: f"sqlite:///{tmp_path}/{name}.sqlite3" for name in ("sagas", "batches")}
        app = new_app(saga_aggregator_backend=backends["batches"])
        app.conf.saga_backend = backends["sagas"]
        runtime_of(app).prepare(processes=1)
        for backend in runtime_of(app).backends:
            backend.dead.add(dead_letter())

        assert self.ask(app)["dead_letters"] == 2
        close_runtime(app)
        assert self.ask(app)["dead_letters"] == 2

    def test_counts_those_of_one_database_with_two_names_once(self, new_app: NewApp, tmp_path: Path) -> None:
        urls = {"again": f"sqlite:///{tmp_path}/./sagas.sqlite3", "other": f"sqlite:///{tmp_path}/other.sqlite3"}
        app = new_app(saga_backends={name: {"backend": url} for name, url in urls.items()})
        app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"

        class Order(Saga, correlate_by="order_id", backend="again"):
            order_id: str

        class Parcel(Saga, correlate_by="parcel_id", backend="other"):
            parcel_id: str

        runtime = runtime_of(app)
        runtime.prepare(processes=1)
        for backend in (runtime.backend, *runtime.backends.of_sagas()):
            backend.dead.add(dead_letter())

        assert self.ask(app)["dead_letters"] == 4

    def test_store_that_fails(self, fast: Celery, thread: RelayThreads, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rest is shown all the same."""
        monkeypatch.setattr(backend_of(fast).dead, "count", Mock(side_effect=StoreUnavailable("redis://h", "it is loading")))
        thread.start()

        answer = self.ask(fast)

        assert (answer["running"], answer["dead_letters"]) == (True, None)
        assert "it is loading" in answer["store_error"]

    def test_store_that_is_silent(self, fast: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """The worker's main process waits for a bounded time."""
        goes_on = threading.Event()
        monkeypatch.setattr(backend_of(fast).dead, "count", lambda: goes_on.wait(DEADLINE_S))
        monkeypatch.setattr(control, "_COUNT_S", 0.01)

        answer = self.ask(fast)
        goes_on.set()

        assert answer["dead_letters"] is None
        assert answer["store_error"] == "the store has not answered within 0.01 s"

    def test_worker_without_a_backend(self, app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No file is made for it."""
        monkeypatch.chdir(tmp_path)
        plain = Celery("plain", set_as_current=False)

        assert self.ask(plain) == {"running": False}
        assert list(tmp_path.iterdir()) == []

    def test_is_an_inspect_command(self) -> None:
        assert Panel.data["sagas_relay"] is control.sagas_relay
        assert Panel.meta["sagas_relay"].type == "inspect"


def test_sweeps_that_did_something_are_logged(
    fast: Celery, thread: RelayThreads, order: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG, and the idle ones not at all."""
    caplog.set_level(logging.DEBUG, "celery_sagas")
    order.place("42")
    thread.start()
    wait_until(lambda: thread.tally.sent and thread.tally.sweeps > 5, "sweeps")
    assert thread.stop(DEADLINE_S)

    assert caplog.text.count("the relay's sweep: ") == 1
