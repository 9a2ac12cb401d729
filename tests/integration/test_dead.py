"""Messages that fail for good, with real workers: each is a dead letter, and none is lost or handled as well."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Producer

from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.backend import SqlBackend
from tests.integration.conftest import Deploy
from tests.integration.deaths import UNHURRIED
from tests.integration.proxy import Proxy
from tests.integration.worker import APPS, Deployment
from tests.waiting import wait_until

BROKERS: dict[str, dict[str, Any]] = {"rabbitmq": {}, "redis": {"broker_transport_options": UNHURRIED}}


@pytest.fixture(params=BROKERS)
def deployment(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """A deployment on either broker, with two engines in all."""
    broker = str(request.param)
    engine = {"rabbitmq": "postgresql", "redis": "redis"}[broker]
    return deploy("failing", broker, engine, saga_max_deliveries=3, saga_relay_interval=0.2, **BROKERS[broker])


def dead_letters(deployment: Deployment) -> list[DeadLetter]:
    """Return the dead letters."""
    return deployment.backend.dead.list(100)


def wait_dead_letter(deployment: Deployment) -> DeadLetter:
    """Wait until there is a dead letter, and nothing else to do; return it."""
    wait_until(lambda: dead_letters(deployment), deployment.describe)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    (dead_letter,) = dead_letters(deployment)
    return dead_letter


def fix(deployment: Deployment) -> None:
    """Let no job fail any more."""
    (deployment.folder / "fixed").touch()


def command(deployment: Deployment, *arguments: str, is_fresh: bool = False) -> str:
    """Run ``celery sagas dead …`` as an operator does, and return what it prints."""
    return deployment.command("sagas", "dead", *arguments, is_fresh=is_fresh)


def outcomes(deployment: Deployment, name: str = "a") -> list[str]:
    """Return what the journal says of a job."""
    return [entry.outcome for entry in deployment.history("job", name)]


def wait_failed(deployment: Deployment, name: str = "a") -> None:
    """Wait for the journal to say so, which it does once the dead letter is kept."""
    wait_until(lambda: outcomes(deployment, name) == ["failed"], deployment.describe)


def assert_retry_has_one_effect(deployment: Deployment, message_id: str, step: str) -> None:
    """Fix the job, retry its dead letter as an operator does, and deliver the first message once more."""
    fix(deployment)
    command(deployment, "retry", "--all", "--reason", "it is fixed")
    wait_until(lambda: "started" in outcomes(deployment), deployment.describe)
    deployment.send(step, task_id=message_id, name="a")
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    wait_until(lambda: f"{step}[{message_id}] failed: job 'a'" in deployment.workers[-1].log, deployment.describe)
    state = deployment.state("job", "a")
    assert state is not None
    assert state["runs"] == 1
    assert dead_letters(deployment) == []


@pytest.mark.parametrize(("step", "runs"), [("try_thrice", 3), ("try_twice", 2)])
def test_retries_that_are_used_up(deployment: Deployment, step: str, runs: int) -> None:
    deployment.start("prefork", 2).wait_ready()
    message_id = deployment.send(f"job.{step}", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.task, dead_letter.message_id, dead_letter.key, dead_letter.error) == (
        f"job.{step}",
        message_id,
        "a",
        "Broken",
    )
    assert len(deployment.noted(step)) == runs + 1  # the first time in a batch
    wait_failed(deployment)
    deployment.workers[0].wait_logged("is kept as the dead letter")
    assert deployment.workers[0].log.count("is kept as the dead letter") == 1
    assert_retry_has_one_effect(deployment, message_id, f"job.{step}")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_error_that_is_no_exception(deployment: Deployment, pool: str) -> None:
    """The worker goes on."""
    deployment.start(pool, 1).wait_ready()
    message_id = deployment.send("job.cancel", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.task, dead_letter.message_id, dead_letter.key) == ("job.cancel", message_id, "a")
    assert "CancelledError" in dead_letter.text
    assert_retry_has_one_effect(deployment, message_id, "job.cancel")


def test_failure_before_the_step_begins(deployment: Deployment) -> None:
    """The worker's main process sees to it."""
    deployment.start("prefork", 1).wait_ready()
    message_id = deployment.send("job.never_begin", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.task, dead_letter.message_id, dead_letter.key) == ("job.never_begin", message_id, "a")
    assert (dead_letter.error, dead_letter.text) == ("Broken", "it does not begin")
    assert deployment.noted("never_begin") == []
    wait_failed(deployment)


def test_message_that_does_not_fit(deployment: Deployment) -> None:
    deployment.start("prefork", 1).wait_ready()
    deployment.send("job.try_thrice", name="a", nonsense=1)

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.error, dead_letter.saga) == ("InvalidMessage", "job")
    assert json.loads(dead_letter.payload)["kwargs"] == {"name": "a", "nonsense": 1}


