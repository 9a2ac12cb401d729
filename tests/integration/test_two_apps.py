"""Two apps that keep their sagas under one prefix of one database: the relay of either publishes what is due for both."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until


@pytest.fixture
def sender(deploy: Deploy, engine: str, broker: str) -> Deployment:
    """An app that leaves what is due to the relays of others."""
    return deploy("reminders", broker, engine, saga_relay=False)


@pytest.fixture
def other(deploy: Deploy, engine: str, broker: str, sender: Deployment) -> Deployment:
    """An app that knows no task of the sender, and has another queue."""
    other = deploy("shop", broker, engine, saga_prefix=sender.name)
    other.backend_url = sender.backend_url
    return other


@pytest.mark.parametrize(("engine", "broker"), [("mariadb", "redis"), ("redis", "redis"), ("sqlite", "redis")])
def test_second_app_is_warned_of_at_its_start(sender: Deployment, other: Deployment) -> None:
    """By its worker or its relay alone; the first app, when that starts again."""
    remedy = "Give each app a saga_prefix of its own"
    first = sender.start("prefork", 1, CELERY_SAGAS_TEST_APP="reminders").wait_ready()
    second = other.start("prefork", 1, CELERY_SAGAS_TEST_APP="shop").wait_ready()
    again = sender.start("solo", 1, CELERY_SAGAS_TEST_APP="reminders").wait_ready()
    relay = other.start_relay(CELERY_SAGAS_TEST_APP="shop")
    relay.wait_written("The relay runs.")

    assert remedy not in first.log
    for worker, before in ((second, "reminders"), (again, "shop"), (relay, "reminders")):
        assert f"the last app that has started here is {before!r}" in worker.log
        assert remedy in worker.log


@pytest.mark.parametrize(("engine", "broker"), [("postgresql", "rabbitmq"), ("redis", "redis")])
def test_message_goes_to_the_queue_of_the_app_that_sent_it(sender: Deployment, other: Deployment) -> None:
    """Its default queue, or the one that it gives the task; which its workers have declared."""
    worker = sender.start("prefork", 1).wait_ready()
    sender.send("reminder.write_later", name="a", seconds=0.05)
    wait_until(lambda: sender.backend.outbox.count() == 1, sender.describe)
    queue = sender.route("reminders.written")
    sender.start("prefork", 1, queue=f"{sender.name},{queue}").wait_ready()
    assert worker.stop() == 0
    sender.send("reminder.write_later", name="b", seconds=0.05)
    wait_until(lambda: sender.backend.outbox.count() == 2, sender.describe)

    relay = other.start_relay()
    wait_until(lambda: sorted(sender.noted("written")) == ["a", "b"], lambda: sender.describe() + other.describe())

    relay.wait_logged(f"reminders.written goes to the queue {sender.name!r}")
    assert other.queued() == 0
    wait_until(lambda: sender.backend.outbox.count() == 0, other.describe)
