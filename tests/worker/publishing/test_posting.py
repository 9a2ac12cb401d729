"""Publishing over RabbitMQ without waiting: a row is confirmed by its own confirmation, and nothing waits for a silent broker."""

import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from amqp.exceptions import ChannelError
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import before_task_publish
from kombu import Queue

from celery_sagas.engine.outbox import confirmations
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.errors import PublishError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.publishing import amqp, confirms, open_publisher
from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.publishing.confirms import AsynchronousChannel, ConfirmChannel
from celery_sagas.worker.serialization import serialized
from tests.apps import NewApp, Worker
from tests.integration import proxy
from tests.integration.proxy import Proxy
from tests.servers import unique
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.usefixtures("long_timeouts")

GRACE_S = 30.0
#: The class and method of a confirmation, in its frame.
_ACK = b"\x00\x3c\x00\x50"


class Sender:
    """Commits rows, and dispatches them over a proxy."""

    def __init__(self, app: Celery, proxy: Proxy) -> None:
        self.app = app
        self.proxy = proxy
        self.publisher = AmqpPublisher(app)
        self.clock = Clock()
        self.backend = MemoryBackend("memory://", prefix="", clock=self.clock)
        self.dispatcher = Dispatcher(self.backend.outbox, self.publisher, GRACE_S)

    def close(self) -> None:
        """Close everything."""
        self.proxy.speak()
        self.dispatcher.close()
        self.publisher.close()

    def row(self, name: str, **options: Any) -> Outgoing:
        """Make a row."""
        payload = serialized(self.app, self.app.signature("plain").set(**options), lambda: name, 10_000).payload
        return Outgoing(name, "sent", name, "plain", payload)

    def send(self, *rows: Outgoing | str) -> None:
        """Commit rows and dispatch them."""
        made = tuple(self.row(each) if isinstance(each, str) else each for each in rows)
        entry = Entry("order.place", str(uuid4()), "a", "started", "order", "42", "i", 1, "{}")
        self.backend.sagas.record(Effects(entry, made, self.dispatcher.owner, int(GRACE_S * 1000)))
        self.dispatcher.dispatch(made, time.monotonic())

    def settle(self) -> None:
        """Have removed what is confirmed."""
        self.dispatcher.confirmations.settle()

    def relay(self) -> None:
        """Sweep once, when the lease of everything has ended."""
        self.clock.advance(int(GRACE_S * 1000))
        Relay(self.backend, self.publisher, lambda _: True, Terms(1.0, 60.0, 3, 3600.0)).sweep()

    def left(self) -> int:
        """Count the rows that are in the outbox."""
        return self.backend.outbox.count()

    def arrived(self) -> list[str]:
        """Return the messages in the queue."""
        return [message.id for message in Worker(self.app).waiting()]


@pytest.fixture
def app(rabbitmq_app: Celery) -> Celery:
    """An app that publishes through a proxy, and reads without it."""
    return rabbitmq_app


@pytest.fixture
def sender(app: Celery, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sender]:
    """What is tested."""
    with closing(Proxy(rabbitmq_url, 5672)) as proxy:
        app.conf.broker_write_url = proxy.url
        with closing(Sender(app, proxy)) as sender:
            yield sender
            monkeypatch.setattr(confirmations, "SETTLED_IN_S", 0)  # what was lost will not come


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the messages that were written without waiting, or in vain."""
    names, write = list[str](), ConfirmChannel.write

    def note(channel: ConfirmChannel, message: Any) -> bool:
        names.append(message.id)
        return write(channel, message)

    monkeypatch.setattr(ConfirmChannel, "write", note)
    return names


def channel_of(sender: Sender) -> Any:
    channel: Any = sender.publisher._channel
    return channel


def test_confirmations_that_came_while_the_process_was_held_up_are_read(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what has arrived would be sent again."""
    sender.dispatcher.confirmations._stop.set()  # nobody else reads
    sender.send("a", "b")
    channel = channel_of(sender)
    wait_until(channel._has_come, "a confirmation")
    monkeypatch.setattr(confirms, "time", SimpleNamespace(monotonic=count(step=3600).__next__))

    channel.wait(1)

    assert channel.confirms.confirmed == {"a", "b"}


