"""The main process of a worker, as far as it sees a task fail that a process of its pool has run."""

from collections.abc import Callable
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.worker.request import Request

from celery_sagas.worker.failures.requests import keeping_failures


@pytest.fixture
def fates() -> list[str]:
    """What became of the messages in the main process."""
    return []


def request_for(app: Celery, fates: list[str], wrap: Callable[[Any], Any] = keeping_failures) -> Any:
    """Return the request of the message in the queue, as the main process makes it."""
    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        message = queue.get_nowait()
        message.ack()
    return wrap(Request)(
        message,
        app=app,
        on_ack=lambda *_: fates.append("acked"),
        on_reject=lambda *given: fates.append("requeued" if given[-1] else "rejected"),
        hostname="test",
    )


def fail_with(request: Any, error: BaseException) -> None:
    """Do what a pool does when a task has failed."""
    request.on_failure(info_of(error), return_ok=True)


def info_of(error: BaseException) -> ExceptionInfo:
    """Return what a pool hands to its main process."""

    def fail() -> None:
        raise error

    try:
        fail()
    except BaseException:
        return ExceptionInfo()
