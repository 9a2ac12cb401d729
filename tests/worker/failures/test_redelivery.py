"""How long a broker may take to deliver a message again."""

import pytest
from kombu import Queue
from kombu.transport import redis

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.celery_internals import longest_redelivery_s
from celery_sagas.worker.process.bootsteps import check_delivery_limits, check_retention
from tests.apps import NewApp


@pytest.mark.parametrize(
    ("broker", "options", "longest_s"),
    [
        ("redis://localhost", {}, 3600),
        ("rediss://localhost", {}, 3600),
        ("sentinel://localhost", {"master_name": "x"}, 3600),
        ("redis://localhost", {"visibility_timeout": 43_200}, 43_200),
        ("amqp://localhost", {"visibility_timeout": 43_200}, None),
        ("memory://", {}, None),
    ],
)
def test_of_each_broker(new_app: NewApp, broker: str, options: dict[str, object], longest_s: float | None) -> None:
    """As far as it is known: RabbitMQ delivers again when a connection ends, whenever that is."""
    assert longest_redelivery_s(new_app(broker_url=broker, broker_transport_options=options)) == longest_s


def test_default_is_the_one_of_kombu() -> None:
    """It is not ours to decide."""
    assert redis.Channel.visibility_timeout == 3600


@pytest.mark.parametrize(("retention_s", "is_enough"), [(3599, False), (3600, False), (3601, True)])
def test_journal_must_remember_for_longer(new_app: NewApp, retention_s: float, is_enough: bool) -> None:
    """Else a message is handled twice."""
    app = new_app(broker_url="redis://localhost")
    if is_enough:
        check_retention(app, retention_s)
        return
    with pytest.raises(ConfigurationError, match="Set saga_journal_retention to more than 3600"):
        check_retention(app, retention_s)


@pytest.mark.parametrize(("limit", "is_enough"), [(None, True), (-1, True), (11, True), (10, False), (0, False)])
def test_queue_must_keep_a_message_until_it_is_a_dead_letter(new_app: NewApp, limit: int | None, is_enough: bool) -> None:
    """-1 is no limit; a queue that the worker does not consume is none of its own."""
    arguments = {} if limit is None else {"x-delivery-limit": limit}
    app = new_app(
        task_queues=[Queue("steps", queue_arguments=arguments), Queue("other", queue_arguments={"x-delivery-limit": 0})]
    )
    app.amqp.queues.select("steps")
    if is_enough:
        check_delivery_limits(app, 10)
        return
    with pytest.raises(ConfigurationError, match=f"steps drops .* x-delivery-limit of {limit}.* Set saga_max_deliveries to less"):
        check_delivery_limits(app, 10)
