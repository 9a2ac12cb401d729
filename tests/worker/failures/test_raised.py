"""The traceback of what a task raises: it goes through a pipe of 64 KiB to the worker's main process, with kilobytes a frame."""

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_sagas import Saga
from celery_sagas.errors import InvalidMessage, StoreUnavailable
from tests.apps import Worker, as_tasks, interposed

#: What a process can write, with something small before it, and still has room for its last word: 15 of the pipe's 16 pages.
PIPE = 15 * 4096
AWAY = StoreUnavailable("memory://", "it is away")


def _fail() -> None:
    raise ValueError("no")


@pytest.fixture(params=[(), (Exception,)], ids=["plain", "autoretry"])
def order(app: Celery, request: pytest.FixtureRequest) -> type[Saga]:
    """A saga whose starter fails as it is told to."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(bind=True, autoretry_for=request.param, max_retries=0)
    def place(self: object, order: Order, order_id: str, error: str = "") -> None:
        if error == "retry":
            raise self.retry()  # type: ignore[attr-defined]
        if error in ("Ignore", "Reject"):
            raise {"Ignore": Ignore, "Reject": Reject}[error]()
        if error:
            _fail()

    Order.place = place  # type: ignore[attr-defined]
    return Order


def test_failure_has_the_frames_of_the_users_function(worker: Worker, order: type[Saga]) -> None:
    order.place.delay("42", error="ValueError")  # type: ignore[attr-defined]

    delivered = worker.one()

    assert isinstance(delivered.error, ValueError)
    assert delivered.frames == ["trace_task", "run", "place", "_fail"]
    assert delivered.size < PIPE


def test_failure_of_the_library_has_the_frame_that_raised_it(worker: Worker, order: type[Saga]) -> None:
    worker.app.send_task("order.place", (42, 43, 44), headers={})

    delivered = worker.one()

    assert isinstance(delivered.error, InvalidMessage)
    assert delivered.frames[:2] == ["trace_task", "run"]
    assert len(delivered.frames) == 3


@pytest.mark.parametrize("error", [Ignore, Reject])
def test_end_of_a_delivery_has_no_frames(worker: Worker, order: type[Saga], error: type[Exception]) -> None:
    order.place.delay("42", error=error.__name__)  # type: ignore[attr-defined]

    delivered = worker.one()

    assert (type(delivered.error), delivered.frames) == (error, ["trace_task", "run"])


@as_tasks
def test_message_that_is_redelivered_later_has_no_frames(worker: Worker, order: type[Saga]) -> None:
    def fail() -> None:
        raise AWAY

    interposed(worker.app).once_before("find", fail)
    order.place.delay("42")  # type: ignore[attr-defined]

    delivered = worker.one()

    assert isinstance(delivered.error, Ignore)
    assert delivered.error.__cause__ is None
    assert delivered.error.__suppress_context__
    assert delivered.frames == ["trace_task", "run"]
    assert delivered.size < PIPE
