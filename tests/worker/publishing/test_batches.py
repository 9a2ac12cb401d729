"""Publishing many messages before waiting for the broker."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import redis as redis_py
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import before_task_publish
from kombu import Queue
from redis.client import Pipeline

from celery_sagas import Saga
from celery_sagas.engine.outbox.publishing import Receipt
from celery_sagas.errors import PublishError, Unconfirmed, Unroutable
from celery_sagas.worker.headers import PUBLICATION
from celery_sagas.worker.publishing import open_publisher, redis
from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.publishing.confirms import ConfirmChannel, Confirms
from celery_sagas.worker.publishing.redis import RedisPublisher
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


def payload_of(app: Celery, **options: Any) -> str:
    return serialized(app, app.signature("plain").set(**options), lambda: str(uuid4()), 10_000).payload


def rows_of(app: Celery, count: int) -> list[Row]:
    made = [serialized(app, app.signature("plain"), lambda: str(uuid4()), 10_000) for _ in range(count)]
    return [Row(each.payload, f"row-{number}", each.message_id) for number, each in enumerate(made)]


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
        confirms.take_back()
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

        assert confirms.unconfirmed == set("abcd")
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
        assert "g" in confirms.unconfirmed
        assert not confirms.unroutable
        confirms.ack(7, True)

        assert confirms.confirmed == set("abcdef")
        assert confirms.unroutable == {"g": error}


@pytest.mark.usefixtures("long_timeouts")
class TestThroughRabbitMQ:
    """A real broker."""

    @pytest.fixture
    def app(self, rabbitmq_app: Celery) -> Celery:
        return rabbitmq_app

    @pytest.fixture
    def publisher(self, app: Celery) -> AmqpPublisher:
        made = runtime_of(app).publisher
        assert isinstance(made, AmqpPublisher)
        return made

    def test_all_are_confirmed(self, app: Celery, publisher: AmqpPublisher) -> None:
        rows = rows_of(app, 250)

        assert publisher.publish_many(rows) == Receipt({row.id for row in rows})
        assert publisher.publish_many(rows[:2]) == Receipt({"row-0", "row-1"})

        assert len(Worker(app).waiting()) == 252

    def test_row_that_cannot_be_written_is_passed_over(self, app: Celery, publisher: AmqpPublisher) -> None:
        """Whoever publishes it alone learns why; the confirmations are those of the others."""
        app.conf.task_create_missing_queues = False
        app.conf.task_queues = [Queue(app.conf.task_default_queue)]
        rows = rows_of(app, 5)
        rows[1].payload = "{"
        rows[2].payload = payload_of(app, queue="no such queue")
        rows[3].payload = payload_of(app, priority=300)

        assert publisher.publish_many(rows) == Receipt({"row-0", "row-4"})
        assert len(Worker(app).waiting()) == 2

    def test_nobody_knows_what_becomes_of_those_that_a_channel_ends_with(self, app: Celery, publisher: AmqpPublisher) -> None:
        """They may have arrived; the connection and the publisher go on."""
        rows = rows_of(app, 2)
        rows[0].payload = payload_of(app, exchange="no such exchange", routing_key="x")

        receipt = publisher.publish_many(rows)

        assert "row-0" not in receipt.confirmed
        assert "row-0" in receipt.unconfirmed
        assert publisher.publish_many(rows[1:]) == Receipt({"row-1"})

    def test_rows_behind_the_end_of_a_channel_are_never_written(self, app: Celery, publisher: AmqpPublisher) -> None:
        """A queue that another connection holds for itself: the server refuses it before the message."""
        held = unique("held")
        rows = rows_of(app, 4)
        rows[2].payload = payload_of(app, queue=held)
        with app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_declare(held, exclusive=True)

            receipt = publisher.publish_many(rows)

        assert receipt.confirmed | receipt.unconfirmed == {"row-0", "row-1"}
        assert len(Worker(app).waiting()) == 2

    def test_broker_that_is_slow_to_confirm(self, app: Celery, publisher: AmqpPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has them, or will have; the first message to an exchange is waited for."""
        monkeypatch.setattr("celery_sagas.worker.publishing.amqp.DEADLINE_S", 0)
        monkeypatch.setattr(ConfirmChannel, "_has_come", lambda self: False)
        rows = rows_of(app, 50)

        assert publisher.publish_many(rows) == Receipt({"row-0"}, {row.id for row in rows[1:]})

    def test_full_queue_refuses(self, app: Celery, publisher: AmqpPublisher) -> None:
        """What is refused is not confirmed."""
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        queue = app.amqp.queues[app.conf.task_default_queue]
        queue.queue_arguments = arguments
        rows = rows_of(app, 5)

        assert publisher.publish_many(rows) == Receipt({"row-0", "row-1"})

    def test_what_no_queue_takes_is_passed_over(self, app: Celery, publisher: AmqpPublisher) -> None:
        """Whoever publishes it alone learns why. A queue that was deleted is declared anew for those behind it."""
        rows = rows_of(app, 6)
        rows[1].payload = payload_of(app, exchange="amq.topic", routing_key="to.nobody")
        rows[4].payload = payload_of(app, exchange="amq.fanout", routing_key="", mandatory=False)

        assert publisher.publish_many(rows) == Receipt({"row-0", "row-2", "row-3", "row-4", "row-5"})
        with app.connection_for_read() as connection, connection.channel() as channel:
            channel.queue_delete(app.conf.task_default_queue)
        receipt = publisher.publish_many(rows[:1])
        again = publisher.publish_many(rows[:1])

        assert receipt.confirmed | again.confirmed == {"row-0"}
        assert len(Worker(app).waiting()) >= 1

    def test_one_connection_serves_all(self, app: Celery, publisher: AmqpPublisher) -> None:
        """Each call opens a channel, and closes it."""
        rows = rows_of(app, 1)
        channels = []
        for _ in range(3):
            publisher.publish_many(rows)
            with publisher._connected() as producer:
                channels.append(len(producer.connection.connection.channels))

        assert len(set(channels)) == 1

    def test_broker_that_is_away(self, new_app: NewApp) -> None:
        """Nobody publishes each message in vain."""
        app = new_app(broker_url="amqp://127.0.0.1:1//")

        with pytest.raises(PublishError) as raised:
            open_publisher(app).publish_many(rows_of(app, 3))
        assert raised.value.connection


