"""A request class of a project's own that fails: the worker ends, as it does without this library, and no message is lost."""

import pytest

from tests.integration.conftest import Deploy
from tests.waiting import wait_until

NAMES = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("fails", ["begun", "made", "handed over"])
@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_error_of_a_project_ends_the_worker_and_loses_nothing(deploy: Deploy, broker: str, fails: str) -> None:
    deployment = deploy("tenants", broker, "sqlite")
    with deployment.client.connection_for_write() as connection, connection.channel() as channel:
        deployment.client.amqp.queues[deployment.name](channel).declare()
    for name in NAMES:
        deployment.send("tenant.work", name=name)

    failed = deployment.start("prefork", 1, CELERY_SAGAS_TEST_FAILS=fails)
    assert failed.wait_ended() == 1
    assert "Unrecoverable error" in failed.log
    assert "NO_SUCH_TENANT" in failed.log
    wait_until(lambda: deployment.queued() == len(NAMES), deployment.describe)

    (deployment.folder / "fixed").touch()
    deployment.start("prefork", 1, CELERY_SAGAS_TEST_FAILS=fails)
    wait_until(lambda: sorted(deployment.noted("worked")) == NAMES, deployment.describe)


@pytest.mark.parametrize("countdown", [None, 0.5], ids=["as it begins", "by a timer"])
def test_error_that_celery_swallows_ends_the_worker_too(deploy: Deploy, countdown: float | None) -> None:
    """Over a message that comes in the moment in which the worker begins, or that a timer hands over."""
    deployment = deploy("tenants", "rabbitmq", "sqlite")
    failed = deployment.start("prefork", 1, CELERY_SAGAS_TEST_FAILS="handed over").wait_ready()
    deployment.client.send_task("tenant.work", kwargs={"name": "a"}, countdown=countdown)
    assert failed.wait_ended() == 1
    assert "it fails over a message that is not at fault" in failed.log
    wait_until(lambda: deployment.queued() == 1, deployment.describe)

    (deployment.folder / "fixed").touch()
    deployment.start("prefork", 1, CELERY_SAGAS_TEST_FAILS="handed over")
    wait_until(lambda: deployment.noted("worked") == ["a"], deployment.describe)
