"""Publishing with confirms and deadlines, over connections of our own."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from amqp.exceptions import AccessRefused, NotFound
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Exchange, Queue

from celery_sagas import Message, Saga, publish
from celery_sagas.errors import PublishError, Unconfirmed, Unroutable
from celery_sagas.stores.records import OutboxRow
from celery_sagas.worker.failures import redelivery
from celery_sagas.worker.publishing import open_publisher, publisher
from celery_sagas.worker.publishing import redis as redis_publisher
from celery_sagas.worker.publishing.publisher import DEADLINE_S, ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import serialized
from tests.apps import NewApp, Worker, backend_of, interposed
from tests.servers import unique
from tests.waiting import wait_until

UNREADABLE = OutboxRow("row", "sent", "x", "plain", "{", due_at=0, attempts=0, instance_id="", step="", cause="")


class Interrupted:
    """A signature whose publishing is interrupted; it keeps the connection."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.options: dict[str, Any] = {}
        self.connections: list[Any] = []

    def apply_async(self, producer: Any, **_: Any) -> None:
        """Begin to publish."""
        producer.connection.ensure_connection()
        assert producer.connection.connected
        self.connections.append(producer.connection)
        raise self.error


class SilentBroker:
    """A Redis server that accepts connections, and never answers."""

    def __init__(self, server: socket.socket) -> None:
        self.url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        self._server = server

    def asked(self) -> int:
        """Return how many connections were made since the last call."""
        asked = 0
        self._server.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._server.accept()[0].close()
                asked += 1
        return asked


@pytest.fixture
def silent_broker() -> Iterator[SilentBroker]:
    """A broker that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield SilentBroker(server)


@pytest.mark.parametrize(
    "error", [SoftTimeLimitExceeded(), KeyboardInterrupt(), SystemExit(1), KeyError("x"), OSError("gone")], ids=repr
)
def test_interrupted_connection_is_not_used_again(app: Celery, worker: Worker, error: BaseException) -> None:
    """The next command would read the answer to this one."""
    confirmed = open_publisher(app)
    interrupted: Any = Interrupted(error)

    with pytest.raises(PublishError if isinstance(error, Exception) else type(error)):
        confirmed.publish_signature(interrupted)

    assert not interrupted.connections[0].connected
    confirmed.publish_signature(app.signature("plain", task_id="m1"))
    assert [message.id for message in worker.waiting()] == ["m1"]
    confirmed.close()


def test_connection_is_kept_while_all_is_well(app: Celery) -> None:
    """Not one for each message."""
    confirmed = open_publisher(app)
    connections = []
    for _ in range(3):
        with confirmed._connected() as producer:
            producer.connection.ensure_connection()
            connections.append(producer.connection)

    assert connections[0].connected
    assert len({id(connection) for connection in connections}) == 1
    confirmed.close()
    assert not connections[0].connected


def test_one_that_publishes_within_another_has_a_connection_of_its_own(app: Celery) -> None:
    """A receiver of Celery's signals may do that."""
    confirmed = open_publisher(app)
    assert isinstance(confirmed, ConfirmedPublisher)
    with confirmed._producer() as outer, confirmed._producer() as inner:
        assert inner is not outer
        assert inner.connection is not outer.connection
    confirmed.close()
    assert not outer.connection.connected
    assert not inner.connection.connected


def test_connection_that_is_in_use_at_the_end_is_closed_after_it(app: Celery) -> None:
    confirmed = ConfirmedPublisher(app)
    with confirmed._producer() as producer:
        confirmed.close()
        assert producer.connection.connected
    assert not producer.connection.connected


@pytest.mark.parametrize("limit", [None, 0, 1])
def test_any_pool_limit(new_app: NewApp, limit: int | None) -> None:
    """Celery's setting; where there is none, nothing is kept."""
    app = new_app(broker_pool_limit=limit)
    confirmed = open_publisher(app)
    for _ in range(3):
        confirmed.publish_signature(app.signature("plain"))
    with confirmed._producer() as producer:
        pass
    assert producer.connection.connected is bool(limit)
    confirmed.close()

    assert len(Worker(app).waiting()) == 3


