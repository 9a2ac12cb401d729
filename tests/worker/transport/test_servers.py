"""Servers that ``sagas-redis://`` finds, and those that it refuses with a clear error."""

import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from kombu import Connection, Exchange
from kombu import Queue as Queue_

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport import receiver
from tests import redis_servers
from tests.processes import free_port
from tests.redis_servers import HOST, RedisServer
from tests.worker.transport.conftest import Consume, Consumer, Queue


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """A server of our own."""
    with redis_servers.running() as server:
        yield server


@pytest.fixture
def server(own_server: RedisServer) -> RedisServer:
    """An empty server of our own."""
    with own_server.client() as client:
        client.flushall()
    return own_server


def test_a_url_is_read_as_by_kombus_transport() -> None:
    ours = Connection("sagas-redis://user:secret@server:1234/5", transport_options={"visibility_timeout": 7}).info()
    kombus = Connection("redis://user:secret@server:1234/5", transport_options={"visibility_timeout": 7}).info()
    assert ours == {**kombus, "transport": "sagas-redis"}


def test_certificates_are_checked() -> None:
    assert used_by("sagas-rediss://server").ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert used_by("sagas-rediss://server?ssl_cert_reqs=none").ssl == {"ssl_cert_reqs": ssl.CERT_NONE}
    assert used_by("sagas-rediss://server", ssl={"ssl_ca_certs": "file"}).ssl == {"ssl_ca_certs": "file"}
    assert not used_by("sagas-redis://server").ssl


@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel"])
def test_tls_that_is_asked_for_is_used(scheme: str) -> None:
    """Such as by ``broker_use_ssl = True``, with which kombu connects without."""
    assert used_by(f"sagas-{scheme}://server", ssl=True).ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def used_by(url: str, **options: Any) -> Any:
    """Return a connection whose transport was made."""
    connection = Connection(url, **options)
    assert connection.transport.client is connection
    return connection


def test_a_password_is_not_shown() -> None:
    connection = Connection("sagas-redis://user:secret@server:1234/5")
    assert connection.as_uri() == "sagas-redis://user:**@server:1234/5"
    assert "secret" not in repr(connection)
    assert [name for name, value in connection.info().items() if "secret" in str(value)] == ["password"]


def test_the_next_server_of_a_url_is_used_when_the_first_is_away(queue: Queue) -> None:
    urls = [f"sagas-redis://{HOST}:{free_port()}", f"sagas-{queue.url}"]
    queue.publish("a")
    with Connection(";".join(urls)) as connection, connection.channel() as channel:
        assert channel.basic_get(queue.name, no_ack=True).body == b"a"


def test_a_server_behind_sentinels_is_found_although_one_is_away(server: RedisServer) -> None:
    with redis_servers.sentinel(server, "orders") as sentinel, server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a")
        urls = [f"sentinel://{HOST}:{free_port()}", f"sagas-sentinel://{HOST}:{sentinel.port}"]
        consumer = Consumer(";".join(urls), [queue.name], master_name="orders")
        with consumer.connection:
            assert consumer.drain(1) == ["a"]
            consumer.got[0].ack()
        assert queue.unacknowledged() == (0, 0)


def test_the_connections_of_the_receiver_count_for_no_limit(queue: Queue, consume: Consume) -> None:
    """As many suffice as for kombu's transport."""
    consumer = consume(max_connections=2)
    Queue_("events", Exchange("events", "fanout"), channel=consumer.channel).declare()
    consumer.channel.basic_consume("events", True, consumer._on_message, consumer_tag="events")
    queue.publish("a")
    assert consumer.drain(1) == ["a"]
    consumer.got[0].ack()
    assert queue.unacknowledged() == (0, 0)


def test_an_old_server_is_refused(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_LOWEST_VERSION", (99, 0))
    with pytest.raises(ConfigurationError, match=r"version .*\. Use Redis 6\.2 or later"):
        consume().drain(1)


def test_an_option_with_which_messages_are_lost_is_refused(consume: Consume) -> None:
    with pytest.raises(ConfigurationError, match="ack_emulation"):
        consume(ack_emulation=False).drain(1)


def test_a_cluster_is_refused(redis_cluster_url: str) -> None:
    node = urlsplit(redis_cluster_url.partition(",")[0])
    with pytest.raises(ConfigurationError, match="cluster"):
        Consumer(f"redis://{node.hostname}:{node.port}", ["q"])


@pytest.mark.parametrize(
    "forbidden",
    ["-@scripting", "-subscribe", "-client", "-script", "-evalsha", "resetchannels", "-exists", "-lindex", "-hsetnx"],
)
def test_a_user_who_may_not_do_what_is_necessary_is_refused(server: RedisServer, forbidden: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "allkeys", "allchannels", "+@all", forbidden)
    Queue(server.url, client, "q").publish("a")
    with pytest.raises(ConfigurationError, match=r"Allow its user .*evalsha") as info:
        drain_one(f"redis://worker:secret@{HOST}:{server.port}/0")
    assert "secret" not in str(info.value)


def drain_one(url: str) -> None:
    consumer = Consumer(url, ["q"])
    with consumer.connection:
        consumer.drain(1)


def test_a_user_with_these_rights_alone_receives(server: RedisServer) -> None:
    """Those that the error names, and those for what kombu's own transport does."""
    kombus = [
        "+ping",
        "+multi",
        "+exec",
        "+watch",
        "+unwatch",
        "+sadd",
        "+lpush",
        "+rpush",
        "+llen",
        "+hget",
        "+hdel",
        "+zrem",
    ]
    rights = [*receiver.RIGHTS.split(), *kombus]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "allkeys", "resetchannels", *rights)
        queue = Queue(server.url, client)
        queue.publish("a")
    consumer = Consumer(f"redis://worker:secret@{HOST}:{server.port}/0", [queue.name])
    with consumer.connection:
        assert consumer.drain(1) == ["a"]
        consumer.got[0].ack()


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_a_message_that_cannot_be_settled_makes_room(server: RedisServer, settle: str) -> None:
    """It comes back after the visibility time-out, if the server has not got the command."""
    with server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a", "b")
        consumer = Consumer(server.url, [queue.name], prefetch=1, socket_timeout=0.2)
        with consumer.connection:
            consumer.drain(1)
            with server.silent(), pytest.raises(redis.TimeoutError):
                getattr(consumer.got[0], settle)()
            assert consumer.drain(2) == ["a", "b"]


def test_a_server_without_memory_is_drained(server: RedisServer) -> None:
    """Its messages are what fills it."""
    with server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a")
        consumer = Consumer(server.url, [queue.name])
        client.config_set("maxmemory", 1)
        try:
            with consumer.connection:
                assert consumer.drain(1) == ["a"]
                consumer.got[0].ack()
        finally:
            client.config_set("maxmemory", 0)
        assert (client.llen(queue.name), queue.unacknowledged()) == (0, (0, 0))
