"""Servers that ``sagas+redis://`` finds, and those that it refuses with a clear error."""

import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from kombu import Connection

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport import receiver
from tests import redis_servers
from tests.processes import free_port
from tests.redis_servers import HOST, RedisServer
from tests.worker.transport.conftest import Consume, Consumer, Queue


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of our own."""
    with redis_servers.running() as server:
        yield server


def connection_of(url: str, **options: Any) -> Any:
    """Return what kombu connects to for a URL, without connecting."""
    return Connection(url, **options).transport.client


def test_the_rest_of_a_url_is_read_by_kombu() -> None:
    found = connection_of("sagas+redis://user:secret@server:1234/5", transport_options={"visibility_timeout": 7})
    kombus = Connection("redis://user:secret@server:1234/5", transport_options={"visibility_timeout": 7})
    assert found.info() == kombus.info()


def test_tls_is_that_of_kombu() -> None:
    assert connection_of("sagas+rediss://server?ssl_cert_reqs=required").ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert connection_of("sagas+rediss://server", ssl={"ssl_ca_certs": "file"}).ssl == {"ssl_ca_certs": "file"}


def test_every_sentinel_of_a_url_is_known() -> None:
    urls = ["sentinel://a:1", "sentinel://b:2", "sentinel://c:3"]
    with_prefixes, with_one = ";".join(f"sagas+{url}" for url in urls), "sagas+" + ";".join(urls)
    assert connection_of(with_prefixes).alt == connection_of(with_one).alt == urls


@pytest.mark.parametrize("url", ["sagas+amqp://", "sagas://server", "sagas+memory://"])
def test_another_broker_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sagas\+redis://"):
        Connection(url).transport  # noqa: B018


def test_a_password_is_not_shown(server: RedisServer) -> None:
    connection = Connection("sagas+redis://user:secret@server/5")
    assert connection.as_uri() == "sagas+redis://user:**@server/5"
    assert "secret" not in repr(connection)


def test_the_next_server_of_a_url_is_used_when_the_first_is_away(queue: Queue) -> None:
    urls = [f"sagas+redis://{HOST}:{free_port()}", f"sagas+{queue.url}"]
    queue.publish("a")
    with Connection(";".join(urls)) as connection, connection.channel() as channel:
        assert channel.basic_get(queue.name, no_ack=True).body == b"a"


def test_a_server_behind_a_sentinel_is_found(server: RedisServer) -> None:
    with redis_servers.sentinel(server, "orders") as sentinel, server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a")
        consumer = Consumer(f"sentinel://{HOST}:{sentinel.port}", [queue.name], master_name="orders")
        with consumer.connection:
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
    consumer = Consumer(f"redis://{node.hostname}:{node.port}", [])
    with consumer.connection:
        consumer.channel.basic_consume("q", False, None, consumer_tag="q")
        with pytest.raises(ConfigurationError, match="cluster"):
            consumer.drain(1)


@pytest.mark.parametrize("forbidden", ["-@scripting", "-subscribe", "-client", "-script", "-evalsha", "resetchannels"])
def test_a_user_who_may_not_do_what_is_necessary_is_refused(server: RedisServer, forbidden: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "allkeys", "allchannels", "+@all", forbidden)
    consumer = Consumer(f"redis://worker:secret@{HOST}:{server.port}/0", ["q"])
    with consumer.connection, pytest.raises(ConfigurationError, match=r"Allow its user .*evalsha") as info:
        consumer.drain(1)
    assert "secret" not in str(info.value)


def test_a_user_with_these_rights_alone_receives(server: RedisServer) -> None:
    """Those that the error names, and those for what kombu's own transport does."""
    kombus = [
        "+ping",
        "+client|setinfo",
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
    script = ["+lindex", "+rpop", "+exists", "+hsetnx", "+zadd"]
    rights = [*receiver.RIGHTS.split(), *kombus, *script]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "allkeys", "resetchannels", *rights)
        queue = Queue(server.url, client)
        queue.publish("a")
    consumer = Consumer(f"redis://worker:secret@{HOST}:{server.port}/0", [queue.name])
    with consumer.connection:
        assert consumer.drain(1) == ["a"]
        consumer.got[0].ack()


def test_a_message_is_kept_by_a_server_without_memory_for_its_note(server: RedisServer) -> None:
    with server.client() as client:
        queue = Queue(server.url, client)
        queue.publish("a")
        consumer = Consumer(server.url, [queue.name])
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.RedisError, match="memory"):
                consumer.drain(1)
        finally:
            client.config_set("maxmemory", 0)
        assert (client.llen(queue.name), queue.unacknowledged()) == (1, (0, 0))
        with consumer.connection:
            assert consumer.drain(1) == ["a"]
            consumer.got[0].ack()
