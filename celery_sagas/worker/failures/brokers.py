"""How late and how often a broker delivers a message again, as far as it is known: the journal must remember for longer."""

from celery import Celery

from celery_sagas.errors import ConfigurationError

#: The brokers that give a message to somebody else after a time, whether its worker lives or not, and kombu's default. Seconds.
_VISIBILITY_S = {"redis": 3600.0, "sqs": 1800.0}


def check_retention(app: Celery, retention_s: float) -> None:
    """Refuse a journal that forgets a message before the broker delivers it again.

    Raises:
        ConfigurationError: It does; says what to set.
    """
    redelivery_s = longest_redelivery_s(app)
    if redelivery_s is not None and retention_s <= redelivery_s:
        raise ConfigurationError(
            f"the journal keeps a message for {retention_s:g} s, and the broker may deliver it again after {redelivery_s:g} s",
            f"Set saga_journal_retention to more than {redelivery_s:g}, or the transport's visibility_timeout to less",
        )


def check_delivery_limits(app: Celery, max_deliveries: int) -> None:
    """Refuse a quorum queue of RabbitMQ that drops a message before it can become a dead letter. A server's policy is not seen.

    Raises:
        ConfigurationError: The worker consumes one; says what to set.
    """
    for queue in app.amqp.queues.consume_from.values():
        limit = (queue.queue_arguments or {}).get("x-delivery-limit")
        if isinstance(limit, int) and 0 <= limit <= max_deliveries:
            raise ConfigurationError(
                f"the queue {queue.name} drops a message after its x-delivery-limit of {limit}, before saga_max_deliveries "
                f"({max_deliveries}) has made a dead letter of it",
                f"Set saga_max_deliveries to less than {limit}, or declare the queue with a larger limit",
            )


def longest_redelivery_s(app: Celery) -> float | None:
    """Return after how many seconds the broker delivers a message again that is not acknowledged; ``None`` if it never says."""
    connection = app.connection_for_read()
    default_s = _VISIBILITY_S.get(str(connection.transport.driver_type))
    if default_s is None:
        return None
    options = connection.transport_options or {}
    return float(options.get("visibility_timeout") or default_s)