@pytest.mark.usefixtures("long_timeouts")
class TestThroughRedis:
    """A real broker, which answers each message."""

    @pytest.fixture
    def app(self, new_app: NewApp, redis_url: str) -> Iterator[Celery]:
        app = new_app(broker_url=redis_url)
        app.conf.task_default_queue = unique("batch")
        yield app
        with app.connection_for_write() as connection:
            connection.default_channel.client.delete(app.conf.task_default_queue)

    @pytest.fixture
    def publisher(self, app: Celery) -> Iterator[RedisPublisher]:
        made = open_publisher(app)
        assert isinstance(made, RedisPublisher)
        with closing(made):
            yield made

    @pytest.fixture
    def trips(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The commands of each round trip of a pipeline."""
        trips, execute = list[int](), Pipeline.execute

        def note(pipeline: Any, raise_on_error: bool = True) -> Any:
            if not raise_on_error:  # else it is kombu's
                trips.append(len(pipeline))
            return execute(pipeline, raise_on_error)

        monkeypatch.setattr(Pipeline, "execute", note)
        return trips

    def arrived(self, app: Celery) -> list[str]:
        return [message.id for message in Worker(app).waiting()]

    def test_all_are_confirmed_in_one_round_trip(self, app: Celery, publisher: RedisPublisher, trips: list[int]) -> None:
        """In their order."""
        rows = rows_of(app, 250)

        assert publisher.publish_many(rows) == Receipt({row.id for row in rows})

        assert trips == [250]
        assert self.arrived(app) == [row.message_id for row in rows]

    def test_they_are_what_celery_publishes(self, app: Celery, publisher: RedisPublisher) -> None:
        """But for what is another each time; priorities have lists of their own."""
        row = Row(payload_of(app, priority=6, headers={"a": 1}), id="a")
        seen: list[Any] = []

        def note(headers: Any, body: Any, **published: Any) -> None:
            seen.append(
                (
                    dict(headers) | {PUBLICATION: ""},
                    body,
                    published["exchange"],
                    published["routing_key"],
                    published["retry_policy"],
                )
            )

        before_task_publish.connect(note)
        publisher.publish_many([row])
        publisher.publish(row)
        before_task_publish.disconnect(note)

        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            texts = client.lrange(f"{app.conf.task_default_queue}\x06\x166", 0, 9)
            client.delete(f"{app.conf.task_default_queue}\x06\x166")
        one, other = (json.loads(text) for text in texts)
        for message in (one, other):
            assert message["properties"].pop("delivery_tag")
            assert message["headers"].pop(PUBLICATION)
        assert one == other
        assert seen[0] == seen[1]

    def test_what_redis_refuses_takes_no_other_with_it(self, app: Celery, publisher: RedisPublisher) -> None:
        """Whoever publishes it alone learns why; the connection goes on."""
        rows = rows_of(app, 4)
        rows[1].payload = payload_of(app, queue=(mistyped := unique("mistyped")))
        rows[2].payload = "{"
        with app.connection_for_write() as connection:
            client = connection.default_channel.client
            client.set(mistyped, "no list")
            assert publisher.publish_many(rows) == Receipt({"row-0", "row-3"})
            with pytest.raises(Unconfirmed, match="WRONGTYPE"):
                publisher.publish(rows[1])
            client.delete(mistyped)

        assert self.arrived(app) == [rows[0].message_id, rows[3].message_id]

    def test_nobody_knows_what_becomes_of_those_at_which_the_connection_is_lost(
        self, app: Celery, publisher: RedisPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those before them are confirmed; the next batch has another connection."""
        monkeypatch.setattr(redis, "_BATCH_CHARACTERS", 1)  # one by one
        rows, execute, answers = rows_of(app, 3), Pipeline.execute, [False, True]

        def lose(pipeline: Any, raise_on_error: bool = True) -> Any:
            replies = execute(pipeline, raise_on_error)
            if not raise_on_error and answers and answers.pop(0):
                raise redis_py.ConnectionError("lost")
            return replies

        monkeypatch.setattr(Pipeline, "execute", lose)

        assert publisher.publish_many(rows) == Receipt({"row-0"}, {"row-1"})
        assert publisher.publish_many(rows[2:]) == Receipt({"row-2"})
        assert self.arrived(app) == [row.message_id for row in rows]

    def test_what_goes_at_once_is_bounded(
        self, app: Celery, publisher: RedisPublisher, trips: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = rows_of(app, 5)
        monkeypatch.setattr(redis, "_BATCH_CHARACTERS", 2 * len(rows[0].payload))

        assert publisher.publish_many(rows).confirmed == {row.id for row in rows}
        assert trips == [2, 2, 1]

    def test_time_limit_ends_it(self, app: Celery, publisher: RedisPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is tried in another way, and nobody reads what was asked on this connection."""

        def late(*_: Any, **__: Any) -> None:
            raise SoftTimeLimitExceeded

        with publisher._connected() as producer:
            connection = producer.connection
        with monkeypatch.context() as patched:
            patched.setattr(Pipeline, "execute", late)
            with pytest.raises(PublishError) as raised:
                publisher.publish_many(rows_of(app, 2))

        assert raised.value.connection
        assert not connection.connected
        assert self.arrived(app) == []

    def test_queues_that_expire(self, app: Celery, publisher: RedisPublisher) -> None:
        """Each message renews the time of its queue, as far as this release of kombu does that."""
        queue = Queue(app.conf.task_default_queue, expires=600)
        app.conf.task_queues = [queue]
        rows = rows_of(app, 3)
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            publisher.publish(rows[0])
            is_renewed = client.pttl(queue.name) > 0
            client.persist(queue.name)

            assert publisher.publish_many(rows[1:]).confirmed == {"row-1", "row-2"}

            assert (client.pttl(queue.name) > 0) is is_renewed
        assert self.arrived(app) == [row.message_id for row in rows]

    def test_a_step_that_sends_several_messages_sends_them_at_once(self, app: Celery, trips: list[int]) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            for _ in range(3):
                order.send(app.signature("plain"))

        place("42")

        assert trips == [3]
        assert len(self.arrived(app)) == 3

    def test_prefixed_keys(self, new_app: NewApp, redis_url: str) -> None:
        """The app's transport options."""
        prefix = unique("prefix")
        app = new_app(broker_url=redis_url, broker_transport_options={"global_keyprefix": prefix})
        with closing(open_publisher(app)) as publisher:
            assert publisher.publish_many(rows_of(app, 2)).confirmed == {"row-0", "row-1"}

        assert len(self.arrived(app)) == 2

    def test_broker_that_is_away(self, new_app: NewApp) -> None:
        app = new_app(broker_url="redis://127.0.0.1:1/0")

        with pytest.raises(PublishError) as raised:
            open_publisher(app).publish_many(rows_of(app, 3))
        assert raised.value.connection


def test_other_brokers_have_no_batches(new_app: NewApp) -> None:
    """Each message is published alone."""
    app = new_app(broker_url="memory://")

    assert open_publisher(app).publish_many(rows_of(app, 2)) == Receipt()
