"""Publishing many messages before waiting for the broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Queue

from celery_sagas.engine.relay import Receipt
from celery_sagas.errors import Unroutable
from celery_sagas.worker.confirms import ConfirmChannel, Confirms
from celery_sagas.worker.pipeline import AmqpPipeline, pipeline_of
from celery_sagas.worker.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import serialized
from tests.apps import NewApp, Worker
from tests.servers import unique


@dataclass
class Row:
    """A row of the outbox."""

    payload: str
    id: str = ""
    message_id: str = ""
    task: str = "plain"


class TestConfirms:
    """What the broker says of each message."""

    @pytest.fixture
    def confirms(self) -> Confirms:
        made = Confirms()
        for id in "abcd":
            made.expect(id)
        return made

    def test_one(self, confirms: Confirms) -> None:
        confirms.ack(2, False)

        assert confirms.confirmed == {"b"}
        assert list(confirms.expected.values()) == ["a", "c", "d"]

    def test_several(self, confirms: Confirms) -> None:
        confirms.ack(2, False)
        confirms.ack(3, True)

        assert confirms.confirmed == {"a", "b", "c"}

    def test_not_written(self, confirms: Confirms) -> None:
        """The next has its number."""
        confirms.withdraw()
        confirms.expect("e")
        confirms.ack(4, False)

        assert confirms.confirmed == {"e"}
        assert list(confirms.expected.values()) == ["a", "b", "c"]

    def test_what_is_no_row(self, confirms: Confirms) -> None:
        """It is counted, and nobody asks for it; its confirmation may come before that of the row it is about."""
        confirms.expect("")
        confirms.ack(5, False)
        assert confirms.confirmed == set()
        confirms.expect("")

        assert confirms.unsure == set("abcd")
        confirms.ack(6, True)
        assert confirms.confirmed == set("abcd")

    def test_refused(self, confirms: Confirms) -> None:
        """It is not confirmed, and not waited for."""
        confirms.nack(1, False)
        confirms.ack(3, True)
        confirms.nack(4, True)

        assert confirms.confirmed == {"b", "c"}
        assert confirms.refused == {"a", "d"}
        assert not confirms.expected

    def test_what_no_queue_takes(self, confirms: Confirms) -> None:
        """It comes back before it is confirmed, and what was confirmed before it does not."""
        for id, correlation in (("e", "1"), ("f", "2"), ("g", "2")):
            confirms.expect(id, correlation)
        error = Unroutable("", "gone")
        confirms.ack(6, False)
        confirms.send_back("2", error)
        assert "g" in confirms.unsure
        assert not confirms.unroutable
        confirms.ack(7, True)

        assert confirms.confirmed == set("abcdef")
        assert confirms.unroutable == {"g": error}


@pytest.mark.usefixtures("patience")
class TestThroughRabbitMQ:
    """A real broker."""

    @pytest.fixture
    def app(self, new_app: NewApp, rabbitmq_url: str) -> Iterator[Celery]:
        app = new_app(broker_url=rabbitmq_url)
        app.conf.task_default_queue = unique("pipeline")
        yield app
        with app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_delete(app.conf.task_default_queue)
            channel.exchange_delete(app.conf.task_default_queue)

    @pytest.fixture
    def pipeline(self, app: Celery) -> AmqpPipeline:
        made = pipeline_of(app, runtime_of(app).publisher)
        assert made is not None
        return made

    def rows(self, app: Celery, count: int) -> list[Row]:
        payloads = [serialized(app, app.signature("plain"), lambda: str(uuid4()), 10_000).payload for _ in range(count)]
        return [Row(payload, id=f"row-{number}") for number, payload in enumerate(payloads)]

    def payload(self, app: Celery, **options: Any) -> str:
        return serialized(app, app.signature("plain").set(**options), lambda: str(uuid4()), 10_000).payload

    def test_all_are_confirmed(self, app: Celery, pipeline: AmqpPipeline) -> None:
        rows = self.rows(app, 250)

        assert pipeline.publish(rows) == Receipt({row.id for row in rows})
        assert pipeline.publish(rows[:2]) == Receipt({"row-0", "row-1"})

        assert len(Worker(app).waiting()) == 252

    def test_row_that_cannot_be_written_is_passed_over(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """Whoever publishes it alone learns why; the confirmations are those of the others."""
        app.conf.task_create_missing_queues = False
        app.conf.task_queues = [Queue(app.conf.task_default_queue)]
        rows = self.rows(app, 5)
        rows[1].payload = "{"
        rows[2].payload = self.payload(app, queue="no such queue")
        rows[3].payload = self.payload(app, priority=300)

        assert pipeline.publish(rows) == Receipt({"row-0", "row-4"})
        assert len(Worker(app).waiting()) == 2

    def test_nobody_knows_what_becomes_of_those_that_a_channel_ends_with(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """They may have arrived; the connection and the publisher go on."""
        rows = self.rows(app, 2)
        rows[0].payload = self.payload(app, exchange="no such exchange", routing_key="x")

        receipt = pipeline.publish(rows)

        assert "row-0" not in receipt.confirmed
        assert "row-0" in receipt.unsure
        assert pipeline.publish(rows[1:]) == Receipt({"row-1"})

    def test_rows_behind_the_end_of_a_channel_are_never_written(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """A queue that another connection holds for itself: the server refuses it before the message."""
        held = unique("held")
        rows = self.rows(app, 4)
        rows[2].payload = self.payload(app, queue=held)
        with app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_declare(held, exclusive=True)

            receipt = pipeline.publish(rows)

        assert receipt.confirmed | receipt.unsure == {"row-0", "row-1"}
        assert len(Worker(app).waiting()) == 2

    def test_broker_that_is_slow_to_confirm(self, app: Celery, pipeline: AmqpPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has them, or will have; the first message to an exchange is waited for."""
        monkeypatch.setattr("celery_sagas.worker.pipeline.DEADLINE_S", 0)
        monkeypatch.setattr(ConfirmChannel, "_has_come", lambda self: False)
        rows = self.rows(app, 50)

        assert pipeline.publish(rows) == Receipt({"row-0"}, {row.id for row in rows[1:]})

    def test_full_queue_refuses(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """What is refused is not confirmed."""
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        queue = app.amqp.queues[app.conf.task_default_queue]
        queue.queue_arguments = arguments
        rows = self.rows(app, 5)

        assert pipeline.publish(rows) == Receipt({"row-0", "row-1"})

    def test_what_no_queue_takes_is_passed_over(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """Whoever publishes it alone learns why. A queue that was deleted is declared anew for those behind it."""
        rows = self.rows(app, 6)
        rows[1].payload = self.payload(app, exchange="amq.topic", routing_key="to.nobody")
        rows[4].payload = self.payload(app, exchange="amq.fanout", routing_key="", mandatory=False)

        assert pipeline.publish(rows) == Receipt({"row-0", "row-2", "row-3", "row-4", "row-5"})
        with app.connection_for_read() as connection, connection.channel() as channel:
            channel.queue_delete(app.conf.task_default_queue)
        receipt = pipeline.publish(rows[:1])
        again = pipeline.publish(rows[:1])

        assert receipt.confirmed | again.confirmed == {"row-0"}
        assert len(Worker(app).waiting()) >= 1

    def test_one_connection_serves_all(self, app: Celery, pipeline: AmqpPipeline) -> None:
        """Each call opens a channel, and closes it."""
        rows = self.rows(app, 1)
        channels = []
        for _ in range(3):
            pipeline.publish(rows)
            with pipeline._publisher.connection() as connection:
                channels.append(len(connection.connection.channels))

        assert len(set(channels)) == 1

    def test_broker_that_is_away_confirms_nothing(self, new_app: NewApp) -> None:
        app = new_app(broker_url="amqp://127.0.0.1:1//")

        assert AmqpPipeline(app, ConfirmedPublisher(app)).publish(self.rows(app, 3)) == Receipt()


@pytest.mark.parametrize("broker", ["redis://", "memory://"])
def test_other_brokers_have_none(new_app: NewApp, broker: str) -> None:
    """They answer to each message anyway."""
    app = new_app(broker_url=broker)

    assert pipeline_of(app, ConfirmedPublisher(app)) is None


def test_eager_apps_have_none(eager: Celery) -> None:
    """They publish nothing."""
    publisher: Any = runtime_of(eager).publisher

    assert pipeline_of(eager, publisher) is None
