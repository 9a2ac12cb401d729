"""When and how often a broker redelivers a message, as far as it is known: the journal must be kept for longer."""

from celery import Celery

from celery_sagas.errors import ConfigurationError

#: The brokers that redeliver a message after a time, whether or not its worker is alive, and kombu's default. Seconds.
_VISIBILITY_S = {"redis": 3600.0, "sqs": 1800.0}


def check_retention(app: Celery, retention_s: float) -> None:
    """Refuse a journal that expires before the broker redelivers a message.

    Raises:
        ConfigurationError: It does; the error names the setting to change.
    """
    redelivery_s = longest_redelivery_s(app)
    if redelivery_s is not None and retention_s <= redelivery_s:
        raise ConfigurationError(
            f"the journal keeps a message for {retention_s:g} s, and the broker may deliver it again after {redelivery_s:g} s",
            f"Set saga_journal_retention to more than {redelivery_s:g}, or the transport's visibility_timeout to less",
        )


def check_delivery_limits(app: Celery, max_deliveries: int) -> None:
    """Refuse a quorum queue of RabbitMQ that drops a message before it can become a dead letter. Policies are not checked.

    Raises:
        ConfigurationError: The worker consumes from one; the error names the setting to change.
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
    """Return the seconds until the broker redelivers an unacknowledged message; ``None`` if that is unknown."""
    connection = app.connection_for_read()
    default_s = _VISIBILITY_S.get(str(connection.transport.driver_type))
    if default_s is None:
        return None
    options = connection.transport_options or {}
    return float(options.get("visibility_timeout") or default_s)
