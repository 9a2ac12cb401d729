"""Steps that raise, with real workers: their messages run again after pauses, and have one effect or one dead letter."""

import os
import signal
from typing import Any

import pytest

from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.failures.dead_letters import tries_of
from tests.integration.conftest import Deploy
from tests.integration.deaths import VISIBILITY
from tests.integration.worker import Deployment, Worker
from tests.waiting import DEADLINE_S, wait_until

#: Each broker and each engine once: the third receives in bulk.
PLACES = [("rabbitmq", "postgresql"), ("redis", "redis"), ("sagas-redis", "mariadb")]
#: Other messages that come with one that fails.
OTHERS = 30
SOON = {"times": 3, "first": 0.1, "factor": 2}
#: Far longer than a test.
LONG = {"times": 3, "first": 600, "factor": 1}
#: Longer than it takes to end a worker, and on Redis longer than a worker may keep a message waiting.
A_WHILE = {"times": 3, "first": 3, "factor": 1}
RUNS_AGAIN = "and runs again in"


@pytest.fixture(params=PLACES, ids=[f"{broker}-{engine}" for broker, engine in PLACES])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A broker and an engine."""
    found: tuple[str, str] = request.param
    return found


def deploy_jobs(deploy: Deploy, place: tuple[str, str], retries: Any, **settings: Any) -> Deployment:
    """Deploy the jobs."""
    broker, engine = place
    deployment = deploy("retrying", broker.removeprefix("sagas-"), engine, saga_step_retries=retries, **settings)
    if broker.startswith("sagas-"):
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    return deployment


def deploy_deadly(deploy: Deploy, place: tuple[str, str], retries: Any) -> Deployment:
    """Deploy the jobs where workers are killed."""
    settings = {"broker_transport_options": VISIBILITY} if place[0].endswith("redis") else {}
    return deploy_jobs(deploy, place, retries, saga_batch=1, **settings)


def outcomes(deployment: Deployment, name: str = "a") -> list[str]:
    """Return what the journal says of a job."""
    return [entry.outcome for entry in deployment.history("job", name)]


def wait_outcomes(deployment: Deployment, *wanted: str) -> None:
    """Wait until the journal says so of the job ``a``, and nothing waits."""
    wait_until(lambda: outcomes(deployment) == [*wanted], deployment.describe, 2 * DEADLINE_S)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)


def assert_worked_once(deployment: Deployment) -> None:
    """Assert that the job ``a`` has been done once, and nothing has failed."""
    state = deployment.state("job", "a")
    assert state is not None
    assert (state["runs"], outcomes(deployment), deployment.backend.dead.list(10)) == (1, ["started"], [])


def wait_dead_letter(deployment: Deployment) -> DeadLetter:
    """Wait until the job ``a`` has failed for good; return its dead letter."""
    wait_outcomes(deployment, "failed")
    (dead_letter,) = deployment.backend.dead.list(10)
    return dead_letter


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_handler_that_fails_twice_has_one_effect(deploy: Deploy, place: tuple[str, str], pool: str) -> None:
    deployment = deploy_jobs(deploy, place, SOON, saga_batch=1)
    worker = deployment.start(pool, 2).wait_ready()
    message_id = deployment.send("job.work", name="a", failures=2)

    wait_outcomes(deployment, "started")

    assert_worked_once(deployment)
    assert len(deployment.noted("runs")) == 3
    assert [entry.message_id for entry in deployment.history("job", "a")] == [message_id]
    wait_until(lambda: worker.log.count(RUNS_AGAIN) == 2, worker.describe)  # after the message was published again
    lines = sorted(line.partition("job.work")[2] for line in worker.log.splitlines() if RUNS_AGAIN in line)
    assert lines == [
        f"[{message_id}] of job 'a' has failed (try 1 of 4), and runs again in 0.1 s: Broken: it broke",
        f"[{message_id}] of job 'a' has failed (try 2 of 4), and runs again in 0.2 s: Broken: it broke",
    ]


def test_handler_that_always_fails_is_a_dead_letter_in_the_end(deploy: Deploy, place: tuple[str, str]) -> None:
    deployment = deploy_jobs(deploy, place, SOON, saga_batch=1)
    deployment.start("prefork", 2).wait_ready()
    message_id = deployment.send("job.work", name="a", failures=99)

    dead_letter = wait_dead_letter(deployment)

    assert (dead_letter.error, dead_letter.message_id, tries_of(dead_letter)) == ("Broken", message_id, 4)
    assert len(deployment.noted("runs")) == 4
    deployment.command("sagas", "dead", "retry", "--all", "--reason", "once more")
    wait_until(lambda: len(deployment.noted("runs")) == 8, deployment.describe)  # it begins anew
    wait_until(lambda: len(deployment.backend.dead.list(10)) == 1, deployment.describe)
    assert "tries:   4" in deployment.command("sagas", "dead", "show", deployment.backend.dead.list(1)[0].id)


def test_message_that_fails_in_a_batch_delays_no_other(deploy: Deploy, place: tuple[str, str]) -> None:
    deployment = deploy_jobs(deploy, place, LONG, worker_prefetch_multiplier=OTHERS + 1)
    names = [f"n{number}" for number in range(OTHERS)]
    for name in names[: OTHERS // 2]:
        deployment.send("job.work", name=name)
    deployment.send("job.work", name="a", failures=99)
    for name in names[OTHERS // 2 :]:
        deployment.send("job.work", name=name)
    worker = deployment.start("prefork", 1).wait_ready()

    deployment.wait_handled("job.work", OTHERS)
    worker.wait_logged(RUNS_AGAIN)

    runs = deployment.noted("runs")
    assert sorted(set(runs) - {"a"}) == sorted(names)
    assert len(runs) - runs.count("a") == OTHERS  # each of them ran once
    assert runs.count("a") in (1, 2)  # alone, and before that with the others, if their time had not run out
    assert (outcomes(deployment), deployment.backend.dead.list(10)) == ([], [])
    assert worker.log.count(RUNS_AGAIN) == 1


def test_celerys_retries_come_first(deploy: Deploy, place: tuple[str, str]) -> None:
    deployment = deploy_jobs(deploy, place, SOON, saga_batch=1)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.work_twice", name="a")

    dead_letter = wait_dead_letter(deployment)

    assert (len(deployment.noted("runs")), tries_of(dead_letter)) == (2, 2)
    assert RUNS_AGAIN not in worker.log


@pytest.mark.parametrize("place", PLACES[:1], indirect=True)
def test_step_that_meets_its_soft_time_limit_runs_again(deploy: Deploy, place: tuple[str, str]) -> None:
    deployment = deploy_jobs(deploy, place, SOON)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.hurry", name="a")

    wait_outcomes(deployment, "started")

    assert_worked_once(deployment)
    assert "in 0.1 s: SoftTimeLimitExceeded" in worker.log


def kill(deployment: Deployment, worker: Worker) -> None:
    """End a worker with its pool, as a crash does, but not in the moment in which kombu takes its only message off Redis.

    kombu loses that message, as *guarantees* says.
    """
    if deployment.broker.startswith("redis") and "broker_read_url" not in deployment.settings:
        wait_until(lambda: _is_frozen_with_message(deployment, worker), deployment.describe)
    worker.kill()
    worker.wait_ended()


def _is_frozen_with_message(deployment: Deployment, worker: Worker) -> bool:
    """Freeze a worker and tell whether Redis has a message for it; let it go on if not."""
    worker.freeze()
    if deployment.queued() + deployment.unacknowledged():
        return True
    worker.thaw()
    return False


def stop(deployment: Deployment, worker: Worker) -> None:
    """End a worker as a deployment does."""
    assert worker.stop() == 0


@pytest.mark.parametrize("end", [kill, stop], ids=["killed", "stopped"])
def test_worker_that_ends_in_the_pause_loses_nothing(deploy: Deploy, place: tuple[str, str], end: Any) -> None:
    deployment = deploy_deadly(deploy, place, A_WHILE)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.work", name="a", failures=1)
    worker.wait_logged(RUNS_AGAIN)
    end(deployment, worker)
    deployment.start("prefork", 1).wait_ready()

    wait_outcomes(deployment, "started")

    assert_worked_once(deployment)


@pytest.mark.parametrize("is_whole", [True, False], ids=["worker", "process"])
def test_worker_that_is_killed_in_a_retry_loses_nothing(deploy: Deploy, place: tuple[str, str], is_whole: bool) -> None:
    deployment = deploy_deadly(deploy, place, SOON)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("job.hold", name="a")
    wait_until(lambda: deployment.noted("holding"), deployment.describe)
    assert RUNS_AGAIN in worker.log
    if is_whole:
        kill(deployment, worker)
    else:
        os.kill(int(deployment.noted("holding")[0]), signal.SIGKILL)
    (deployment.folder / "go").touch()
    if is_whole:
        deployment.start("prefork", 1).wait_ready()

    wait_outcomes(deployment, "started")

    assert_worked_once(deployment)
