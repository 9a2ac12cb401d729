"""Requests with real workers: each answer finds its instance, each kind of failure is told, and nothing comes twice."""

import json
from typing import Any

import pytest

from celery_sagas.core.conversation import Came
from celery_sagas.core.ids import derived_id
from tests.integration.conftest import Deploy
from tests.integration.test_killed import VISIBILITY
from tests.integration.worker import APPS, Deployment
from tests.waiting import wait_until

BROKERS: dict[str, dict[str, Any]] = {"rabbitmq": {}, "redis": {"broker_transport_options": VISIBILITY}}


@pytest.fixture(params=BROKERS)
def deployment(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """A deployment on either broker, with two engines in all."""
    broker = str(request.param)
    engine = {"rabbitmq": "postgresql", "redis": "redis"}[broker]
    return deploy("asking", broker, engine, saga_relay_interval=0.2, **BROKERS[broker])


def quest(deployment: Deployment, name: str = "a") -> dict[str, Any]:
    """Return what has come of a question."""
    return deployment.state("quest", name) or {}


def wait_for(deployment: Deployment, what: str, name: str = "a") -> list[str]:
    """Wait until something has come of a question; return it, once there is nothing else to do."""
    wait_until(lambda: quest(deployment, name).get(what), deployment.describe)
    wait_until(lambda: deployment.queued(deployment.name) == 0, deployment.describe)
    found: list[str] = quest(deployment, name)[what]
    return found


def pending(deployment: Deployment, name: str = "a") -> dict[str, Any]:
    """Return the requests for which an instance waits."""
    record = deployment.record("quest", name)
    assert record is not None
    requests: dict[str, Any] = json.loads(record.pending).get("requests", {})
    return requests


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_answer(deployment: Deployment, pool: str) -> None:
    deployment.start(pool, 2).wait_ready()
    deployment.send("quest.ask", name="a", how="work", within=60)

    assert wait_for(deployment, "answers") == ["done a"]
    assert (quest(deployment)["failures"], pending(deployment)) == ([], {})
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ("fail", "error ValueError"),
        ("hang_softly", "error SoftTimeLimitExceeded"),
        ("hang", "error TimeLimitExceeded"),
        ("crash", "lost WorkerLostError"),
        ("unknown", "error NotRegistered"),
    ],
)
def test_failure(deployment: Deployment, how: str, failure: str) -> None:
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask", name="a", how=how)

    assert wait_for(deployment, "failures") == [failure]
    assert quest(deployment)["answers"] == []
    # whoever was lost may have answered before
    assert [request["overdue"] for request in pending(deployment).values()] == ([True] if how == "crash" else [])
    assert deployment.noted("failed") == (["a"] * 3 if how == "fail" else [])


def test_revoked(deployment: Deployment) -> None:
    deployment.settings["worker_enable_remote_control"] = True
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask", name="a", how="hold")
    wait_until(lambda: pending(deployment) if quest(deployment) else None, deployment.describe)
    (request,) = pending(deployment)
    participant = deployment.start("prefork", 1, queue=queue).wait_ready()
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    deployment.client.control.revoke(request, terminate=True, signal="SIGKILL")

    assert wait_for(deployment, "failures") == ["revoked"]
    assert participant.is_running


def test_expired_in_a_queue(deployment: Deployment) -> None:
    """A worker comes too late: the deadline has been told, and the participant does not begin."""
    queue = deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask", name="a", how="work", within=0.5)

    assert wait_for(deployment, "failures") == ["deadline"]
    deployment.start("prefork", 1, queue=queue).wait_ready()
    wait_until(lambda: deployment.queued(queue) == 0, deployment.describe)
    deployment.send("quest.ask", name="b", how="work")
    assert wait_for(deployment, "answers", "b") == ["done b"]
    assert quest(deployment)["answers"] == []


def test_queue_that_nobody_consumes(deployment: Deployment) -> None:
    deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask", name="a", how="work", within=0.5)

    assert wait_for(deployment, "failures") == ["deadline"]
    assert [request["overdue"] for request in pending(deployment).values()] == [True]


