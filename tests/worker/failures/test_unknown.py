"""The message of an unknown task, once it is kept: all is done with it that Celery does, but for saying that it is discarded."""

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, signals
from celery.worker.consumer import Consumer

from celery_sagas.worker.failures.unknown import KeepUnknownTasks
from celery_sagas.worker.headers import STEP
from tests.apps import backend_of

SENT = {"task": "order.absent", "id": "m1", STEP: True}


@pytest.fixture
def consumer(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A consumer that notes what is done with a message."""
    made: Any = Mock(app=app, connection_errors=())
    made.on_unknown_task = partial(Consumer.on_unknown_task, made)
    monkeypatch.setattr(app.backend, "mark_as_failure", made.mark_as_failure)
    return made


def message_of(headers: dict[str, Any], consumer: Any, payload: Any = ([], {}, {})) -> Any:
    """Return a message as kombu delivers it."""
    properties = {"reply_to": "replies", "correlation_id": "c1"}
    rest: dict[str, Any] = {"body": b"", "payload": payload, "delivery_info": {}, "reject_log_error": consumer.reject}
    return SimpleNamespace(headers=headers, properties=properties, **rest)


def done_with(message: Any, consumer: Any) -> list[Any]:
    """Return what a consumer does with the message of an unknown task."""
    consumer.mark_as_failure.side_effect = lambda id, error, request: told.append(("result", id, repr(error), vars(request)))
    consumer.reject.side_effect = lambda logger, errors, requeue=False: told.append(("rejected", errors, requeue))
    consumer.event_dispatcher.send.side_effect = lambda *given, **fields: told.append(("event", given, fields))
    told: list[Any] = []

    def hear(**given: Any) -> None:
        told.append(("signal", given["sender"], given["message"], given["exc"], given["name"], given["id"]))

    signals.task_unknown.connect(hear)
    try:
        consumer.on_unknown_task(None, message, ABSENT)
    finally:
        signals.task_unknown.disconnect(hear)
    return told


ABSENT = KeyError("order.absent")


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        (SENT, ([], {}, {})),
        (SENT | {"root_id": "r1"}, ([], {}, {})),
        ({STEP: True}, {"task": "order.absent", "id": "m1", "args": [], "kwargs": {}}),
    ],
    ids=["protocol 2", "with a root", "protocol 1"],
)
def test_is_what_celery_does(
    app: Celery, consumer: Any, headers: dict[str, Any], payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    message = message_of(headers, consumer, payload)
    by_celery = done_with(message, consumer)
    assert "has been ignored and discarded" in caplog.text
    caplog.clear()
    KeepUnknownTasks(consumer).create(consumer)

    assert done_with(message, consumer) == by_celery
    assert [dead_letter.task for dead_letter in backend_of(app).dead.list(10)] == ["order.absent"]
    assert "is kept as the dead letter" in caplog.text
    assert "has been ignored and discarded" not in caplog.text


@pytest.mark.parametrize("id", [None, 5, ["a"], "", "\ud800", "x" * 300])
def test_no_result_is_kept_under_what_is_no_id(app: Celery, consumer: Any, id: object) -> None:
    KeepUnknownTasks(consumer).create(consumer)

    told = done_with(message_of(SENT | {"id": id}, consumer), consumer)

    assert [what for what, *_ in told] == ["rejected", "signal"]
    assert len(backend_of(app).dead.list(10)) == 1
