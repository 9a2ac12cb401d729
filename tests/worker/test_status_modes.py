"""Deferred messages in eager mode, through routes, after a renaming, and in operators' lists."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from celery import Celery, signals

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import SagaNotFound, TooManyDeferred, WrongStatus
from tests.apps import NewApp, Worker, backend_of
from tests.cli.test_describe import run
from tests.worker.parcels import HOUR, define


class TestEager:
    """Everything happens at once, after the commit that decides it."""

    def test_waits_and_is_handled_with_the_commit_that_admits_it(self, eager: Celery) -> None:
        parcels = define(eager, "defer")
        parcels.acts.append(lambda parcel: setattr(parcel, "status", "sent"))
        assert parcels.saga.scan.delay("1").state == "IGNORED"
        assert parcels.waiting == ["parcel.scan"]

        parcels.saga.do.delay("1", 0)
        assert (parcels.seen, parcels.waiting) == (["scanned 1"], [])

    def test_direct_calls(self, eager: Celery) -> None:
        parcels = define(eager, "defer")
        parcels.acts.append(lambda parcel: setattr(parcel, "status", "sent"))
        assert parcels.saga.scan("1") is None
        parcels.saga.do("1", 0)
        assert parcels.seen == ["scanned 1"]
        assert parcels.saga.scan("1", n=2) == "scan 2"

    def test_what_follows(self, eager: Celery) -> None:
        parcels = define(eager, "defer")
        parcels.acts.append(lambda parcel: setattr(parcel, "status", "sent"))
        parcels.saga.scan.apply_async(("1",), link=parcels.noted.s())
        assert parcels.notes == []
        parcels.saga.do.delay("1", 0)
        assert parcels.notes == ["scan 1"]

    def test_answer(self, eager: Celery) -> None:
        parcels = define(eager, "defer")
        parcels.acts += [
            lambda parcel: parcel.send(parcels.quote.si(1), then="came"),
            lambda parcel: setattr(parcel, "status", "sent"),
        ]
        parcels.saga.do("1", 0)
        assert parcels.waiting == ["parcel.came"]
        parcels.saga.do("1", 1)
        assert parcels.seen == ["came 1"]

    def test_in_a_task(self, eager: Celery) -> None:
        """The message belongs to the instances of its task."""
        parcels = define(eager, "defer")

        @parcels.saga.handles(when="sent", if_not="defer")
        def belongs(parcel: Any) -> None:
            parcel.seen.append("belongs")

        @eager.task(name="calls")
        def calls() -> None:
            belongs()
            belongs.delay()

        parcels.acts += [lambda parcel: parcel.send(calls.si()), lambda parcel: setattr(parcel, "status", "sent")]
        parcels.saga.do("1", 0)
        assert parcels.waiting == ["parcel.belongs", "parcel.belongs"]
        parcels.saga.do("1", 1)
        assert parcels.seen == ["belongs", "belongs"]

    def test_errors_come_at_once(self, eager: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is nobody to redeliver the message later."""
        parcels = define(eager, "defer")
        monkeypatch.setattr("celery_sagas.engine.deferring.MOST", 0)
        with pytest.raises(TooManyDeferred):
            parcels.saga.scan.delay("1")

    def test_wrong_status(self, eager: Celery) -> None:
        parcels = define(eager, "raise")
        with pytest.raises(WrongStatus):
            parcels.saga.scan.delay("1")

    def test_instance_that_is_missing(self, eager: Celery) -> None:
        parcels = define(eager, "defer")

        @parcels.saga.handles(if_missing="defer", defer_for=HOUR, when="sent", if_not="defer")
        def look(parcel: Any, number: str) -> None: ...

        with pytest.raises(SagaNotFound):
            look.delay("2")
        look.delay("1")
        assert parcels.waiting == ["parcel.look"]


class TestRoutes:
    def test_released_message_goes_where_its_route_says(self, new_app: NewApp) -> None:
        app = new_app(task_routes={"parcel.scan": {"queue": "scans"}})
        parcels = define(app, "defer")
        worker, scanner = Worker(app), Worker(app)
        parcels.saga.scan("1")
        parcels.become(worker, "sent")
        assert worker.waiting() == []

        app.conf.task_default_queue = "scans"
        (sent,) = scanner.waiting()
        assert sent.task == "parcel.scan"
        scanner.run()
        assert parcels.seen == ["scanned 1"]

    def test_released_message_goes_where_it_was_sent(self, app: Celery) -> None:
        """By its sender, whatever the app's routes say."""
        parcels, worker = define(app, "defer"), Worker(app)
        parcels.saga.scan.apply_async(("1",), queue="scans")
        app.conf.task_default_queue = "scans"
        Worker(app).run()
        app.conf.task_default_queue = "celery"
        assert parcels.waiting == ["parcel.scan"]
        parcels.become(worker, "sent")
        assert worker.waiting() == []

        app.conf.task_default_queue = "scans"
        Worker(app).run()
        assert parcels.seen == ["scanned 1"]

    def test_priority(self, app: Celery) -> None:
        parcels, worker = define(app, "defer"), Worker(app)
        parcels.saga.scan.apply_async(("1",), priority=7)
        worker.run()
        assert '"priority":7' in parcels.pending.deferred[0].payload.replace(" ", "")


