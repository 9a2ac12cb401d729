"""What the docs advise for the producers of an application: nothing hangs over a connection that has gone silent."""

from collections.abc import Callable, Iterator

import pytest
from celery import Celery
from celery.events import EventDispatcher
from kombu import pools

from tests.integration.proxy import Proxy
from tests.servers import unique

#: Seconds.
TIMEOUT_S = 1.0


@pytest.fixture
def proxy(proxied: Callable[[str], Proxy]) -> Proxy:
    return proxied("rabbitmq")


@pytest.fixture
def app(proxy: Proxy, rabbitmq_url: str) -> Iterator[Celery]:
    """An app that publishes through the proxy."""
    name = unique("producers")
    with Celery(name, broker=proxy.url, set_as_current=False) as app:
        app.conf.update(task_default_queue=name, event_exchange=f"{name}-events")
        app.conf.broker_transport_options = {"confirm_publish": True, "read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S}
        yield app
        with app.connection_for_write(rabbitmq_url) as connection, connection.channel() as channel:
            channel.queue_delete(name)
            for exchange in (name, f"{name}-events"):
                channel.exchange_delete(exchange)
    pools.reset()


def test_task_that_is_sent_with_a_time_out(app: Celery, proxy: Proxy, rabbitmq_url: str) -> None:
    app.send_task("plain", confirm_timeout=TIMEOUT_S, mandatory=True)
    proxy.deafen()

    app.send_task("plain", confirm_timeout=TIMEOUT_S, mandatory=True)

    with app.connection_for_read(rabbitmq_url) as connection, connection.channel() as channel:
        assert channel.queue_declare(app.conf.task_default_queue, passive=True).message_count == 2


def test_event_of_a_worker(app: Celery, proxy: Proxy) -> None:
    """Which Celery sends without a time-out for its confirmation, and keeps if there is none."""
    with app.connection_for_write() as connection, EventDispatcher(connection, app=app) as dispatcher:
        dispatcher.send("worker-heartbeat")
        assert not dispatcher._outbound_buffer
        proxy.deafen()

        dispatcher.send("worker-heartbeat")

        assert len(dispatcher._outbound_buffer) == 1