@pytest.mark.parametrize(
    ("error", "connection"),
    [(OSError("x"), True), (SoftTimeLimitExceeded(), True), (ValueError("x"), False), (KeyError("x"), False)],
)
def test_errors_of_the_connection_are_told_from_those_of_a_message(app: Celery, error: Exception, connection: bool) -> None:
    """The former end the sweep."""
    interrupted: Any = Interrupted(error)

    with pytest.raises(PublishError) as raised:
        open_publisher(app).publish_signature(interrupted)

    assert raised.value.connection is connection
    assert isinstance(raised.value, Unconfirmed) is isinstance(error, OSError)
    assert raised.value.__cause__ is error


def test_refused_login_is_not_about_the_message(app: Celery) -> None:
    """Nor is it in the middle: a password may be changed while connections are open."""
    refused: Any = Interrupted(AccessRefused("login", (0, 0)))
    with pytest.raises(PublishError) as raised:
        open_publisher(app).publish_signature(refused)
    assert raised.value.connection


def test_row_that_cannot_be_read(app: Celery) -> None:
    """It says nothing about the broker."""

    with pytest.raises(PublishError, match="its row cannot be read") as raised:
        open_publisher(app).publish(UNREADABLE)
    assert not raised.value.connection


def test_time_limit_that_passes_while_a_row_is_read_is_not_charged_to_it(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's time is over: the row may be as good as any."""

    def late(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(publisher, "deserialized", late)

    with pytest.raises(PublishError) as raised:
        open_publisher(app).publish(UNREADABLE)
    assert raised.value.connection
    assert not isinstance(raised.value, Unconfirmed)


@pytest.mark.usefixtures("long_timeouts")
@pytest.mark.parametrize(
    ("options", "cause", "unconfirmed"),
    [
        ({"queue": "full"}, "MessageNacked", False),
        ({"queue": "held"}, "ResourceLocked", False),
        ({"headers": {"a": {1}}}, "FrameSyntaxError", False),
        ({"headers": {"a": float("nan")}}, "InternalError", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_rabbitmq_refuses(
    new_app: NewApp, rabbitmq_url: str, options: dict[str, Any], cause: str, unconfirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kombu takes some of it for a connection that is lost; only where the broker ends the connection nobody can tell."""
    app = new_app(broker_url=rabbitmq_url)
    names = {name: unique(name) for name in ("full", "held")}
    limits = {"x-max-length": 0, "x-overflow": "reject-publish"}
    app.conf.task_queues = [Queue(names["full"], queue_arguments=limits), Queue(names["held"])]
    app.conf.task_default_queue = names["full"]
    options = {**options, "queue": names[options.get("queue", "full")]}
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_declare(names["held"], exclusive=True)
        sent = app.signature("plain", task_id="m1").set(**options)
        monkeypatch.setattr(publisher, "deserialized", lambda *_: sent)
        confirmed = open_publisher(app)
        with pytest.raises(PublishError) as raised:
            confirmed.publish(UNREADABLE)
        with pytest.raises(PublishError) as raised_without_row:
            confirmed.publish_signature(sent)
        for name in names.values():
            channel.queue_delete(name)

    assert type(raised.value.__cause__).__name__ == cause
    assert isinstance(raised.value, Unconfirmed) is unconfirmed
    assert raised.value.connection is unconfirmed
    assert raised_without_row.value.connection is (
        cause != "FrameSyntaxError"
    )  # who keeps no count redelivers it later while it may pass


@pytest.mark.usefixtures("long_timeouts")
class TestWhatNoQueueTakes:
    """RabbitMQ confirms it, and it is gone."""

    @pytest.fixture
    def app(self, rabbitmq_app: Celery) -> Celery:
        return rabbitmq_app

    @pytest.fixture
    def confirmed(self, app: Celery) -> Iterator[ConfirmedPublisher]:
        with closing(open_publisher(app)) as confirmed:
            yield confirmed

    def test_it_is_an_error_that_names_the_route(self, app: Celery, confirmed: ConfirmedPublisher) -> None:
        """And not a word of it is left on the connection, which takes the next message."""
        nowhere = app.signature("plain", task_id="m1").set(exchange="amq.topic", routing_key="to.nobody")

        with pytest.raises(Unroutable, match=r"'amq\.topic' with the routing key 'to\.nobody'") as raised:
            confirmed.publish_signature(nowhere)
        confirmed.publish_signature(app.signature("plain", task_id="m2"))

        assert not raised.value.connection
        assert [message.id for message in Worker(app).waiting()] == ["m2"]

    def test_a_message_may_find_nobody_if_it_says_so(self, app: Celery, confirmed: ConfirmedPublisher) -> None:
        nowhere = app.signature("plain", task_id="m1").set(exchange="amq.fanout", routing_key="", mandatory=False)

        confirmed.publish_signature(nowhere)

    def test_a_queue_that_was_deleted_is_declared_anew(self, app: Celery, confirmed: ConfirmedPublisher) -> None:
        """The first attempt finds out."""
        confirmed.publish_signature(app.signature("plain", task_id="m1"))
        with app.connection_for_read() as connection, connection.channel() as channel:
            channel.queue_delete(app.conf.task_default_queue)

        confirmed.publish_signature(app.signature("plain", task_id="m2"))

        assert [message.id for message in Worker(app).waiting()] == ["m2"]

    def test_a_queue_that_expired_is_declared_anew(self, app: Celery, confirmed: ConfirmedPublisher) -> None:
        queue = Queue(app.conf.task_default_queue, expires=1)
        app.conf.task_queues = [queue]
        look = app.signature("plain", task_id="look").set(exchange="amq.topic", routing_key=queue.name)

        def is_bound() -> bool:
            confirmed.publish_signature(app.signature("plain", task_id="m1"))
            try:
                with app.connection_for_read() as connection, connection.channel() as channel:
                    channel.queue_bind(queue.name, "amq.topic", queue.name)
            except NotFound:  # it has expired already
                return False
            return True

        def is_gone() -> bool:
            try:
                other.publish_signature(look)  # to declare it would keep it
            except Unroutable:
                return True
            return False

        wait_until(is_bound, "a queue that is bound")
        with closing(open_publisher(app)) as other:
            wait_until(is_gone, "the end of the queue")
        app.amqp.queues[queue.name].expires = 600  # what is declared now shall last for as long as the test
        confirmed.publish_signature(app.signature("plain", task_id="m2"))

        with app.connection_for_read() as connection, connection.channel() as channel:
            assert channel.queue_declare(queue.name, passive=True).message_count == 1

    def test_the_probe_finds_no_queue_and_is_content(self, confirmed: ConfirmedPublisher) -> None:
        confirmed.probe()

    def test_who_publishes_an_event_is_told(self, app: Celery) -> None:
        """It is not taken for published."""
        app.conf.task_routes = {"celery_sagas.publish": {"exchange": "amq.topic", "routing_key": "to.nobody"}}

        class Placed(Message):
            order_id: str

        with pytest.raises(Unroutable):
            publish(Placed(order_id="42"))

    def test_a_retry_that_no_queue_takes_is_given_back(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """The broker keeps the message."""
        monkeypatch.setattr(redelivery, "HELD_S", 0)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True, default_retry_delay=0)
        def place(task: Any, order: Order, order_id: str) -> None:
            raise task.retry(exchange="amq.topic", routing_key="to.nobody")

        place.delay("42")

        assert Worker(app).one().fate == "requeued"


def test_silent_broker_has_a_deadline(new_app: NewApp, silent_broker: SilentBroker) -> None:
    """It is asked twice, each time for as long as a socket waits; ``send_task`` blocked for over a minute."""
    options = {"socket_timeout": 0.2, "socket_connect_timeout": 0.2}
    app = new_app(broker_url=silent_broker.url, broker_transport_options=options)

    with pytest.raises(PublishError) as raised:
        open_publisher(app).publish_signature(app.signature("plain"))

    assert raised.value.connection
    assert silent_broker.asked() == 2


def test_absent_broker_does_not_fail_a_step(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends stays in the outbox; nobody waits for the broker once for each message."""
    app = new_app(broker_url="redis://127.0.0.1:1/0")

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(app.signature("plain"))
        order.send(app.signature("plain"))

    asked, checked_out = list[str](), ConfirmedPublisher._producer

    def note(self: ConfirmedPublisher) -> Any:
        asked.append("asked")
        return checked_out(self)

    monkeypatch.setattr(ConfirmedPublisher, "_producer", note)
    place("42")

    assert Order.find("42") is not None
    assert backend_of(app).outbox.count() == 2
    assert asked == ["asked"]


@pytest.mark.parametrize(
    ("broker", "options"),
    [
        ("amqp://", {"confirm_publish": True, "read_timeout": DEADLINE_S, "write_timeout": DEADLINE_S}),
        ("redis://", {"socket_timeout": DEADLINE_S, "socket_connect_timeout": DEADLINE_S}),
        ("memory://", {}),
    ],
)
def test_deadlines_of_each_broker(new_app: NewApp, broker: str, options: dict[str, Any]) -> None:
    """Without ``confirm_publish`` a message that never reached RabbitMQ was reported sent."""
    confirmed = open_publisher(new_app(broker_url=broker))

    connection = confirmed._connection
    assert connection.transport_options == options
    assert connection.connect_timeout == DEADLINE_S


def test_amqp_confirms_have_a_deadline(new_app: NewApp) -> None:
    """With confirms, and without it, the call blocked."""
    assert open_publisher(new_app(broker_url="amqp://"))._options["confirm_timeout"] == DEADLINE_S


def test_new_connections_look_for_no_other_driver(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption in the middle of an import may leave its lock taken indefinitely."""
    sender = open_publisher(new_app(broker_url="amqp://127.0.0.1:1"))
    monkeypatch.setattr("kombu.connection.supports_librabbitmq", lambda: pytest.fail("looked"))

    assert sender._connection.clone().transport.driver_type == "amqp"


def test_options_of_the_user_go_first(new_app: NewApp) -> None:
    """They know their broker."""
    options = {"socket_timeout": 1, "global_keyprefix": "x"}
    confirmed = open_publisher(new_app(broker_url="redis://", broker_transport_options=options))

    assert confirmed._connection.transport_options == {"socket_connect_timeout": DEADLINE_S, **options}


def test_deadlines_leave_room_for_both_tries_in_the_default_grace() -> None:
    """A publish that began in time ends before the lease does."""
    assert 2 * DEADLINE_S + publisher.RETRY_POLICY["interval_max"] < 30 / 2


@pytest.mark.usefixtures("long_timeouts")
def test_through_redis(new_app: NewApp, redis_url: str) -> None:
    """A real broker, and a time-out in the middle of a command."""
    app = new_app(broker_url=redis_url)
    worker = Worker(app)

    @app.task(name="plain")
    def plain(text: str) -> None: ...

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(plain.si(order_id))

    interrupted: Any = Interrupted(SoftTimeLimitExceeded())
    with pytest.raises(PublishError):
        runtime_of(app).publisher.publish_signature(interrupted)
    interposed(app)
    place.delay("42")
    worker.run()

    assert [done.args for done in worker.done] == [["42"], ["42"]]
    assert backend_of(app).outbox.count() == 0


@pytest.mark.usefixtures("long_timeouts")
def test_connection_to_redis_that_died_while_it_was_idle(new_app: NewApp, redis_url: str) -> None:
    """The message goes over another, once."""
    app = new_app(broker_url=redis_url)
    with closing(open_publisher(app)) as confirmed:
        confirmed.publish_signature(app.signature("plain", task_id="m1"))
        with confirmed._connected() as producer, redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_id=str(producer.channel.kept.client_id()))

        confirmed.publish_signature(app.signature("plain", task_id="m2"))

    assert [message.id for message in Worker(app).waiting()] == ["m1", "m2"]


def test_eager_apps_publish_inline(eager: Celery) -> None:
    """And have nothing to close."""
    eager_publisher = runtime_of(eager).publisher

    assert isinstance(eager_publisher, EagerPublisher)
    assert eager_publisher.inline
    eager_publisher.close()


@pytest.mark.usefixtures("long_timeouts")
def test_probe_leaves_nothing_in_redis(new_app: NewApp, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a key, for a second; here for so long that it is seen."""
    assert redis_publisher._PROBED_MS == 1_000
    monkeypatch.setattr(redis_publisher, "_PROBED_MS", 240_000)
    confirmed = open_publisher(new_app(broker_url=redis_url))
    with redis.Redis.from_url(redis_url) as client:

        def clients() -> set[str]:
            """Return the connections to this database, of which there is one for each process of these tests."""
            return {each["id"] for each in client.client_list() if each["db"] == str(client.get_connection_kwargs()["db"])}

        before, earlier = set(client.keys()), clients()
        confirmed.probe()
        (key,) = set(client.keys()) - before
        assert 0 < client.pttl(key) <= 240_000
        client.delete(key)
        wait_until(lambda: clients() <= earlier, "the end of its connection")


def test_probe_has_a_deadline(new_app: NewApp, silent_broker: SilentBroker) -> None:
    app = new_app(broker_url=silent_broker.url, broker_transport_options={"socket_timeout": 0.2})
    with pytest.raises(PublishError) as raised:
        open_publisher(app).probe()
    assert raised.value.connection
    assert silent_broker.asked() == 2


@pytest.mark.parametrize(
    ("broker", "error", "is_there"),
    [
        ("pyamqp://", AccessRefused("amq.default"), True),
        ("pyamqp://", OSError("timed out"), False),
        ("pyamqp://", AccessRefused("login", (0, 0)), False),
        ("redis://", redis.exceptions.NoPermissionError("no permission"), True),
        ("redis://", redis.exceptions.OutOfMemoryError("maxmemory"), False),
    ],
    ids=repr,
)
def test_broker_that_refuses_the_probe_is_there(
    new_app: NewApp, broker: str, error: Exception, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may publish elsewhere."""
    confirmed = open_publisher(new_app(broker_url=broker))

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(confirmed, "_have_taken", fail)
    monkeypatch.setattr(confirmed, "connected", lambda: SimpleNamespace(collect=lambda: None))

    if is_there:
        confirmed.probe()
    else:
        with pytest.raises(PublishError):
            confirmed.probe()


@pytest.mark.server
@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
@pytest.mark.parametrize("type", ["direct", "topic"])
def test_a_row_of_another_app_reaches_its_queue(new_app: NewApp, request: pytest.FixtureRequest, broker: str, type: str) -> None:
    """Behind an exchange of which this app knows nothing, as this app's relay publishes it."""
    url, name = request.getfixturevalue(f"{broker}_url"), unique("route")
    theirs = new_app(broker_url=url, task_queues=[Queue(name, Exchange(f"{name}-exchange", type), routing_key="dead letter.#")])
    theirs.conf.task_default_queue = name
    ours = new_app(broker_url=url)
    dead_letter = theirs.signature("plain", exchange=f"{name}-exchange", routing_key="dead letter.#")
    row = serialized(
        theirs, dead_letter if type == "direct" else dead_letter.set(routing_key="dead letter.air"), lambda: "m1", 10_000
    )
    with theirs.connection_for_write() as connection, connection.channel() as channel:
        theirs.amqp.queues[name].bind(channel).declare()
        with closing(open_publisher(ours)) as confirmed:
            confirmed.publish(UNREADABLE._replace(payload=row.payload))

        assert [message.id for message in Worker(theirs).waiting()] == ["m1"]
        channel.queue_delete(name)
        channel.exchange_delete(f"{name}-exchange")