class TestRenaming:
    """Messages that were deferred by the code of then."""

    @pytest.fixture
    def waiting(self, app: Celery) -> str:
        class Parcel(Saga, correlate_by="number", status_by="status"):
            number: str
            status: Literal["packed", "sent"] = "packed"

        @Parcel.starts
        def pack(parcel: Parcel, number: str) -> None: ...

        @Parcel.handles(when="sent", if_not="defer", defer_for=HOUR)
        def scan(parcel: Parcel, number: str) -> None: ...

        pack("1")
        scan.apply_async(("1",), task_id="m1")
        Worker(app).run()
        parcel = Parcel.find("1")
        assert parcel is not None
        assert [message.id for message in parcel.saga.deferred] == ["m1"]
        registry.sagas.clear()
        registry.steps.clear()
        return "m1"

    @pytest.mark.parametrize("renames", [True, False])
    def test_of_the_saga_and_its_steps(self, app: Celery, waiting: str, renames: bool) -> None:
        class Box(Saga, correlate_by="number", status_by="status", formerly="parcel"):
            number: str
            status: Literal["packed", "sent"] = "packed"
            seen: list[str] = []

        @Box.handles(formerly="parcel.scan", when="sent", if_not="defer", defer_for=HOUR)
        def read(box: Box, number: str) -> None:
            box.seen.append("read")

        @Box.handles(to="sent")
        def send(box: Box, number: str) -> None: ...

        if renames:
            assert run(app, "rename").exit_code == 0
        worker = Worker(app)
        send("1")
        (released,) = worker.run()
        worker.deliver_again(released)
        box = Box.find("1")
        assert box is not None
        assert (box.seen, box.saga.deferred, backend_of(app).outbox.count()) == (["read"], (), 0)


class TestOperators:
    @pytest.fixture
    def letter(self, app: Celery) -> str:
        parcels, worker = define(app, "raise"), Worker(app)
        parcels.saga.scan.apply_async(("1",), task_id="m1")
        worker.run()
        (letter,) = parcels.dead
        return letter.id

    def test_list(self, app: Celery, letter: str) -> None:
        (_, row) = run(app, "dead", "list").output.splitlines()
        assert row.startswith(letter)
        assert row.endswith("parcel.scan  1    WrongStatus")

    def test_show(self, app: Celery, letter: str) -> None:
        """It says what the step expects, and what to do."""
        output = run(app, "dead", "show", letter).output
        assert "parcel '1' is 'packed', and parcel.scan runs only when it is 'sent'." in output
        assert "Retry the dead letter once that is so" in output


@pytest.mark.parametrize("is_batching", [False, True], ids=["task", "batch"])
class TestCelerysSignals:
    """A message that is deferred has neither succeeded nor failed: its task is ignored, and succeeds when it is handled."""

    def test_success(self, app: Celery, is_batching: bool) -> None:
        heard: list[Any] = []

        def hear(sender: Any, result: Any, **_: object) -> None:
            heard.append((sender.name, result))

        parcels, worker = define(app, "defer"), Worker(app, is_batching=is_batching)
        parcels.saga.scan.delay("1")
        with connected(signals.task_success, hear):
            worker.run()
            assert heard == []
            parcels.become(worker, "sent")
            worker.run()
        assert heard == [("parcel.do", None), ("parcel.scan", "scan 1")]

    def test_state(self, app: Celery, is_batching: bool) -> None:
        heard: list[str] = []

        def hear(state: str, **_: object) -> None:
            heard.append(state)

        parcels, worker = define(app, "defer"), Worker(app, is_batching=is_batching)
        parcels.saga.scan.apply_async(("1",), task_id="m1")
        with connected(signals.task_postrun, hear):
            delivered = worker.one()
            worker.deliver_again(delivered)
        assert heard == ["IGNORED", "IGNORED"]


@contextmanager
def connected(signal: Any, receiver: Any) -> Iterator[None]:
    """Have a receiver hear a signal meanwhile."""
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)
