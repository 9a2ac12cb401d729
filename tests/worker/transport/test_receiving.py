"""Receiving with ``sagas-redis://``: what is taken, noted, handed over, acknowledged and put back."""

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
import redis
from kombu import Connection, Exchange

from celery_sagas.worker.transport import receiver
from tests.processes import in_child
from tests.waiting import DEADLINE_S, wait_until
from tests.worker.transport.conftest import Consume, Queue


def test_messages_come_in_their_order(queue: Queue, consume: Consume) -> None:
    queue.publish(*map(str, range(25)))
    consumer = consume(prefetch=7)
    consumer.on_message = lambda message: message.ack()
    assert consumer.drain(25) == [str(number) for number in range(25)]
    assert queue.unacknowledged() == (0, 0)


def test_no_more_are_taken_than_may_be_prefetched(queue: Queue, consume: Consume) -> None:
    queue.publish(*"abcde")
    consumer = consume(prefetch=2)
    assert consumer.drain(2) == ["a", "b"]
    assert consumer.drain_once() == ["a", "b"]
    assert queue.client.llen(queue.name) == 3
    consumer.got[0].ack()
    assert consumer.drain(3) == ["a", "b", "c"]


def test_without_a_limit_all_are_taken(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.worker.transport.channel.MAX_MESSAGES", 3)
    queue.publish(*"abcdefgh")
    assert consume(prefetch=0).drain(8) == [*"abcdefgh"]


def test_what_is_taken_at_once_is_bounded_in_bytes(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_BYTES", 1)
    queue.publish(*"abc")
    consumer = consume()
    assert consumer.drain_once() == ["a"]
    assert consumer.drain(3) == [*"abc"]


def test_a_message_is_noted_as_kombu_notes_it(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consume().drain(2)
    ours = notes(queue)
    queue.client.delete("unacked", "unacked_index")
    queue.publish("a", "b")
    with Connection(queue.url) as connection, connection.channel() as channel:
        for _ in range(2):
            channel.basic_get(queue.name)
        assert ours == notes(queue)


def notes(queue: Queue) -> list[Any]:
    """Return what is noted, without tags."""
    noted = [json.loads(note) for note in queue.client.hvals("unacked")]
    assert {tag.decode() for tag in queue.client.hkeys("unacked")} == {
        note[0]["properties"].pop("delivery_tag") for note in noted
    }
    assert {*queue.client.hkeys("unacked")} == {*queue.client.zrange("unacked_index", 0, -1)}
    return sorted(noted, key=str)


def test_what_a_killed_consumer_had_is_restored_by_kombus_transport_too(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consume().drain(2)  # and is silent from now on
    with Connection(queue.url, transport_options={"visibility_timeout": -1}) as connection, connection.channel() as channel:
        channel.qos.restore_visible(interval=1)
    assert sorted(queue.waiting()) == ["a", "b"]
    assert queue.unacknowledged() == (0, 0)


def test_what_a_killed_consumer_of_kombus_transport_had_is_restored(queue: Queue, consume: Consume) -> None:
    queue.publish("a")
    with Connection(queue.url) as connection:
        connection.channel().basic_get(queue.name)
        consumer = consume(visibility_timeout=-1)
        consumer.channel.qos.restore_visible(interval=1)
        assert consumer.drain(1) == ["a"]
        assert consumer.got[0].headers["redelivered"]


def test_high_priorities_come_first(queue: Queue, consume: Consume) -> None:
    for priority in (9, 0, 6, 3, 0):
        queue.publish(f"{priority}", priority=priority)
    assert consume().drain(5) == ["0", "0", "3", "6", "9"]


def test_queues_are_taken_from_in_turn(queue: Queue, consume: Consume) -> None:
    other = f"{queue.name}-other"
    queue.publish("a1", "a2", "a3", "a4")
    queue.publish("b1", queue=other)
    consumer = consume(queue.name, other, prefetch=2)
    assert sorted(consumer.drain(2)) == ["a1", "b1"]


def test_events_are_handled_while_messages_wait(queue: Queue, consume: Consume) -> None:
    """Such as the commands of Celery's remote control."""
    consumer, events = consume(prefetch=1), list[Any]()
    consumer.on_message = lambda message: message.ack()
    with consumer.connection.channel() as channel, Connection(queue.url) as connection:
        exchange = Exchange(f"{queue.name}-events", "fanout")(channel)
        kombu.Queue(f"{queue.name}-events", exchange)(channel).declare()
        channel.basic_consume(f"{queue.name}-events", True, events.append, consumer_tag="events")

        def publish() -> None:
            connection.Producer(exchange=exchange).publish("event")

        wait_until(lambda: publish() or consumer.drain_once() or events, "an event")
        queue.publish(*"a" * 50)
        consumer.drain(1)
        events.clear()
        publish()
        wait_until(lambda: consumer.drain_once() and events, "another event")
        assert len(consumer.got) < 50
    queue.client.delete(f"_kombu.binding.{queue.name}-events")


def test_messages_are_restored_while_others_wait(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 0)
    queue.publish("killed")
    with Connection(queue.url) as connection:
        connection.channel().basic_get(queue.name)
        queue.publish(*"abcdef")
        consumer = consume(prefetch=1, visibility_timeout=-1)
        consumer.on_message = lambda message: message.ack()
        assert "killed" in consumer.drain(3)


def test_messages_come_although_none_can_be_restored(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as from a server that has no memory left for a lock."""
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 0)
    consumer = consume()
    monkeypatch.setattr(consumer.channel.qos, "restore_visible", refuse)
    queue.publish("a")
    assert consumer.drain(1) == ["a"]
    assert "cannot restore messages" in caplog.text


def refuse(**options: Any) -> None:
    raise redis.ResponseError("OOM")


@pytest.mark.parametrize("prefetch", [1, 3])
def test_full_queues_are_taken_from_evenly_whatever_may_be_prefetched(queue: Queue, consume: Consume, prefetch: int) -> None:
    """Though there are empty queues between them."""
    names = [f"{queue.name}-{number}" for number in range(5)]
    for name in (names[0], names[1]):
        queue.publish(*[name] * 12, queue=name)
    consumer = consume(*names, prefetch=prefetch)
    consumer.on_message = lambda message: message.ack()
    bodies = consumer.drain(12)[:12]
    assert bodies.count(names[0]) == bodies.count(names[1]) == 6
    queue.client.delete(*names)


def test_queues_in_the_order_of_their_names_are_emptied_one_after_the_other(queue: Queue, consume: Consume) -> None:
    other = f"{queue.name}-other"
    queue.publish("b1", queue=other)
    queue.publish("a1", "a2", "a3")
    consumer = consume(other, queue.name, prefetch=3, queue_order_strategy="sorted")
    assert consumer.drain(3) == ["a1", "a2", "a3"]


def test_a_prefix_of_all_keys_is_kept(queue: Queue, consume: Consume) -> None:
    with Connection(queue.url, transport_options={"global_keyprefix": "p:"}) as connection, connection.channel() as channel:
        channel.basic_publish(channel.prepare_message("a"), "", queue.name)
    consumer = consume(global_keyprefix="p:")
    assert consumer.drain(1) == ["a"]
    assert (queue.client.hlen("p:unacked"), queue.client.zcard("p:unacked_index")) == (1, 1)
    consumer.got[0].ack()
    assert queue.client.exists("p:unacked", "p:unacked_index") == 0


def test_an_idle_consumer_hears_of_new_messages(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes to it: it does not ask."""
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 60)
    monkeypatch.setattr(receiver, "RECHECK_S", 60)
    consumer = consume()
    consumer.drain_once()
    for count in (1, 2, 3):
        thread = threading.Thread(target=queue.publish, args=(str(count),))
        thread.start()
        assert len(consumer.drain(count)) == count
        thread.join()
        assert consumer.drain_once() == consumer.bodies


def test_a_message_that_comes_right_after_the_lists_were_read_ends_the_wait(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the server is asked to tell of the next one, and is seen by that command."""
    consumer = consume()
    consumer.drain_once()
    queue.publish("taken by another")
    queue.client.delete(queue.name)
    poller, ask_all = consumer.connection.transport.cycle.poller, receiver._ask_all
    assert poller.poll(DEADLINE_S)
    consumer.channel.read_invalidations()

    def publish_between(connection: Any, commands: Any) -> Any:
        answers = ask_all(connection, commands[:1])
        queue.publish("a")
        return answers + ask_all(connection, commands[1:])

    monkeypatch.setattr(receiver, "_ask_all", publish_between)
    assert not consumer.channel.receive()
    assert poller.poll(0)


def test_messages_are_found_although_the_server_has_written_nothing(queue: Queue, consume: Consume) -> None:
    """Such as after a proxy has dropped the connection to which the server writes."""
    consumer = consume()
    consumer.drain_once()
    consumer.connection.transport.cycle.unwatch(consumer.channel)
    queue.publish("a")
    assert consumer.drain(1) == ["a"]


def test_a_queue_that_is_added_is_looked_at_at_once(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "RECHECK_S", 60)
    other = f"{queue.name}-other"
    queue.publish("b", queue=other)
    consumer = consume()
    consumer.drain_once()
    consumer.channel.basic_consume(other, False, consumer._on_message, consumer_tag=other)
    assert consumer.drain(1) == ["b"]


def test_an_acknowledgement_from_another_thread_makes_room(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 60)
    queue.publish("a", "b")
    consumer = consume(prefetch=1)
    consumer.drain(1)
    thread = threading.Timer(0.1, consumer.got[0].ack)
    thread.start()
    assert consumer.drain(2) == ["a", "b"]
    thread.join()


def test_a_rejected_message_is_dropped_or_put_back(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consumer = consume(prefetch=2)
    consumer.drain(2)
    consumer.got[0].reject()
    consumer.got[1].requeue()
    assert queue.unacknowledged() == (0, 0)
    assert consumer.drain(3) == ["a", "b", "b"]


def test_a_consumer_without_acknowledgements_gives_none(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consumer = consume(no_ack=True)
    assert consumer.drain(2) == ["a", "b"]
    assert queue.unacknowledged() == (0, 0)


def test_messages_after_one_whose_handling_fails_are_handed_over(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b", "c")
    consumer = consume()
    consumer.on_message = lambda message: 1 / 0 if message.body == b"a" else message.ack()
    with pytest.raises(ZeroDivisionError):
        consumer.drain(1)
    assert consumer.drain(3) == ["a", "b", "c"]
    assert queue.unacknowledged() == (1, 1)


def test_a_consumer_that_is_cancelled_gives_back_what_it_has_not_got(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b", "c")
    consumer = consume()
    consumer.on_message = lambda message: consumer.channel.basic_cancel(queue.name)
    assert consumer.drain(1) == ["a"]
    assert queue.unacknowledged() == (1, 1)
    assert queue.waiting() == ["b", "c"]
    consumer.got[0].ack()


def test_a_channel_that_is_closed_gives_back_what_is_unacknowledged(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b", "c")
    consumer = consume(prefetch=2)
    consumer.drain(2)
    consumer.connection.close()
    assert sorted(queue.waiting()) == ["a", "b", "c"]
    assert queue.unacknowledged() == (0, 0)


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_a_message_of_a_closed_channel_is_like_one_of_a_lost_connection(queue: Queue, consume: Consume, settle: str) -> None:
    queue.publish("a")
    consumer = consume()
    consumer.drain(1)
    errors = consumer.connection.connection_errors
    consumer.connection.close()
    with pytest.raises(redis.ConnectionError) as info:
        getattr(consumer.got[0], settle)()
    assert isinstance(info.value, errors)
    assert queue.waiting() == ["a"]


def test_a_message_in_two_queues_is_noted_for_each(queue: Queue, consume: Consume) -> None:
    """Such as one that a topic exchange has routed to both: they have one tag."""
    other = f"{queue.name}-other"
    queue.publish("a")
    queue.client.lpush(other, queue.client.lindex(queue.name, 0))
    consumer = consume(queue.name, other)
    consumer.drain(2)
    assert queue.unacknowledged() == (2, 2)
    consumer.got[0].ack()
    assert queue.unacknowledged() == (1, 1)
    consumer.got[1].ack()
    assert queue.unacknowledged() == (0, 0)


@pytest.fixture
def topic(queue: Queue) -> Iterator[list[str]]:
    """Publish a message to a topic exchange; return the two queues to which it was routed."""
    names = [queue.name, f"{queue.name}-other"]
    with Connection(queue.url) as connection, connection.channel() as channel:
        bind(channel, names)
        connection.Producer(channel).publish("a", exchange=queue.name, routing_key="any")
    yield names
    queue.client.delete(f"_kombu.binding.{queue.name}")


def bind(channel: Any, names: list[str]) -> None:
    """Declare a topic exchange, and the queues to which it routes each message."""
    for name in names:
        kombu.Queue(name, Exchange(names[0], "topic"), "#")(channel).declare()


def test_a_message_in_two_queues_goes_back_to_each_once(queue: Queue, consume: Consume, topic: list[str]) -> None:
    for _ in range(2):
        consumer = consume(*topic)
        bind(consumer.channel, topic)
        consumer.drain(2)
        consumer.connection.close()
    assert [queue.client.llen(name) for name in topic] == [1, 1]


def test_a_message_is_restored_by_a_consumer_that_does_not_know_its_exchange(
    queue: Queue, consume: Consume, topic: list[str]
) -> None:
    """Such as a worker of another app on the same server."""
    consume(*topic).drain(2)  # and is silent from now on
    consume("unrelated", visibility_timeout=-1).channel.qos.restore_visible(interval=1)
    assert queue.unacknowledged() == (0, 0)
    assert [queue.client.llen(name) for name in topic] == [1, 1]


def element(**properties: Any) -> str:
    """Return what a producer pushes, with other properties."""
    info = {"exchange": "", "routing_key": "q"}
    return json.dumps({"body": "x", "properties": {"delivery_tag": "t", "delivery_info": info, **properties}})


#: What kombu decodes as a value of its own, and cannot.
_DECIMAL = element(total={"__type__": "decimal", "__value__": "x"})
_DEEP = '{"properties": ' + "[" * 900 + "]" * 900 + "}"
GARBAGE = [
    _DECIMAL,
    _DEEP,
    "0x10",
    "no JSON",
    "[]",
    '"text"',
    b"\xff\xfe",
    "{}",
]


@pytest.mark.parametrize("garbage", [*GARBAGE, element(body_encoding="base64"), element(body_encoding="unknown")], ids=repr)
def test_what_is_no_message_is_moved_to_another_list(
    queue: Queue, consume: Consume, garbage: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(garbage)
    queue.publish("a")
    with caplog.at_level(logging.CRITICAL, "celery_sagas"):
        consumer = consume()
        assert consumer.drain(1) == ["a"]
    assert f"moved a message from {queue.name} to the list {queue.name}.unreadable" in caplog.text
    assert queue.unacknowledged() == (1, 1)
    assert queue.client.llen(queue.name) == 0
    (kept,) = queue.client.lrange(f"{queue.name}.unreadable", 0, -1)
    assert kept == (garbage if isinstance(garbage, bytes) else garbage.encode())


@pytest.mark.parametrize(
    "incomplete", ['{"properties": {}}', element(delivery_info={}), element(delivery_info=3), element(delivery_tag=None)]
)
def test_a_message_without_what_kombu_adds_is_received(queue: Queue, consume: Consume, incomplete: str) -> None:
    """What handles it says what it thinks of it; if nobody does, it comes again."""
    queue.push(incomplete)
    consumer = consume()
    while not consumer.got:
        consumer.connection.drain_events(timeout=10)
    consumer.connection.close()
    assert queue.client.llen(queue.name) == 1
    assert queue.unacknowledged() == (0, 0)
    queue.client.delete(queue.name)


def test_a_message_that_lua_does_not_read_is_received_and_noted(queue: Queue, consume: Consume) -> None:
    """Lua's JSON knows no half of a surrogate pair."""
    queue.publish("half")
    element = queue.client.rpop(queue.name)
    queue.push(element.replace(b'"headers": {}', b'"headers": {"half": "\\ud800"}'))
    consumer = consume()
    consumer.drain(1)
    assert consumer.got[0].headers == {"half": "\ud800"}
    assert queue.unacknowledged() == (1, 1)
    consumer.connection.close()
    assert queue.waiting() == ["half"]
    assert queue.unacknowledged() == (0, 0)


def test_scripts_that_the_server_has_forgotten_are_sent_again(queue: Queue, consume: Consume) -> None:
    queue.publish("a")
    consumer = consume()
    consumer.drain(1)
    queue.client.script_flush()
    queue.publish("b")
    assert consumer.drain(2) == ["a", "b"]


@pytest.mark.parametrize("of", ["_commands", "_invalidations"])
def test_a_connection_that_is_lost_is_opened_again(
    queue: Queue, consume: Consume, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody notices: what is unacknowledged stays with its consumer."""
    queue.publish("a")
    consumer = consume()
    consumer.drain(1)
    consumer.drain_once()
    consumer.channel.receiver.opened_at = 0
    getattr(consumer.channel.receiver, of)._sock.shutdown(2)
    queue.publish("b")
    assert consumer.drain(2) == ["a", "b"]
    assert queue.unacknowledged() == (2, 2)


@pytest.mark.parametrize("of", ["_commands", "_invalidations"])
def test_a_connection_that_is_lost_ends_the_wait(queue: Queue, consume: Consume, of: str) -> None:
    """Also while no more messages may be taken: else an event loop would turn without end."""
    queue.publish("a")
    consumer = consume(prefetch=1)
    consumer.drain(1)
    lost = consumer.channel.receiver
    lost.opened_at = 0
    getattr(lost, of)._sock.shutdown(2)
    cycle = consumer.connection.transport.cycle
    for fd, _ in cycle.poller.poll(DEADLINE_S):
        cycle.on_readable(fd)
    assert consumer.channel.receiver is not lost


@pytest.mark.parametrize("of", ["_commands", "_invalidations"])
def test_a_lost_connection_that_another_process_has_open_is_forgotten(queue: Queue, consume: Consume, of: str) -> None:
    """A pool's process that was started later has it. The event loop would turn without end."""
    consumer = consume()
    consumer.drain_once()
    lost = consumer.channel.receiver
    lost.opened_at = 0
    connection, cycle = getattr(lost, of), consumer.connection.transport.cycle
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[connection._sock.fileno()]):
        connection._sock.shutdown(2)
        connection.disconnect()  # as redis-py does when a command fails
        queue.publish("a")
        assert consumer.drain(1) == ["a"]
        wait_until(lambda: not [cycle.on_readable(fd) for fd, _ in cycle.poller.poll(0) or ()], "nothing more to read")


def test_a_forked_process_that_closes_the_connection_leaves_the_parent_awake(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both share what waits for descriptors."""
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 60)
    monkeypatch.setattr(receiver, "RECHECK_S", 60)
    consumer = consume()
    consumer.drain_once()
    assert in_child(lambda: consumer.connection.close() or True)
    queue.publish("a")
    assert consumer.drain(1) == ["a"]


def test_a_server_that_closes_each_connection_is_away(queue: Queue, consume: Consume) -> None:
    consumer = consume()
    consumer.drain_once()
    consumer.channel.receiver._invalidations._sock.shutdown(2)
    with pytest.raises(redis.ConnectionError, match="Cannot receive"):
        consumer.drain(1)


def test_a_connection_that_is_lost_while_it_takes_messages_is_opened_again(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has taken is noted, and not known here."""
    consumer = consume()
    consumer.drain_once()
    consumer.channel.receiver.opened_at = 0
    queue.publish("a")
    with monkeypatch.context() as patch:
        patch.setattr(receiver, "_answer_of", Forgetful(receiver._answer_of))
        consumer.drain_once()
    queue.publish("b")
    assert consumer.drain(1) == ["b"]
    assert queue.unacknowledged() == (2, 2)


class Forgetful:
    """Loses the connection instead of the first answer."""

    def __init__(self, answer_of: Callable[[Any], Any]) -> None:
        self.answer_of = answer_of
        self.has_failed = False

    def __call__(self, connection: Any) -> Any:
        answer = self.answer_of(connection)
        if not self.has_failed:
            self.has_failed = True
            raise redis.ConnectionError("no answer")
        return answer


def test_messages_can_be_got_one_by_one(queue: Queue, consume: Consume) -> None:
    queue.publish("a")
    channel = consume().channel
    message = channel.basic_get(queue.name)
    assert message.body == b"a"
    assert queue.unacknowledged() == (1, 1)
    message.ack()
    assert channel.basic_get(queue.name) is None
    assert queue.unacknowledged() == (0, 0)


def test_one_message_after_the_other_comes_at_once(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more than one may be prefetched, each taking takes all that it may, and the lists are empty after it."""
    monkeypatch.setattr(receiver, "RECHECK_S", 60)
    monkeypatch.setattr("celery_sagas.worker.transport.transport.RECHECK_S", 60)
    consumer = consume(prefetch=1)
    consumer.on_message = lambda message: message.ack()
    for count in (1, 2, 3):
        queue.publish("a")
        assert len(consumer.drain(count)) == count


def test_a_list_that_is_none_hides_no_message(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consumer = consume(f"{queue.name}-wrong", queue.name)
    queue.client.set(f"{queue.name}-wrong", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        consumer.drain(1)
    queue.client.delete(f"{queue.name}-wrong")
    assert consumer.drain(2) == ["a", "b"]


def test_many_queues_are_taken_from(queue: Queue, consume: Consume) -> None:
    """More than Lua unpacks."""
    names = [f"{queue.name}-{number}" for number in range(2_100)]
    consumer = consume(*names)
    queue.publish("a", queue=names[-1])
    queue.publish("b", queue=names[0], priority=9)
    assert consumer.drain(2) == ["a", "b"]


def test_what_was_noted_and_cannot_be_read_ends_no_worker_that_restores_it(
    queue: Queue, consume: Consume, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as by a worker that was killed before it could move it to a list."""
    queue.client.hset("unacked", "t", f'[{_DECIMAL},"",""]')
    queue.client.zadd("unacked_index", {"t": 1})
    consumer = consume(visibility_timeout=-1)
    consumer.channel.qos.restore_visible(interval=1)
    assert queue.unacknowledged() == (0, 0)
    assert "unacked.unreadable" in caplog.text
    assert queue.client.llen("unacked.unreadable") == 1
    queue.client.delete("unacked.unreadable")


def test_messages_are_put_back_in_their_order(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b", "c", "d")
    consumer = consume(prefetch=3)
    consumer.drain(3)
    consumer.got[1].ack()
    consumer.connection.close()
    assert queue.waiting() == ["a", "c", "d"]


def test_what_is_recovered_comes_once(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consumer = consume()
    consumer.on_message = lambda message: consumer.channel.basic_recover(requeue=True) if len(consumer.got) == 1 else None
    assert consumer.drain(3) == ["a", "a", "b"]
    assert queue.unacknowledged() == (2, 2)


def test_a_handler_may_close_the_connection(queue: Queue, consume: Consume) -> None:
    queue.publish("a", "b")
    consumer = consume()
    consumer.on_message = lambda message: consumer.connection.close()
    consumer.drain_once()
    assert consumer.bodies == ["a"]
    assert queue.waiting() == ["a", "b"]


def test_one_of_two_consumers_of_a_queue_may_be_cancelled(queue: Queue, consume: Consume) -> None:
    consumer = consume()
    consumer.channel.basic_consume(queue.name, False, consumer._on_message, consumer_tag="second")
    consumer.channel.basic_cancel(queue.name)
    queue.publish("a")
    assert consumer.drain(1) == ["a"]


def test_a_simple_queue_gets_messages(queue: Queue) -> None:
    with Connection(queue.url.replace("redis://", "sagas-redis://")) as connection, connection.SimpleQueue(queue.name) as simple:
        simple.put("a")
        message = simple.get(timeout=10)
        assert message.payload == "a"
        message.ack()


def test_a_connection_may_be_closed_before_it_is_used(queue: Queue) -> None:
    with Connection(queue.url.replace("redis://", "sagas-redis://")) as connection:
        connection.channel().close()


def test_many_threads_may_acknowledge_at_once(queue: Queue, consume: Consume) -> None:
    """More than the pool has connections."""
    queue.publish(*map(str, range(40)))
    consumer = consume(prefetch=0, max_connections=3)
    consumer.drain(40)
    errors: list[Exception] = []

    def acknowledge(message: Any) -> None:
        try:
            message.ack()
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=acknowledge, args=(message,)) for message in consumer.got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert queue.unacknowledged() == (0, 0)
