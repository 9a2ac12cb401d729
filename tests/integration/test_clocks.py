"""Workers and relays whose clocks are hours off: the store's own clock decides."""

import pytest
from sqlalchemy import NullPool, create_engine, text

from tests import servers
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, assert_conserved, increments, send_all
from tests.waiting import wait_until

FAST, SLOW = {"CELERY_SAGAS_TEST_CLOCK_OFF_S": "10800"}, {"CELERY_SAGAS_TEST_CLOCK_OFF_S": "-10800"}
REMIND, REMINDED = "reminder.remind", "reminder.reminded"


@pytest.mark.parametrize(("engine", "broker"), [("postgresql", "rabbitmq"), ("redis", "redis")])
def test_workers_that_disagree_lose_and_double_nothing(deploy: Deploy, engine: str, broker: str) -> None:
    """On a Redis broker the fast one may take a message of the other for one that was left behind: it comes again."""
    options = {"visibility_timeout": 3_600, "unacked_restore_interval": 0.5, "unacked_mutex_expire": 1}
    deployment = deploy("counters", broker, engine, broker_transport_options=options if broker == "redis" else {})
    for off in (FAST, SLOW):
        deployment.start("prefork", 2, **off).wait_ready()
    wanted = increments(100, counters=10)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    assert deployment.backend.dead.count() == 0


@pytest.mark.parametrize("off", [FAST, SLOW], ids=["fast", "slow"])
def test_relay_sends_what_is_due_by_the_clock_of_the_store(deploy: Deploy, off: dict[str, str]) -> None:
    """Neither earlier nor later, however wrong its own clock is."""
    deployment = deploy("reminders", "redis", "postgresql", saga_relay=False, saga_relay_interval=0.1)
    deployment.start("prefork", 1).wait_ready()
    deployment.send(REMIND, name="later", seconds=3_600)
    deployment.wait_handled(REMIND, 1)
    relay = deployment.start_relay(**off)
    relay.wait_written("The relay runs.")
    deployment.send(REMIND, name="soon", seconds=0.5)

    deployment.wait_handled(REMINDED, 1)
    assert deployment.state("reminder", "soon") == {"name": "soon", "count": 1}
    assert deployment.state("reminder", "later") == {"name": "later", "count": 0}
    wait_until(lambda: deployment.backend.outbox.count() == 1, deployment.describe)


@pytest.mark.parametrize("off", [FAST, SLOW], ids=["fast", "slow"])
def test_series_goes_on_by_the_clock_of_the_store(deploy: Deploy, off: dict[str, str]) -> None:
    """Neither the clock of the relay nor that of the worker that handles the occurrences makes it wait, or hurry."""
    deployment = deploy("reminders", "redis", "postgresql", saga_relay=False, saga_relay_interval=0.1)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("reminder.remind_each_second", name="a")
    deployment.wait_handled("reminder.remind_each_second", 1)
    assert worker.stop() == 0
    deployment.start("prefork", 1, **off).wait_ready()
    deployment.start_relay(**off)

    deployment.wait_handled(REMINDED, 3)
    entries = [entry for entry in deployment.history("reminder", "a") if entry.step == REMINDED]
    assert entries[-1].at - entries[0].at > 1_000  # several came each in its own second
    assert deployment.backend.outbox.count() == 1


@pytest.mark.parametrize(
    ("off", "step", "told"), [(FAST, "failed", ([], ["revoked"])), (SLOW, "answered", (["done a"], []))], ids=["fast", "slow"]
)
def test_participant_goes_by_its_own_clock(deploy: Deploy, off: dict[str, str], step: str, told: tuple[list[str], ...]) -> None:
    """It leaves a request whose time is over by that clock, and its instance is told so at once."""
    deployment = deploy("asking", "rabbitmq", "postgresql")
    queue = deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.start("prefork", 1, queue=queue, **off).wait_ready()
    deployment.send("quest.ask", name="a", how="work", within=3_600)
    deployment.wait_handled(f"quest.{step}", 1)
    state = deployment.state("quest", "a") or {}
    assert (state["answers"], state["failures"]) == told
    assert deployment.failures() == []


@pytest.mark.parametrize(("off", "off_s"), [(FAST, 10_800), (SLOW, -10_800)], ids=["fast", "slow"])
def test_timeout_is_as_late_or_early_as_its_workers_clock_is_off(deploy: Deploy, off: dict[str, str], off_s: int) -> None:
    deployment = deploy("reminders", "rabbitmq", "postgresql", saga_relay=False)
    deployment.start("prefork", 1, **off).wait_ready()
    deployment.send(REMIND, name="a", seconds=3_600)
    deployment.wait_handled(REMIND, 1)
    (started,) = deployment.history("reminder", "a")
    with create_engine(servers.driven(deployment.backend_url), poolclass=NullPool).connect() as connection:
        due = text("SELECT due_at FROM saga_outbox WHERE prefix = :prefix")
        due_at = connection.execute(due, {"prefix": deployment.name}).scalar_one()
    assert (due_at - started.at) / 1_000 == pytest.approx(3_600 + off_s, abs=1_800)
    if off_s < 0:  # it is due at once
        deployment.start_relay()
        deployment.wait_handled(REMINDED, 1)
        assert deployment.state("reminder", "a") == {"name": "a", "count": 1}
