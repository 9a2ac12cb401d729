"""The batch consumer: messages that wait together are buffered together, and run one by one where that cannot be."""

from types import SimpleNamespace

import pytest
from celery import Celery

from celery_sagas import Batch, Message, aggregator
from celery_sagas.worker.aggregators.batch_consumer import Arrived, ItemBatches, buffer_together
from celery_sagas.worker.batches.consumer import Settled
from celery_sagas.worker.headers import MESSAGE_ID
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp
from tests.worker.consumers import Consumer, Request

NAME = "readings.collect"


class Reading(Message):
    device: str
    celsius: float


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    @aggregator(name=NAME, size=100, group_by="device")
    def collect(batch: Batch[Reading]) -> None:
        """Do nothing."""

    app = new_app()
    app.finalize()
    return app


def _batch_consumer(consumer: Consumer) -> ItemBatches:
    return ItemBatches(consumer, SimpleNamespace(name=NAME))


def _left(arrived: list[Arrived]) -> list[int]:
    settled = buffer_together(NAME, arrived)
    assert isinstance(settled, Settled)
    return list(settled.left)


def _buffered(app: Celery) -> list[str]:
    return [item.id for item in runtime_of(app).batches.buffers.read(NAME, "d1", 100)]


def test_half_of_what_a_worker_may_have_unacknowledged_goes_together() -> None:
    consumer = Consumer(prefetched=20, processes=4)
    batch_consumer = _batch_consumer(consumer)
    for number in range(20):
        batch_consumer.on_task_request(Request(number))
    assert consumer.sizes == [10, 10]


def test_a_message_that_others_follow_runs_alone() -> None:
    consumer, request = Consumer(), Request(0, embedded={"chain": [{"task": "next"}]})
    _batch_consumer(consumer).on_task_request(request)
    assert consumer.alone == [request]


def test_items_are_buffered_under_their_messages_ids(app: Celery) -> None:
    """They may be buffered under an id that their producer gave them."""
    arrived = [
        Arrived("message 1", None, [{"device": "d1", "celsius": 1}], {}),
        Arrived("message 2", "mqtt-7", [], {"device": "d1", "celsius": 2}),
    ]
    assert _left(arrived) == []
    assert _left(arrived) == []
    assert _buffered(app) == ["message 1", "mqtt-7"]


def test_what_cannot_be_read_is_left(app: Celery) -> None:
    """It runs alone, which keeps it."""
    arrived = [
        Arrived("message 1", None, [{"device": "d1"}], {}),
        Arrived("message 2", None, [{"device": "d1", "celsius": 2}], {}),
        Arrived("message 3", 7, [{"device": "d1", "celsius": 2}], {}),
    ]
    assert _left(arrived) == [0, 2]
    assert _buffered(app) == ["message 2"]


def test_everything_is_left_if_the_store_is_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.worker.aggregators.batch_consumer.add_items", _fail)
    assert _left([Arrived("message 1", None, [{"device": "d1", "celsius": 1}], {})]) == [0]


def _fail(*_: object) -> int:
    raise RuntimeError


def test_the_header_of_a_producer_names_the_item() -> None:
    consumer = Consumer(prefetched=1)
    _batch_consumer(consumer).on_task_request(Request(0, **{MESSAGE_ID: "mqtt-7"}))
    assert consumer.jobs[0]["parts"][0].named == "mqtt-7"


def test_only_messages_for_a_full_group_run_alone(new_app: NewApp) -> None:
    @aggregator(name=NAME, size=2, max_buffered=2, group_by="device")
    def collect(batch: Batch[Reading]) -> None:
        """Do nothing."""

    app = new_app()
    app.finalize()
    arrived = [Arrived(f"{number}", None, [{"device": f"d{number % 3 // 2}", "celsius": number}], {}) for number in range(6)]
    assert _left(arrived) == [0, 1, 3, 4]
    assert runtime_of(app).batches.buffers.count(NAME).buffered == 2
