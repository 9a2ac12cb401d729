"""What publishes through a real broker."""

from collections.abc import Iterator

import pytest
from celery import Celery

from tests.apps import NewApp
from tests.servers import unique


@pytest.fixture
def rabbitmq_app(new_app: NewApp, rabbitmq_url: str) -> Iterator[Celery]:
    """An app on RabbitMQ, with a queue of its own."""
    app = new_app(broker_url=rabbitmq_url)
    app.conf.task_default_queue = unique("publishing")
    yield app
    with app.connection_for_read() as connection, connection.channel() as channel:  # one for writing may lead through a proxy
        channel.queue_delete(app.conf.task_default_queue)
        channel.exchange_delete(app.conf.task_default_queue)
