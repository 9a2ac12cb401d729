"""A step that publishes by itself, past its commit, is told so: once for each place in the code."""

import logging
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Message, Saga, publish
from celery_sagas.worker.process import receivers
from tests.apps import NewApp, Worker


class Event(Message):
    """An event."""

    text: str


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was reported yet."""
    monkeypatch.setattr(receivers, "_logged", set())


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "publishes" in record.message]


def saga_with(handler: Any) -> Any:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(bind=True, default_retry_delay=0)
    def place(self: Any, order: Order, order_id: str) -> None:
        handler(self, order)

    return place


def test_it_is_logged_once_for_each_place(app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="plain")
    def plain() -> None: ...

    def handler(task: Any, order: Any) -> None:
        for _ in range(2):
            plain.delay()
        plain.si().apply_async()

    place = saga_with(handler)
    for key in ("41", "42"):
        place.delay(key)
    worker.run()

    first, second = reports(caplog)
    assert first.startswith("order.place publishes plain itself (")
    assert f"{__file__}:" in first
    assert first.split(":")[1] != second.split(":")[1]
    assert sum(done.task == "plain" for done in worker.done) == 6  # it is told, not hindered


@pytest.mark.parametrize("means", ["send", "publish", "retry", "nothing"])
def test_what_is_no_direct_publish(app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture, means: str) -> None:
    @app.task(name="plain")
    def plain() -> None: ...

    def handler(task: Any, order: Any) -> None:
        if means == "send":
            order.send(plain.si())
        elif means == "publish":
            publish(Event(text="x"))
        elif means == "retry" and not task.request.retries:
            raise task.retry()

    saga_with(handler).delay("42")
    worker.run()

    assert reports(caplog) == []


def test_a_plain_task_may_publish(app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="plain")
    def plain(more: bool) -> None:
        if more:
            plain.delay(False)

    plain.delay(True)
    worker.run()

    assert reports(caplog) == []


def test_it_can_be_allowed(new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app(saga_direct_publish="allow")

    @app.task(name="plain")
    def plain() -> None: ...

    saga_with(lambda task, order: plain.delay()).delay("42")
    with caplog.at_level(logging.WARNING):
        Worker(app).run()

    assert reports(caplog) == []
