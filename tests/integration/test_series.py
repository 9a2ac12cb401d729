"""Series in real workers: they go on whatever fails, and whoever is killed."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.deaths import points
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import DEADLINE_S, wait_until

BEGIN, END, REMINDED, FLAKY = (f"reminder.{step}" for step in ("remind_each_second", "end_series", "reminded", "flaky"))
#: How one relay comes to what another has claimed by the time that it has started. Seconds.
AT_ONCE = {"saga_lease_ttl": 1, "saga_relay_interval": 0.1}
PLACES = matrix(("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "rabbitmq"), ("redis", "redis"))


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_failed_occurrence_is_a_dead_letter_and_the_series_goes_on(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("reminders", broker, engine, **AT_ONCE)
    deployment.start("prefork", 2).wait_ready()
    deployment.send("reminder.fail_each_second", name="a")
    deployment.wait_handled(FLAKY, 4)  # the failure is one
    (letter,) = deployment.backend.dead.list(10)
    assert (letter.task, letter.error, letter.text) == (FLAKY, "ZeroDivisionError", "a")
    wait_until(deployment.failures, deployment.describe)
    assert len(deployment.failures()) == 1
    _assert_ends(deployment, FLAKY)


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_series_outlives_the_workers(deploy: Deploy, engine: str, broker: str) -> None:
    """One that is killed, and one that is stopped."""
    deployment = deploy("reminders", broker, engine, **AT_ONCE)
    worker = deployment.start("prefork", 2).wait_ready()
    deployment.send(BEGIN, name="a")
    deployment.wait_handled(REMINDED, 2)
    worker.kill()
    handled = deployment.handled(REMINDED)
    worker = deployment.start("prefork", 2).wait_ready()
    deployment.wait_handled(REMINDED, handled + 2)
    assert worker.stop() == 0
    handled = deployment.handled(REMINDED)
    deployment.start("prefork", 2).wait_ready()
    deployment.wait_handled(REMINDED, handled + 2)
    assert deployment.failures() == []
    _assert_ends(deployment, REMINDED)


RELAY_POINTS = points("claim", "publish", "reschedule")


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_no_occurrence_counts_twice_and_the_series_goes_on_wherever_the_relay_dies(
    deploy: Deploy, engine: str, broker: str
) -> None:
    """One relay after the other dies; what it had claimed is sent again under the same id."""
    deployment = deploy("deadly_relay", broker, engine, saga_relay=False, **AT_ONCE)
    worker = deployment.start("prefork", 2).wait_ready()
    deployment.send(BEGIN, name="a")
    deployment.wait_handled(BEGIN, 1)
    for point in RELAY_POINTS:
        deployment.start_relay(CELERY_SAGAS_TEST_POINT=point).wait_ended()
    assert {path.stem for path in deployment.folder.glob("*.once")} == set(RELAY_POINTS)
    handled = deployment.handled(REMINDED)
    deployment.start_relay()
    deployment.wait_handled(REMINDED, handled + 3)
    assert f"{REMINDED}[" in worker.log
    worker.wait_logged(" duplicate: reminder 'a'")
    assert deployment.failures() == []
    assert deployment.backend.dead.count() == 0
    _assert_ends(deployment, REMINDED)


def _assert_ends(deployment: Deployment, step: str) -> None:
    """Cancel the series: the row that it has had all the time is gone, and each occurrence has counted once."""
    assert deployment.backend.outbox.count() == 1
    deployment.send(END, name="a")
    deployment.wait_handled(END, 1)
    assert deployment.backend.outbox.count() == 0
    wait_until(lambda: deployment.queued() == 0, "an empty queue", DEADLINE_S)
    entries = [entry for entry in deployment.history("reminder", "a") if entry.step == step and entry.outcome == "handled"]
    assert deployment.state("reminder", "a") == {"name": "a", "count": len(entries)}
    assert len({entry.message_id for entry in entries}) == len(entries)
