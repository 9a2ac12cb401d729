"""The batch consumer: messages that wait together are buffered together, and run one by one where that cannot be."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Batch, Message, aggregator
from celery_sagas.worker.aggregators.batch_consumer import Arrived, BatchConsumer, buffer_together
from celery_sagas.worker.headers import MESSAGE_ID
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp

NAME = "readings.collect"


class Reading(Message):
    device: str
    celsius: float


class Request:
    """A request, as far as the batch consumer looks at it."""

    def __init__(self, number: int, *, embedded: dict[str, Any] | None = None, **headers: Any) -> None:
        self.id = f"message {number}"
        self.request_dict = headers
        self._payload = ([{"device": "d1", "celsius": number}], {}, embedded or {"callbacks": None, "chain": None})
        self.acknowledged = 0
        self.is_revoked = False

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def revoked(self) -> bool:
        return self.is_revoked


class Consumer:
    """A worker's consumer, whose pool and timer do what they are asked when they are told to."""

    def __init__(self, prefetched: int = 8) -> None:
        self.alone: list[Request] = []
        self.timed: list[Callable[[], None]] = []
        self.jobs: list[dict[str, Any]] = []
        self.decremented = 0
        self.qos = SimpleNamespace(value=prefetched, decrement_eventually=self._decrement)
        self.timer = SimpleNamespace(call_after=lambda seconds, call: self.timed.append(call))
        self.pool = SimpleNamespace(apply_async=self._apply)

    def on_task_request(self, request: Request) -> None:
        self.alone.append(request)

    def _decrement(self) -> None:
        self.decremented += 1

    def _apply(self, target: Any, args: Any, **callbacks: Any) -> None:
        self.jobs.append({"args": args, **callbacks})


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    @aggregator(name=NAME, size=100, group_by="device")
    def collect(batch: Batch[Reading]) -> None:
        """Do nothing."""

    app = new_app()
    app.finalize()
    return app


def _batch_consumer(consumer: Consumer) -> BatchConsumer:
    return BatchConsumer(consumer, SimpleNamespace(name=NAME))


def _buffered(app: Celery) -> list[str]:
    return [item.id for item in runtime_of(app).batches.buffers.read(NAME, "d1", 100)]


def test_half_of_what_a_worker_may_have_unacknowledged_goes_together() -> None:
    consumer = Consumer(prefetched=8)
    batch_consumer = _batch_consumer(consumer)
    for number in range(7):
        batch_consumer.on_task_request(Request(number))
    assert [len(job["args"][1]) for job in consumer.jobs] == [4]


def test_what_waits_goes_when_its_time_is_over() -> None:
    consumer = Consumer()
    batch_consumer = _batch_consumer(consumer)
    for number in range(2):
        batch_consumer.on_task_request(Request(number))
    assert consumer.jobs == []
    (end,) = consumer.timed
    end()
    assert [each.task_id for each in consumer.jobs[0]["args"][1]] == ["message 0", "message 1"]
    end()
    assert len(consumer.jobs) == 1, "nothing waited"


def test_what_was_buffered_is_acknowledged_and_the_rest_runs_alone() -> None:
    consumer, requests = Consumer(prefetched=4), [Request(0), Request(1)]
    batch_consumer = _batch_consumer(consumer)
    for request in requests:
        batch_consumer.on_task_request(request)
    consumer.jobs[0]["callback"]([1])
    assert [request.acknowledged for request in requests] == [1, 0]
    assert consumer.alone == requests[1:]


def test_everything_runs_alone_if_its_process_dies() -> None:
    consumer, requests = Consumer(prefetched=4), [Request(0), Request(1)]
    batch_consumer = _batch_consumer(consumer)
    for request in requests:
        batch_consumer.on_task_request(request)
    consumer.jobs[0]["error_callback"](RuntimeError())
    assert consumer.alone == requests
    assert not any(request.acknowledged for request in requests)


@pytest.mark.parametrize("followed_by", ["callbacks", "errbacks", "chain", "chord"])
def test_a_message_that_others_follow_runs_alone(followed_by: str) -> None:
    consumer = Consumer()
    request = Request(0, embedded={followed_by: [{"task": "next"}]})
    _batch_consumer(consumer).on_task_request(request)
    assert consumer.alone == [request]


def test_a_message_that_cannot_be_decoded_runs_alone() -> None:
    consumer, request = Consumer(), Request(0)
    del request._payload
    _batch_consumer(consumer).on_task_request(request)
    assert consumer.alone == [request]


def test_a_message_that_has_waited_for_its_time_is_counted_no_more() -> None:
    consumer = Consumer(prefetched=1)
    _batch_consumer(consumer).apply_eta_task(Request(0))
    assert consumer.decremented == 1
    assert len(consumer.jobs) == 1


def test_items_are_buffered_under_their_messages_ids(app: Celery) -> None:
    """They may be buffered under an id that their producer gave them."""
    arrived = [
        Arrived("message 1", None, [{"device": "d1", "celsius": 1}], {}),
        Arrived("message 2", "mqtt-7", [], {"device": "d1", "celsius": 2}),
    ]
    assert buffer_together(NAME, arrived) == []
    assert buffer_together(NAME, arrived) == []
    assert _buffered(app) == ["message 1", "mqtt-7"]


def test_what_cannot_be_read_is_left(app: Celery) -> None:
    """It runs alone, which keeps it."""
    arrived = [
        Arrived("message 1", None, [{"device": "d1"}], {}),
        Arrived("message 2", None, [{"device": "d1", "celsius": 2}], {}),
        Arrived("message 3", 7, [{"device": "d1", "celsius": 2}], {}),
    ]
    assert buffer_together(NAME, arrived) == [0, 2]
    assert _buffered(app) == ["message 2"]


def test_everything_is_left_if_the_store_is_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.worker.aggregators.batch_consumer.add_items", _fail)
    assert buffer_together(NAME, [Arrived("message 1", None, [{"device": "d1", "celsius": 1}], {})]) == [0]


def _fail(*_: object) -> int:
    raise RuntimeError


def test_the_header_of_a_producer_names_the_item() -> None:
    consumer = Consumer(prefetched=1)
    _batch_consumer(consumer).on_task_request(Request(0, **{MESSAGE_ID: "mqtt-7"}))
    assert consumer.jobs[0]["args"][1][0].named == "mqtt-7"


def test_a_message_that_was_revoked_is_not_buffered() -> None:
    consumer, request = Consumer(prefetched=1), Request(0)
    request.is_revoked = True
    _batch_consumer(consumer).on_task_request(request)
    assert (consumer.jobs, consumer.alone) == ([], [])


def test_only_messages_for_a_full_group_run_alone(new_app: NewApp) -> None:
    @aggregator(name=NAME, size=2, max_buffered=2, group_by="device")
    def collect(batch: Batch[Reading]) -> None:
        """Do nothing."""

    app = new_app()
    app.finalize()
    arrived = [Arrived(f"{number}", None, [{"device": f"d{number % 3 // 2}", "celsius": number}], {}) for number in range(6)]
    assert buffer_together(NAME, arrived) == [0, 1, 3, 4]
    assert runtime_of(app).batches.buffers.count(NAME).buffered == 2