def test_hard_time_limit(deployment: Deployment) -> None:
    worker = deployment.start("prefork", 1).wait_ready()
    message_id = deployment.send("job.hang", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.task, dead_letter.message_id, dead_letter.key, dead_letter.error) == (
        "job.hang",
        message_id,
        "a",
        "TimeLimitExceeded",
    )
    assert deployment.noted("hang") == ["a"]
    assert worker.is_running
    assert_retry_has_one_effect(deployment, message_id, "job.hang")


def test_run_that_commits_when_its_time_is_over(deployment: Deployment) -> None:
    """It wins: the message did not fail."""
    deployment.start("prefork", 1).wait_ready()
    deployment.send("job.hang_until_over", name="run first")

    wait_until(lambda: outcomes(deployment, "run first"), deployment.describe)
    deployment.send("job.try_thrice", name="next")
    wait_dead_letter(deployment)

    assert [dead_letter.key for dead_letter in dead_letters(deployment)] == ["next"]
    assert outcomes(deployment, "run first") == ["started"]
    assert deployment.queued() == 0


def test_run_that_would_commit_after_its_dead_letter(deployment: Deployment) -> None:
    """It does not."""
    deployment.start("prefork", 1).wait_ready()
    deployment.send("job.hang_until_over", name="dead letter first")

    dead_letter = wait_dead_letter(deployment)
    wait_until((deployment.folder / "ended").exists, deployment.describe)

    assert (dead_letter.key, dead_letter.error) == ("dead letter first", "TimeLimitExceeded")
    assert deployment.state("job", "dead letter first") is None
    assert outcomes(deployment, "dead letter first") == ["failed"]


def test_message_that_ends_its_process_each_time(deployment: Deployment) -> None:
    worker = deployment.start("prefork", 1).wait_ready()
    message_id = deployment.send("job.crash", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.task, dead_letter.message_id, dead_letter.error) == ("job.crash", message_id, "TooManyDeliveries")
    assert deployment.noted("crash") == ["a"] * 3
    assert worker.is_running
    assert_retry_has_one_effect(deployment, message_id, "job.crash")


def test_step_that_the_worker_does_not_know(deployment: Deployment) -> None:
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.from_the_future", name="a")
    deployment.send("nobodys.task", name="a")

    dead_letter = wait_dead_letter(deployment)
    worker.wait_logged("Received unregistered task of type 'nobodys.task'")
    worker.wait_logged(f"is kept as the dead letter {dead_letter.id}")

    assert worker.log.count("Received unregistered task") == 1
    assert (dead_letter.task, dead_letter.saga, dead_letter.error) == ("job.from_the_future", "job", "NotRegistered")
    assert len(dead_letters(deployment)) == 1
    shown = command(deployment, "list", is_fresh=True)  # nothing is imported that the command does not import
    assert "job.from_the_future" in shown
    assert "deploy the code" in command(deployment, "show", dead_letter.id)
    command(deployment, "discard", dead_letter.id, "--reason", "it is not needed")
    assert dead_letters(deployment) == []


def test_what_is_larger_than_the_database_takes(deploy: Deploy) -> None:
    """A commit, and a message: the one is kept whole, the other without its arguments, and the worker goes on."""
    deployment = deploy("failing", "redis", "mariadb", saga_max_state_bytes=100_000_000)
    size = _statement_limit(deployment) + 2**24 + 2**20
    deployment.start("prefork", 1).wait_ready()
    too_much = deployment.send("job.swell", name="a", size=size)
    wait_failed(deployment)
    too_long = deployment.send("job.swell", name="b", size=0, nonsense="x" * size)
    fix(deployment)
    deployment.send("job.try_thrice", name="c")
    wait_until(lambda: outcomes(deployment, "c") == ["started"], deployment.describe)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)

    kept = {dead_letter.message_id: dead_letter for dead_letter in dead_letters(deployment)}
    assert {id: dead_letter.error for id, dead_letter in kept.items()} == {too_much: "StoreError", too_long: "InvalidMessage"}
    assert "Raise max_allowed_packet on the server" in kept[too_much].text
    assert json.loads(kept[too_much].payload)["kwargs"] == {"name": "a", "size": size}
    assert json.loads(kept[too_long].payload) == {"unreadable": "the store refused it: StoreError"}
    assert set(deployment.noted("swell")) == {"a"}


def _statement_limit(deployment: Deployment) -> int:
    """Return what MariaDB takes in one statement. Bytes."""
    assert isinstance(deployment.backend, SqlBackend)
    with deployment.backend.database.connect() as connection:
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())