def test_late_answer(deployment: Deployment) -> None:
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask", name="a", how="hold", within=1.5)
    assert wait_for(deployment, "failures") == ["deadline"]

    (deployment.folder / "answer").touch()

    assert wait_for(deployment, "answers") == ["done a"]
    assert (quest(deployment)["late"], quest(deployment)["failures"], pending(deployment)) == (1, ["deadline"], {})


def test_participant_that_dies_between_its_work_and_its_answer(deployment: Deployment) -> None:
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask", name="a", how="crash_once", within=60)

    assert wait_for(deployment, "answers") == ["done a"]
    assert (deployment.noted("worked"), quest(deployment)["failures"]) == (["a", "a"], [])


def test_participant_whose_worker_is_killed(deployment: Deployment) -> None:
    """The broker delivers the message again, to another worker."""
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    participant = deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask", name="a", how="hold", within=60)
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    participant.kill()
    (deployment.folder / "answer").touch()
    deployment.start("prefork", 1, queue=queue).wait_ready()

    assert wait_for(deployment, "answers") == ["done a"]
    assert (deployment.noted("held"), quest(deployment)["failures"]) == (["a", "a"], [])


def test_expired_without_a_deadline(deploy: Deploy) -> None:
    """The participant's worker tells. RabbitMQ would drop the message itself."""
    deployment = deploy("asking", "redis", "redis", saga_relay_interval=0.2)
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask_in_vain", name="a")

    assert wait_for(deployment, "failures") == ["revoked"]
    assert quest(deployment)["answers"] == []


def test_another_saga_answers_from_a_timeout(deployment: Deployment) -> None:
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask_saga", name="a")

    assert wait_for(deployment, "answers") == ["a is back"]
    assert (quest(deployment)["failures"], pending(deployment)) == ([], {})
    assert deployment.state("errand", "a") is None


def test_answer_that_comes_twice(deployment: Deployment) -> None:
    """Under the same id, as a participant's repeat sends it; and under another, as nobody should."""
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask", name="a", how="hold")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    (request,), record = pending(deployment), deployment.record("quest", "a")
    assert record is not None
    (deployment.folder / "answer").touch()
    assert wait_for(deployment, "answers") == ["done a"]

    address = {"saga_address": {"instance": record.id, "request": request, "came": Came.ANSWER.value}}
    for id in (derived_id(request, Came.ANSWER), "another"):
        deployment.client.send_task("quest.answered", ("forged",), task_id=id, headers=address)
    deployment.send("quest.ask", name="b", how="work")
    assert wait_for(deployment, "answers", "b") == ["done b"]

    assert quest(deployment)["answers"] == ["done a"]


def test_many_answers_to_one_instance_at_once(deployment: Deployment) -> None:
    """From sixteen processes, each answer a commit of the instance."""
    deployment.start("prefork", 16, level="WARNING").wait_ready()
    deployment.send("quest.ask_often", name="a", times=200)
    wait_until(lambda: len(quest(deployment).get("answers", [])) == 200, deployment.describe)

    assert sorted(quest(deployment)["answers"]) == sorted(f"done a-{number}" for number in range(200))
    assert (quest(deployment)["failures"], deployment.failures(), pending(deployment)) == ([], [], {})


def test_many_members_answer_at_once(deployment: Deployment) -> None:
    """From sixteen processes."""
    deployment.start("prefork", 16, level="WARNING").wait_ready()
    for number in range(10):
        deployment.send("quest.ask_many", name=f"q{number % 2}", members=64)
    wait_until(lambda: [quest(deployment, f"q{number}").get("gathered") for number in (0, 1)] == [320, 320], deployment.describe)
    assert deployment.failures() == []
    assert pending(deployment, "q0") == pending(deployment, "q1") == {}


def test_thousand_members(deployment: Deployment) -> None:
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    deployment.send("quest.ask_many", name="a", members=1_000)

    wait_until(lambda: quest(deployment).get("gathered") == 1_000, deployment.describe, deadline_s=120)
    assert (quest(deployment)["failures"], deployment.failures(), pending(deployment)) == ([], [], {})


def test_participant_without_this_library(deployment: Deployment) -> None:
    """Its worker answers by Celery's own means."""
    queue = deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.start_script(APPS / "strangers.py", queue).wait_ready()
    deployment.send("quest.ask", name="a", how="work")

    assert wait_for(deployment, "answers") == ["stranger a"]