def test_a_broker_is_silent_if_a_look_that_began_late_finds_nothing(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the one before, the process may have been held up."""
    clock = SimpleNamespace(now=1_000.0, held_up=0)

    def look() -> None:
        clock.now += clock.held_up

    sender.dispatcher.confirmations._stop.set()  # nobody else reads
    sender.send("a")
    channel = channel_of(sender)
    monkeypatch.setattr(confirms, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(channel, "read", look)
    channel.confirms.expect("b")

    channel.look()
    clock.held_up = 3600
    channel.look()
    with pytest.raises(TimeoutError):
        channel.look()


@pytest.mark.parametrize("has_poll", [True, False])  # eventlet takes it away
def test_rows_are_removed_when_they_are_confirmed(sender: Sender, has_poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the calls; a thread does it by itself."""
    if not has_poll:
        monkeypatch.setattr(confirms, "select", SimpleNamespace(select=select.select))
    for number in range(0, 60, 3):
        sender.send(*(f"row {each:02}" for each in range(number, number + 3)))

    wait_until(lambda: sender.left() == 0, "an empty outbox")
    assert sender.arrived() == [f"row {number:02}" for number in range(60)]
    assert not sender.publisher.awaited()


def test_one_connection_serves_all(sender: Sender) -> None:
    sender.send("a")
    channel = channel_of(sender)
    sender.settle()
    sender.send("b")

    assert channel_of(sender) is channel


def test_a_silent_broker_holds_up_nobody(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does not confirm stays in the outbox, and its connection is given up."""
    sender.send("a")
    sender.settle()
    sender.proxy.silence()

    sender.send("b", "c")

    assert sender.publisher.awaited() == {"b", "c"}
    monkeypatch.setattr(confirms, "DEADLINE_S", 0.3)
    wait_until(lambda: "2 messages were not confirmed" in caplog.text, "a warning")
    assert sender.left() == 2
    assert channel_of(sender) is None


def test_closing_beside_a_silent_broker_is_bounded(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed that was not confirmed."""
    sender.send("a")
    sender.settle()
    sender.proxy.silence()
    sender.send("b")

    slept: list[float] = []
    monkeypatch.setattr(confirmations, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    monkeypatch.setattr(confirmations, "SETTLED_IN_S", 0.5)
    sender.dispatcher.close()

    assert sum(slept) == pytest.approx(0.5, abs=0.01)
    assert sender.left() == 1


def test_what_is_posted_together_is_held_until_all_is_written(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each message wakes the broker."""
    sender.send("a")
    sock, held = channel_of(sender)._channel.connection.sock, list[tuple[Any, bool]]()
    monkeypatch.setattr(confirms, "hold_packets", lambda *call: held.append(call))
    sender.send("b", "c")
    assert held == [(sock, True), (sock, False)]
    sender.settle()

    assert sender.left() == 0


def test_nothing_is_held_when_a_message_cannot_be_written(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that others publish over the connection would be late."""
    held = list[bool]()
    monkeypatch.setattr(confirms, "hold_packets", lambda _, is_held: held.append(is_held))
    monkeypatch.setattr(ConfirmChannel, "_is_end", lambda *_: True)
    monkeypatch.setattr(confirms, "publish", refuse)
    assert not sender.publisher.publish_many([sender.row("a"), sender.row("b")]).confirmed

    assert held == [True, False]


def refuse(*_: Any, **__: Any) -> None:
    raise ChannelError


def test_closing_waits_for_what_was_posted(sender: Sender) -> None:
    sender.send("a", "b")
    sender.dispatcher.close()
    sender.publisher.close()

    assert sender.left() == 0
    assert sender.publisher.post([sender.row("c")]) == 0


@pytest.mark.parametrize(
    "options",
    [{"exchange": "no such exchange", "routing_key": "x"}, {"headers": {"a": float("nan")}}],
    ids=["channel", "connection"],
)
def test_what_the_broker_ends_the_channel_over_stays(
    sender: Sender, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The next message gets through at once."""
    sender.send("a")
    sender.settle()
    sender.send(sender.row("bad", **options))
    wait_until(lambda: sender.settle() or "not confirmed" in caplog.text, "a warning")

    sender.send("b")
    sender.settle()

    assert sender.arrived() == ["a", "b"]
    assert sender.backend.outbox.claim_due("the test", 9, 1) == []  # it is leased
    assert sender.left() == 1


def test_a_relay_publishes_what_was_lost_with_its_connection(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    sender.send("a")
    sender.settle()
    sender.proxy.silence()
    sender.send("b")
    sender.proxy.cut()
    sender.proxy.speak()
    wait_until(lambda: "1 messages were not confirmed" in caplog.text, "a warning")
    assert sender.left() == 1

    sender.relay()

    assert sender.left() == 0
    assert "b" in sender.arrived()


def test_what_was_written_behind_the_end_of_a_channel_stays(sender: Sender, app: Celery) -> None:
    """An exchange is gone that was there before; when that is noticed, the next message gets through."""
    sender.dispatcher.confirmations._stop.set()  # nobody else reads
    exchange = unique("gone")
    with app.connection_for_read() as connection, connection.channel() as channel:
        channel.exchange_declare(exchange, "direct", auto_delete=False)
        sender.send("a", sender.row("to an exchange", exchange=exchange, routing_key="x", mandatory=False))
        sender.settle()
        channel.exchange_delete(exchange)
    sender.send(sender.row("to no exchange", exchange=exchange, routing_key="x"))
    wait_until(channel_of(sender)._has_come, "the end of the channel")

    sender.send("b")
    sender.settle()
    sender.send("c")
    sender.settle()

    assert sender.arrived() == ["a", "c"]
    assert sender.left() == 2
    sender.relay()
    assert sender.arrived() == ["a", "c", "b"]
    assert sender.left() == 1


def test_the_first_message_after_a_restart_gets_through(sender: Sender) -> None:
    sender.send("a")
    sender.settle()
    sender.proxy.refuse()
    wait_until(channel_of(sender)._has_come, "the end of the connection")  # what is written before it may be lost
    sender.proxy.accept()

    sender.send("b")
    sender.send("c")
    sender.settle()

    assert sender.arrived() == ["a", "b", "c"]
    assert sender.left() == 0


def test_a_connection_that_died_unnoticed_while_it_was_idle(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rest the first message is waited for."""
    sender.send("a")
    sender.settle()
    monkeypatch.setattr(confirms, "RESTED_S", 0)
    for module in (amqp, confirms):
        monkeypatch.setattr(module, "MESSAGE_DEADLINE_S", 0.2)
    sender.proxy.silence()

    sender.send("b")

    assert sender.left() == 1
    assert channel_of(sender) is None


def test_no_broker(sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is asked again for each message."""
    asked, connected = list[str](), sender.publisher.connected
    monkeypatch.setattr(sender.publisher, "connected", lambda: (asked.append("asked"), connected())[1])
    monkeypatch.setattr(sender.publisher, "publish", lambda _: pytest.fail("asked again"))
    sender.proxy.refuse()

    sender.send("a", "b")

    assert asked == ["asked"]
    assert sender.left() == 2
    assert "2 of 2 committed messages stay in the outbox" in caplog.text


def test_whoever_waited_while_another_found_no_broker_does_not_try_again(sender: Sender) -> None:
    sender.publisher._failed_at = math.inf

    with pytest.raises(PublishError) as raised:
        sender.publisher.post([sender.row("a")])
    assert raised.value.connection


def test_whoever_waited_while_the_broker_did_not_confirm_does_not_try(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else threads would wait one after the other, and write when others may send their rows."""
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(amqp, "time", SimpleNamespace(monotonic=lambda: clock.now))
    tries, asked, has_failed = list[str](), threading.Semaphore(0), threading.Event()
    is_posting_here = sender.publisher._is_posting_here

    def ask() -> bool:
        asked.release()
        return is_posting_here()

    def unconfirmed(_: object, message: Outgoing) -> bool:
        tries.append(message.id)
        has_failed.wait()
        raise TimeoutError

    monkeypatch.setattr(sender.publisher, "_is_posting_here", ask)
    monkeypatch.setattr(AsynchronousChannel, "post", unconfirmed)
    threads = [threading.Thread(target=sender.send, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
        assert asked.acquire(timeout=DEADLINE_S)
    wait_until(lambda: tries, "a try")
    clock.now += amqp.MESSAGE_DEADLINE_S
    has_failed.set()
    for thread in threads:
        thread.join()

    assert len(tries) == 1
    assert sender.left() == 2


def test_a_full_queue_refuses(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """What is refused stays."""
    sender.app.amqp.queues[sender.app.conf.task_default_queue].queue_arguments = {
        "x-max-length": 1,
        "x-overflow": "reject-publish",
    }
    sender.send("a", "b")
    sender.settle()

    assert sender.left() == 1
    assert "1 messages were refused by the broker and stay in the outbox" in caplog.text


def test_what_no_queue_takes_stays(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ confirms it all the same. The others go, and the warning says what is to be fixed."""
    sender.send("a")
    channel = channel_of(sender)
    sender.send(sender.row("bad", exchange="amq.topic", routing_key="to.nobody"), "b")
    sender.settle()

    assert sender.arrived() == ["a", "b"]
    assert sender.left() == 1
    assert "the exchange 'amq.topic' with the routing key 'to.nobody'" in caplog.text
    assert channel_of(sender) is channel


def test_what_may_find_nobody_goes(sender: Sender) -> None:
    sender.send(sender.row("to all", exchange="amq.fanout", routing_key="", mandatory=False))
    sender.settle()

    assert sender.left() == 0


def test_a_queue_that_was_deleted_comes_back(sender: Sender, app: Celery) -> None:
    """What meets with that waits for the relay; what comes after it gets through at once."""
    sender.send("a")
    sender.settle()
    with app.connection_for_read() as connection, connection.channel() as channel:
        channel.queue_delete(app.conf.task_default_queue)

    sender.send("b")
    sender.settle()
    assert sender.left() == 1
    sender.send("c")
    sender.settle()
    sender.relay()

    assert sender.arrived() == ["c", "b"]
    assert sender.left() == 0


def test_a_row_that_cannot_be_written_is_published_alone(sender: Sender) -> None:
    """It is to blame; the others keep their numbers."""
    sender.send("a", sender.row("bad", priority=300), "b")
    channel = channel_of(sender)
    sender.settle()

    assert sender.arrived() == ["a", "b"]
    assert sender.left() == 1
    assert channel_of(sender) is channel


def test_what_celery_tells_of_a_message_confirms_it_not(sender: Sender) -> None:
    """With ``task_send_sent_event`` there are two messages for each row."""
    sender.dispatcher.confirmations._stop.set()  # nobody else reads
    sender.app.conf.task_send_sent_event = True
    sender.send("a")
    channel = channel_of(sender)

    assert [*channel.confirms.expected.values()] in (["a", ""], [""], [])
    channel.wait(DEADLINE_S)
    assert channel.confirms.confirmed == {"a"}
    sender.settle()
    assert sender.left() == 0


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("is_written", [False, True])
def test_interruption_while_a_message_is_written(
    sender: Sender, error: BaseException, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes behind half a frame, and no other's confirmation counts for it."""
    sender.send("a")
    sender.settle()
    channel = channel_of(sender)
    channel_class = type(channel._channel)

    def interrupted(*arguments: Any, **options: Any) -> None:
        if is_written:
            written(*arguments, **options)
        raise error

    with monkeypatch.context() as patched:
        written = channel_class.basic_publish
        patched.setattr(channel_class, "basic_publish", interrupted)
        if isinstance(error, Exception):
            sender.send("b")
        else:
            with pytest.raises(type(error)):
                sender.send("b")
    assert channel_of(sender) is None
    sender.send("c")
    sender.settle()

    assert sender.left() == 1
    assert sender.arrived()[-1] == "c"


def test_interruption_while_confirmations_are_read(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are lost with the connection."""
    sender.dispatcher.confirmations._stop.set()
    sender.send("a", "b")  # the first is waited for
    channel = channel_of(sender)
    wait_until(channel._has_come, "a confirmation")

    def interrupted(*_: Any, **__: Any) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(channel._channel.connection, "drain_events", interrupted)
    with pytest.raises(SoftTimeLimitExceeded):
        sender.publisher.collect()

    assert channel_of(sender) is None
    sender.settle()
    assert sender.left() == 1


def test_what_is_awaited_is_bounded(sender: Sender, written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that never confirms is not written to indefinitely."""
    monkeypatch.setattr(confirms, "MOST_AWAITED", 3)
    sender.send(*"abcdefgh")
    sender.settle()
    assert sender.arrived() == [*"abcdefgh"]
    sender.proxy.silence()
    written.clear()
    for module in (amqp, confirms):
        monkeypatch.setattr(module, "MESSAGE_DEADLINE_S", 0.2)

    sender.send(*"ijklmn")

    assert written == [*"ijk"]
    assert sender.left() == 6
    assert channel_of(sender) is None


def test_threads_take_turns(sender: Sender) -> None:
    """While confirmations are collected."""
    names = [[f"{thread}-{number}" for number in range(50)] for thread in range(4)]
    threads = [threading.Thread(target=lambda each=each: [sender.send(name) for name in each]) for each in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sender.dispatcher.confirmations.flush()
    for thread in threads:
        thread.join()
    sender.settle()

    assert sender.left() == 0
    arrived = sender.arrived()
    assert sorted(arrived) == sorted(name for each in names for name in each)
    for each in names:
        assert [name for name in arrived if name in each] == each


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_reads_nothing_of_its_parents(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when it ends."""
    sender.send("a")
    parent, channel = os.getpid(), channel_of(sender)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: parent + 1)
        patched.setattr(channel, "read", lambda: pytest.fail("read"))
        assert sender.publisher.collect() == ()
        assert sender.publisher.post([sender.row("b")]) == 0
        sender.settle()
        sender.dispatcher.close()
    sender.settle()

    assert sender.left() == 0


def test_leftovers_wait_for_what_was_posted(sender: Sender) -> None:
    """Else a repeat would be redelivered later until the lease of this very process has ended."""
    handling = SimpleNamespace(steps=("order.place",), message_id="m1", place=None)
    row = sender.row("a")
    entry = Entry("order.place", "m1", "a", "started", "order", "42", "i", 1, "{}")
    sender.backend.sagas.record(Effects(entry, (row,), sender.dispatcher.owner, int(GRACE_S * 1000)))
    sender.dispatcher.dispatch([row], time.monotonic())

    sender.dispatcher.dispatch_unsent(handling)  # type: ignore[arg-type]

    assert sender.left() == 0


@pytest.mark.parametrize("broker", ["redis://", "memory://"])
def test_other_brokers_post_nothing(new_app: NewApp, broker: str) -> None:
    """Their publishing is its own confirmation."""
    with closing(open_publisher(new_app(broker_url=broker))) as publisher:
        assert publisher.post([Outgoing("a", "sent", "a", "plain", "{}")]) == 0
        assert (publisher.collect(), publisher.awaited()) == ((), frozenset())


def test_a_message_to_nowhere_takes_no_other_with_it(sender: Sender) -> None:
    """What was written before is confirmed first, and what comes after it is written over the next connection."""
    for number in range(10):
        sender.send(f"good {number}", sender.row(f"bad {number}", exchange="no such exchange", routing_key="x"), f"fine {number}")
    sender.settle()

    assert sender.arrived() == [f"{what} {number}" for number in range(10) for what in ("good", "fine")]
    assert sender.left() == 10


def test_a_queue_that_cannot_be_declared_takes_no_other_with_it(sender: Sender, app: Celery) -> None:
    name = f"{app.conf.task_default_queue}-other"
    with app.connection_for_read() as connection, connection.channel() as channel:
        Queue(name, queue_arguments={"x-max-length": 5}, channel=channel).declare()
        for number in range(10):
            sender.send(f"good {number}", sender.row(f"bad {number}", queue=name))
        sender.settle()
        channel.queue_delete(name)

    assert sender.arrived() == [f"good {number}" for number in range(10)]
    assert sender.left() == 10


def test_half_a_confirmation_holds_up_nobody_for_long(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network delivers the beginning of a frame, and then nothing."""
    cut, goes_on, forward = threading.Event(), threading.Event(), proxy._send

    def send(target: Any, data: bytes) -> bool:
        if _ACK not in data or cut.is_set():
            return forward(target, data)
        cut.set()
        half = data.index(_ACK) + 3
        return forward(target, data[:half]) and goes_on.wait() and forward(target, data[half:])

    sender.send("a")
    sender.settle()
    monkeypatch.setattr("celery_sagas.worker.publishing.confirms.MESSAGE_DEADLINE_S", 0.3)
    monkeypatch.setattr(proxy, "_send", send)
    sender.send("b")
    assert cut.wait(DEADLINE_S)

    in_time(lambda: sender.send("c"))
    in_time(sender.dispatcher.close)
    goes_on.set()
    assert sender.left() >= 1


@contextmanager
def receiver(handle: Callable[[], object]) -> Iterator[None]:
    """Have something done before each message is published, but for those that it publishes itself."""
    handled: list[str] = []

    def receive(**_: object) -> None:
        if not handled:
            handled.append("once")
            handle()

    before_task_publish.connect(receive)
    try:
        yield
    finally:
        before_task_publish.disconnect(receive)
    assert handled


def in_time(act: Callable[[], object]) -> None:
    """Do something, and do not wait indefinitely."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(2 * DEADLINE_S)
    assert not thread.is_alive()


def test_a_receiver_may_handle_a_message_while_another_is_posted(sender: Sender) -> None:
    """Such as a saga that keeps a record of what is published, called directly."""

    def handle() -> None:
        sender.send("inner")
        sender.settle()

    with receiver(handle):
        in_time(lambda: sender.send("outer"))
    sender.settle()

    assert sorted(sender.arrived()) == ["inner", "outer"]
    assert sender.left() == 0


def test_a_receiver_may_handle_a_repeat_while_another_is_posted(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was posted before is not left over; the thread that collects confirmations comes by meanwhile."""
    sender.send("first")
    handling: Any = SimpleNamespace(steps=("order.place",), message_id="m1", place=None)
    collect, comes_by = sender.publisher.collect, threading.Event()

    def note() -> Any:
        if threading.current_thread() is sender.dispatcher.confirmations._thread:
            comes_by.set()
        return collect()

    def handle() -> None:
        comes_by.clear()
        sender.dispatcher.confirmations._wake.put(None)
        assert comes_by.wait(DEADLINE_S)
        sender.dispatcher.dispatch_unsent(handling)

    monkeypatch.setattr(sender.publisher, "collect", note)
    with receiver(handle):
        in_time(lambda: sender.send("outer"))
    sender.settle()

    assert sender.arrived() == ["first", "outer"]
