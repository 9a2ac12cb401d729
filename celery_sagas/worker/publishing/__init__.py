"""Publishing with confirmations and deadlines, over the library's own connections."""

from celery import Celery

from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.publishing.redis import RedisPublisher

_PUBLISHERS = {"amqp": AmqpPublisher, "redis": RedisPublisher}


def open_publisher(app: Celery) -> ConfirmedPublisher | EagerPublisher:
    """Return a new publisher for an app's broker; it connects when it publishes."""
    if app.conf.task_always_eager:
        return EagerPublisher(app)
    driver = str(app.connection_for_write().transport.driver_type)
    return _PUBLISHERS.get(driver, ConfirmedPublisher)(app)