@pytest.mark.parametrize("broker", BROKERS)
def test_step_of_a_saga_that_the_worker_does_not_import(deploy: Deploy, broker: str) -> None:
    """Nor does it know any other, or has any table been made; some of the messages it publishes itself, as Celery does."""
    deployment = deploy("forgetful", broker, "sqlite", **BROKERS[broker])
    worker = deployment.start("prefork", 1).wait_ready()
    message_ids = deployment.script(APPS / "start_job.py", "a", "b", "c").split()
    worker.wait_logged("is kept as the dead letter")
    wait_until(lambda: len(dead_letters(deployment)) == 3, deployment.describe)

    kept = dead_letters(deployment)

    assert {dead_letter.message_id for dead_letter in kept} == set(message_ids)
    assert {(dead_letter.task, dead_letter.error) for dead_letter in kept} == {("job.try_thrice", "NotRegistered")}
    fix(deployment)
    deployment.app = "failing"
    deployment.start("prefork", 1).wait_ready()
    worker.stop()
    command(deployment, "retry", "--all", "--reason", "it is fixed", is_fresh=True)
    for name in "abc":
        wait_until(lambda name=name: outcomes(deployment, name) == ["operated", "started"], deployment.describe)


#: What Celery would reject, or acknowledge, before it belongs to any task.
UNDECODABLE: dict[str, dict[str, Any]] = {
    "serializer": {"content_type": "application/x-yaml", "body": b"a: 1"},
    "json": {"content_type": "application/json", "body": b"{"},
    "charset": {"content_type": "application/json", "body": b"\xff\xfe"},
    "compression": {"content_type": "application/json", "body": b"[[], {}, {}]", "headers": {"compression": "none/such"}},
    "eta": {"content_type": "application/json", "body": b"[[], {}, {}]", "headers": {"eta": "soon"}},
}


@pytest.mark.parametrize("broker", BROKERS)
def test_messages_that_cannot_be_decoded(deploy: Deploy, broker: str) -> None:
    """They can only be looked at, and discarded."""
    deployment = deploy("failing", broker, "sqlite", **BROKERS[broker])
    worker = deployment.start("prefork", 1).wait_ready()
    with deployment.client.connection_for_write() as connection, connection.channel() as channel:
        deployment.client.amqp.queues[deployment.name](channel).declare()
        for id, message in UNDECODABLE.items():
            headers = {"task": "job.try_thrice", "id": id, "saga_step": True, "argsrepr": "('a',)", **message.get("headers", {})}
            options = {"content_type": message["content_type"], "content_encoding": "utf-8", "headers": headers}
            Producer(channel).publish(message["body"], routing_key=deployment.name, exchange="", **options)
    wait_until(lambda: len(dead_letters(deployment)) == len(UNDECODABLE), deployment.describe)

    assert {dead_letter.message_id for dead_letter in dead_letters(deployment)} == set(UNDECODABLE)
    assert {dead_letter.task for dead_letter in dead_letters(deployment)} == {"job.try_thrice"}
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    assert "('a',)" in command(deployment, "show", dead_letters(deployment)[-1].id)
    assert worker.stop() == 0


@pytest.fixture
def away(deploy: Deploy, proxied: Callable[[str], Proxy]) -> tuple[Deployment, Proxy]:
    """A deployment whose workers reach the database through a proxy."""
    proxy = proxied("postgresql")
    deployment = deploy("failing", "rabbitmq", "postgresql", saga_max_deliveries=3, saga_batch=1)  # the store goes away only once
    deployment.settings["saga_backend"] = proxy.url
    return deployment, proxy


def test_store_that_is_away_when_a_message_fails(away: tuple[Deployment, Proxy]) -> None:
    deployment, proxy = away
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.break_when_told", name="a")
    wait_until((deployment.folder / "running").exists, deployment.describe)
    proxy.refuse()
    (deployment.folder / "break").touch()
    worker.wait_logged("cannot be kept as a dead letter")
    worker.wait_logged("is redelivered in")
    proxy.accept()

    dead_letter = wait_dead_letter(deployment)

    assert dead_letter.error == "Broken"
    wait_failed(deployment)


def test_store_that_is_away_at_a_hard_time_limit(away: tuple[Deployment, Proxy]) -> None:
    """The broker delivers the message again, until it can be kept."""
    deployment, proxy = away
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.hang", name="store away")
    wait_until(lambda: deployment.noted("hang"), deployment.describe)
    proxy.refuse()
    (deployment.folder / "away").touch()
    worker.wait_logged("is requeued")
    proxy.accept()

    dead_letter = wait_dead_letter(deployment)

    assert dead_letter.error in ("TimeLimitExceeded", "TooManyDeliveries")
    wait_failed(deployment, "store away")
    assert worker.is_running


def test_store_that_is_away_when_a_step_is_unknown(away: tuple[Deployment, Proxy]) -> None:
    deployment, proxy = away
    worker = deployment.start("prefork", 1).wait_ready()
    proxy.refuse()
    deployment.send("job.from_the_future", name="a")
    worker.wait_logged("is requeued")
    assert dead_letters(deployment) == []
    proxy.accept()

    assert wait_dead_letter(deployment).error == "NotRegistered"
