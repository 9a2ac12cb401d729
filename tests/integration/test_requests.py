"""Requests with real workers: each answer finds its instance, each kind of failure is told, and nothing comes twice."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.engine.requests.gathering import buffer_of
from tests import rabbitmq_servers
from tests.integration.conftest import Deploy
from tests.integration.deaths import POINTS, UNHURRIED, UNROUTED, wait_died
from tests.integration.ledgers import SOON
from tests.integration.proxy import Proxy
from tests.integration.worker import APPS, Deployment, Worker
from tests.rabbitmq_servers import RabbitServer
from tests.waiting import DEADLINE_S, wait_until

BROKERS: dict[str, dict[str, Any]] = {"rabbitmq": {}, "redis": {"broker_transport_options": UNHURRIED}}


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
    deployment.send("quest.ask", name="a", how="work", within=3_600)

    assert wait_for(deployment, "answers") == ["done a"]
    assert (quest(deployment)["failures"], pending(deployment)) == ([], {})
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)


#: What a participant does, and what is told of it.
FAILURES = {
    "fail": "error ValueError",
    "cancel": "error CancelledError",
    "hang_softly": "error SoftTimeLimitExceeded",
    "hang": "error TimeLimitExceeded",
    "crash": "lost WorkerLostError",
    "unknown": "error NotRegistered",
    "answer_oddly": "unhandled InvalidMessage",
}


def ask_all(deployment: Deployment, ways: Iterable[str]) -> None:
    """Ask a participant for each of the things that it may do; a question is named as that is."""
    for how in ways:
        deployment.send("quest.ask", name=how, how=how)


def test_failures(deployment: Deployment) -> None:
    """Each kind is told, once."""
    deployment.start("prefork", 4).wait_ready()
    ask_all(deployment, FAILURES)

    assert {how: wait_for(deployment, "failures", how) for how in FAILURES} == {how: [told] for how, told in FAILURES.items()}
    for how in FAILURES:
        assert quest(deployment, how)["answers"] == []
        # who was lost, or took too long, may have answered before; and an answer that was not handled may be retried
        needs_flush = how in ("crash", "hang", "answer_oddly")
        assert [request["timed_out"] for request in pending(deployment, how).values()] == ([True] if needs_flush else [])
    assert deployment.noted("failed") == ["fail"] * 3


@pytest.mark.parametrize("service", ["asking", "neighbours"])
def test_revoked(deployment: Deployment, service: str) -> None:
    """Also by the worker of a service that has this library alone."""
    deployment.settings["worker_enable_remote_control"] = True
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask", name="a", how="hold")
    wait_until(lambda: pending(deployment) if quest(deployment) else None, deployment.describe)
    (request,) = pending(deployment)
    deployment.app = service
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
    assert [request["timed_out"] for request in pending(deployment).values()] == [True]


def test_late_answer(deployment: Deployment) -> None:
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask", name="a", how="hold", within=600)
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    deployment.relay()  # an hour later
    assert wait_for(deployment, "failures") == ["deadline"]

    (deployment.folder / "answer").touch()

    assert wait_for(deployment, "answers") == ["done a"]
    assert (quest(deployment)["late"], quest(deployment)["failures"], pending(deployment)) == (1, ["deadline"], {})


def test_participant_that_dies_between_its_work_and_its_answer(deployment: Deployment) -> None:
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask", name="a", how="crash_once", within=3_600)

    assert wait_for(deployment, "answers") == ["done a"]
    assert (deployment.noted("worked"), quest(deployment)["failures"]) == (["a", "a"], [])


def test_participant_whose_worker_is_killed(deployment: Deployment) -> None:
    """The broker delivers the message again, to another worker."""
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 1).wait_ready()
    participant = deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask", name="a", how="hold", within=3_600)
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    participant.kill()
    (deployment.folder / "answer").touch()
    deployment.start("prefork", 1, queue=queue).wait_ready()

    assert wait_for(deployment, "answers") == ["done a"]
    assert (deployment.noted("held"), quest(deployment)["failures"]) == (["a", "a"], [])


def test_request_that_no_broker_takes(deploy: Deploy) -> None:
    """It is a dead letter in the end, and its failure is told."""
    settings = {**UNROUTED, "saga_relay_interval": 0.2, "saga_dispatch_grace": 1}
    deployment = deploy("asking", "rabbitmq", "postgresql", **settings)
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask_nobody", name="a")

    wait_until(lambda: quest(deployment).get("failures"), deployment.describe)
    assert (quest(deployment)["failures"], quest(deployment)["answers"]) == (["error QueueNotFound"], [])
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)  # it is told before the row goes
    assert [dead_letter.task for dead_letter in deployment.backend.dead.list(10)] == ["participant.work"]


def test_request_that_no_queue_takes(deploy: Deploy) -> None:
    """RabbitMQ confirms it, and drops it. It is a dead letter in the end, and its failure is told."""
    settings = {"saga_max_deliveries": 2, "saga_relay_interval": 0.2, "saga_dispatch_grace": 1}
    deployment = deploy("asking", "rabbitmq", "postgresql", **settings)
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask_unbound", name="a")

    assert wait_for(deployment, "failures") == ["error Unroutable"]
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)  # it is told before the row goes
    (dead_letter,) = deployment.backend.dead.list(10)
    assert (dead_letter.task, dead_letter.error) == ("participant.work", "Unroutable")
    assert "'amq.topic' with the routing key 'to.nobody'" in dead_letter.text


def test_participant_whose_queue_was_deleted(deploy: Deploy) -> None:
    """The queue is declared anew, and nothing is lost but what it held."""
    deployment = deploy("asking", "rabbitmq", "postgresql", saga_relay_interval=0.2, saga_dispatch_grace=1)
    queue = deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.send("quest.ask", name="a", how="work")
    wait_until(lambda: deployment.queued(queue) == 1, deployment.describe)
    with deployment.client.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(queue)
    deployment.send("quest.ask", name="b", how="work")
    wait_until(lambda: deployment.queued(queue) == 1, deployment.describe)
    deployment.start("prefork", 1, queue=queue).wait_ready()

    assert wait_for(deployment, "answers", "b") == ["done b"]
    assert deployment.backend.dead.list(10) == []


@pytest.fixture
def nodes() -> Iterator[tuple[RabbitServer, RabbitServer]]:
    """Two nodes of one cluster."""
    with rabbitmq_servers.running() as first, closing(RabbitServer(rabbitmq_servers.require_program())) as second:
        yield first, second.start_beside(first)


@pytest.mark.timeout(600)
def test_participant_whose_queue_is_on_a_node_that_is_down(nodes: tuple[RabbitServer, RabbitServer], deploy: Deploy) -> None:
    """RabbitMQ takes no message for such a queue, nor can it be declared anew: the message waits for the node in the outbox."""
    first, second = nodes
    options = {"saga_relay_interval": 0.2, "saga_dispatch_grace": 1, "saga_max_deliveries": 19}
    deployment = deploy("asking", first.url, "postgresql", **options)
    queue = deployment.route("participant.work")
    with Connection(second.url) as connection, connection.channel() as channel:
        Queue(queue, Exchange(queue), queue)(channel).declare()
    worker = deployment.start("prefork", 1).wait_ready()
    second.kill()
    deployment.send("quest.ask", name="a", how="work", within=3_600)
    worker.wait_logged("stay in the outbox")

    second.start()
    deployment.start("prefork", 1, queue=queue).wait_ready()
    wait_until(lambda: quest(deployment).get("answers"), deployment.describe, 5 * DEADLINE_S)  # pauses become longer and longer
    assert (quest(deployment)["answers"], quest(deployment)["failures"]) == (["done a"], [])
    assert deployment.backend.dead.list(10) == []


@pytest.mark.parametrize("service", ["asking", "neighbours"])
def test_expired_without_a_deadline(deploy: Deploy, service: str) -> None:
    """The participant's worker tells. RabbitMQ would drop the message itself."""
    deployment = deploy("asking", "redis", "redis", saga_relay_interval=0.2)
    queue = deployment.route("participant.work")
    deployment.start("prefork", 1).wait_ready()
    deployment.app = service
    deployment.start("prefork", 1, queue=queue)
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

    address = {"saga_address": {"instance": record.id, "request": request, "came": ReplyKind.ANSWER.value}}
    for id in (derived_id(request, ReplyKind.ANSWER), "another"):
        deployment.client.send_task("quest.answered", ("forged",), task_id=id, headers=address)
    deployment.send("quest.ask", name="b", how="work")
    assert wait_for(deployment, "answers", "b") == ["done b"]

    assert quest(deployment)["answers"] == ["done a"]


def test_answer_that_comes_before_its_sender_commits(deployment: Deployment) -> None:
    """Nobody can have asked for it yet: it changes nothing, and does not stand in the way of the one that is asked for."""
    worker = deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask", name="a", how="work")
    assert wait_for(deployment, "answers") == ["done a"]
    deployment.send("quest.ask_slowly", name="a")
    (request,) = wait_until(lambda: deployment.noted("asks"), deployment.describe)
    record = deployment.record("quest", "a")
    assert record is not None
    address = {"saga_address": {"instance": record.id, "request": request, "came": ReplyKind.ANSWER.value}}
    early = derived_id(request, ReplyKind.ANSWER)
    deployment.client.send_task("quest.answered", ("forged",), task_id=early, headers=address)
    worker.wait_logged(f"quest.answered[{early}] succeeded")
    (deployment.folder / "commit").touch()

    wait_until(lambda: len(quest(deployment)["answers"]) == 2, deployment.describe)
    assert (quest(deployment)["answers"], pending(deployment)) == (["done a", "done a"], {})


#: What a chain does, and what comes of it.
CHAINS = {
    "work, echo, echo": ("answers", "done work, echo, echo"),
    "work, fail, echo": ("failures", "error ValueError"),
    "crash, echo": ("failures", "lost WorkerLostError"),
    "echo, unknown, echo": ("failures", "error NotRegistered"),
}


def test_chains(deployment: Deployment) -> None:
    """The last task answers, or the first that fails."""
    deployment.start("prefork", 4).wait_ready()
    for how in CHAINS:
        deployment.send("quest.ask_chain", name=how, how=how)

    for how, (what, came) in CHAINS.items():
        assert wait_for(deployment, what, how) == [came]
        assert len(quest(deployment, how)["answers"] + quest(deployment, how)["failures"]) == 1


def test_chain_whose_worker_is_killed(deployment: Deployment) -> None:
    """Between two tasks of it, and in the middle of the second."""
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 2).wait_ready()
    participant = deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask_chain", name="a", how="crash_once, hold, echo")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    participant.kill()
    (deployment.folder / "answer").touch()
    deployment.start("prefork", 1, queue=queue).wait_ready()

    assert wait_for(deployment, "answers") == ["done done a"]
    assert (quest(deployment)["failures"], pending(deployment)) == ([], {})


#: The members of a gather, and what comes of each within its time.
MEMBERS = {
    "work": "0: done a",
    "fail": "1: error ValueError",
    "hang_softly": "2: error SoftTimeLimitExceeded",
    "crash": "3: lost WorkerLostError",
    "unknown": "4: error NotRegistered",
    "work, echo": "5: done a",
    "echo, give_up, echo": "6: error TypeError",
    "hold": "7: silent",
}


@pytest.mark.parametrize("at_least", [2, 3])
def test_gather_of_members_that_answer_fail_or_say_nothing(deployment: Deployment, at_least: int) -> None:
    """When its time is over it is told once; what comes later changes nothing."""
    queue = deployment.route("participant.hold")
    deployment.start("prefork", 4).wait_ready()
    deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask_all_ways", name="a", hows=list(MEMBERS), at_least=at_least, within=600.0)
    wait_until(lambda: deployment.backend.buffers.count(buffer_of("quest")).buffered == len(MEMBERS) - 1, deployment.describe)
    deployment.relay()  # an hour later
    wait_until(lambda: quest(deployment).get("gathered"), deployment.describe)
    (deployment.folder / "answer").touch()
    deployment.send("quest.ask", name="b", how="hold")
    assert wait_for(deployment, "answers", "b") == ["done b"]

    found = quest(deployment)
    assert found["gathered"] == 1
    if at_least == 2:
        assert sorted(found["answers"] + found["failures"]) == list(MEMBERS.values())
    else:
        assert (found["answers"], found["failures"]) == ([], ["too few: 2 of 8"])
    assert pending(deployment) == {}


def test_gather_whose_workers_are_killed(deployment: Deployment) -> None:
    """A process of a member, a whole worker with others, and the one that runs the saga's steps."""
    queue = deployment.route("participant.hold")
    steps = deployment.start("prefork", 2).wait_ready()
    participant = deployment.start("prefork", 3, queue=queue).wait_ready()
    hows = ["hold", "crash_once", "work", "hold", "hold"]
    deployment.send("quest.ask_all_ways", name="a", hows=hows, at_least=5, within=3_600.0)
    wait_until(lambda: len(deployment.noted("held")) >= 3 and len(deployment.noted("worked")) >= 2, deployment.describe)
    # nothing is left that a relay could publish again, but for the deadline
    wait_until(lambda: deployment.backend.outbox.count() == 1, deployment.describe)
    participant.kill()
    steps.kill()
    (deployment.folder / "answer").touch()
    deployment.start("prefork", 2).wait_ready()
    deployment.start("prefork", 3, queue=queue).wait_ready()

    wait_until(lambda: quest(deployment).get("gathered"), deployment.describe)
    wait_until(lambda: deployment.queued() == deployment.queued(queue) == 0, deployment.describe)
    found = quest(deployment)
    assert (sorted(found["answers"]), found["failures"], found["gathered"]) == ([f"{n}: done a" for n in range(5)], [], 1)
    assert pending(deployment) == {}


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

    wait_until(lambda: quest(deployment).get("gathered") == 1_000, deployment.describe, deadline_s=240)
    assert (quest(deployment)["failures"], deployment.failures(), pending(deployment)) == ([], [], {})


def test_thousand_members_whose_workers_are_killed(deploy: Deploy) -> None:
    """Nobody's answer is lost, and none counts twice: what a worker had when it was killed is done again, by the broker alone."""
    deployment = deploy("asking", "rabbitmq", "postgresql", **SOON)
    work, hold = deployment.route("participant.work"), deployment.route("participant.hold")
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    hows = ["work"] * 998 + ["hold"] * 2
    deployment.send("quest.ask_all_ways", name="a", hows=hows, at_least=1, within=3_600.0)
    deployment.wait_handled("quest.ask_all_ways", 1)
    # all are published, and nothing is left that a relay could publish again, but for the deadline
    wait_until(lambda: deployment.backend.outbox.count() == 1, deployment.describe)
    holders = deployment.start("prefork", 2, queue=hold, level="WARNING").wait_ready()
    workers = [deployment.start("prefork", 2, queue=work, level="WARNING").wait_ready() for _ in range(2)]
    buffer = buffer_of("quest")
    for number in (100, 500):
        wait_until(lambda number=number: deployment.backend.buffers.count(buffer).buffered >= number, deployment.describe)
        workers.pop(0).kill()
        workers.append(deployment.start("prefork", 2, queue=work, level="WARNING"))
    wait_until(lambda: len(deployment.noted("held")) == 2, deployment.describe)  # these are in its hands, for sure
    holders.kill()

    (deployment.folder / "answer").touch()
    deployment.start("prefork", 2, queue=hold, level="WARNING")
    wait_until(lambda: quest(deployment).get("gathered"), deployment.describe, deadline_s=240)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    found = quest(deployment)
    assert sorted(found["answers"]) == sorted(f"{position}: done a" for position in range(1_000))
    assert (found["gathered"], found["failures"], pending(deployment)) == (1, [], {})


def test_gather_within_a_gather(deployment: Deployment) -> None:
    """Each member is a saga that gathers itself, and answers with what it got."""
    deployment.start("prefork", 4, level="WARNING").wait_ready()
    deployment.send("quest.ask_sagas_that_ask_many", name="a", sagas=5, members=20)

    wait_until(lambda: quest(deployment).get("gathered"), deployment.describe)
    assert sorted(quest(deployment)["answers"]) == [f"{number}: a-{number}: 20 of 20" for number in range(5)]
    assert (quest(deployment)["failures"], pending(deployment), deployment.failures()) == ([], {}, [])
    assert [deployment.state("party", f"a-{number}") for number in range(5)] == [None] * 5


def test_participant_that_has_this_library_alone(deployment: Deployment) -> None:
    """Its worker, without a saga, setting or backend, tells of each failure."""
    queue = deployment.route("participant.*")
    deployment.start("prefork", 1).wait_ready()
    deployment.app = "neighbours"
    deployment.start("prefork", 2, queue=queue).wait_ready()
    ask_all(deployment, [*FAILURES, "work"])

    assert {how: wait_for(deployment, "failures", how) for how in FAILURES} == {how: [told] for how, told in FAILURES.items()}
    assert wait_for(deployment, "answers", "work") == ["done work"]
    assert [dead_letter.task for dead_letter in deployment.backend.dead.list(10)] == [
        "quest.answered"
    ]  # that of ``answer_oddly``


@pytest.mark.parametrize("service", ["asking", "neighbours"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_answer_over_a_connection_that_has_gone_silent(
    deploy: Deploy, proxied: Callable[[str], Proxy], service: str, pool: str
) -> None:
    """It is not confirmed, and is published over another one."""
    proxy = proxied("rabbitmq")
    deployment, _ = with_participant(deploy, proxy, service, pool)
    deployment.send("quest.ask", name="a", how="work")
    assert wait_for(deployment, "answers") == ["done a"]  # the participant is connected
    deployment.send("quest.ask", name="b", how="hold")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    proxy.deafen()
    (deployment.folder / "answer").touch()

    assert wait_for(deployment, "answers", "b") == ["done b"]
    assert deployment.noted("held") == ["b"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_answer_that_no_broker_confirms(deploy: Deploy, proxied: Callable[[str], Proxy], pool: str) -> None:
    """It is published again until one does, and the work is not done again."""
    proxy = proxied("rabbitmq")
    deployment, _ = with_participant(deploy, proxy, "neighbours", pool)
    participant = hold_until_refused(deployment, proxy)
    participant.wait_logged("cannot answer yet, and tries again in 2.0 s")
    proxy.accept()

    assert wait_for(deployment, "answers") == ["done a"]
    assert (deployment.noted("held"), quest(deployment)["failures"]) == (["a"], [])


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_answer_that_no_broker_confirms_for_long(deploy: Deploy, proxied: Callable[[str], Proxy], pool: str) -> None:
    """The participant's message goes back to the broker, which still delivers, and is answered when it comes again."""
    proxy = proxied("rabbitmq")
    deployment, _ = with_participant(deploy, proxy, "hasty", pool)
    hold_until_refused(deployment, proxy)
    wait_until(lambda: len(deployment.noted("held")) > 1, deployment.describe)
    proxy.accept()

    assert wait_for(deployment, "answers") == ["done a"]
    assert quest(deployment)["failures"] == []


def hold_until_refused(deployment: Deployment, proxy: Proxy) -> Worker:
    """Ask, and have the participant answer when its broker takes nothing any more; return its worker."""
    deployment.send("quest.ask", name="a", how="hold")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    proxy.refuse()
    (deployment.folder / "answer").touch()
    return deployment.workers[-1]


def test_answer_for_which_its_queue_is_full(deploy: Deploy) -> None:
    """It comes once there is room, and the work is not done again."""
    deployment = deploy("asking", "rabbitmq", "postgresql", saga_relay_interval=0.2)
    queue = deployment.route("participant.*")
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    declared = {deployment.name: {"exchange": deployment.name, "queue_arguments": limits}}
    deployment.settings["task_queues"] = declared
    deployment.client.conf.task_queues = declared
    asker = deployment.start("solo", 1).wait_ready()
    deployment.app = "neighbours"
    participant = deployment.start("prefork", 1, queue=queue).wait_ready()
    deployment.send("quest.ask", name="a", how="hold")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    assert asker.stop() == 0
    deployment.send("quest.ask", name="b", how="work")
    wait_until(lambda: deployment.queued(deployment.name) == 1, deployment.describe)
    (deployment.folder / "answer").touch()
    participant.wait_logged("cannot answer yet, and tries again in 2.0 s: MessageNacked")
    deployment.app = "asking"
    deployment.start("solo", 1)

    assert wait_for(deployment, "answers") == ["done a"]
    assert wait_for(deployment, "answers", "b") == ["done b"]
    assert (deployment.noted("held"), quest(deployment)["failures"]) == (["a"], [])


def with_participant(deploy: Deploy, proxy: Proxy, service: str, pool: str) -> tuple[Deployment, str]:
    """Start a worker for a saga, and one for a participant that publishes through a proxy; return its queue, too."""
    deployment = deploy("asking", "rabbitmq", "postgresql", saga_relay_interval=0.2)
    queue = deployment.route("participant.*")
    deployment.start("prefork", 1).wait_ready()
    deployment.app = service
    deployment.settings |= {"broker_read_url": deployment.broker, "broker_write_url": proxy.url, "saga_relay": False}
    deployment.start(pool, 1, queue=queue).wait_ready()
    return deployment, queue


def test_participant_without_this_library(deployment: Deployment) -> None:
    """Its worker answers by Celery's own means, and tells of no failure."""
    queue = deployment.route("participant.*")
    deployment.start("prefork", 1).wait_ready()
    stranger = deployment.start_script(APPS / "strangers.py", queue, is_fresh=True).wait_ready()
    untold = [how for how in FAILURES if how != "answer_oddly"]  # of which the worker of the saga tells
    ask_all(deployment, untold)
    for failed in (
        "ValueError('it does not work')",
        "SoftTimeLimitExceeded",
        "TimeLimitExceeded",
        "WorkerLostError",
        "unregistered",
    ):
        stranger.wait_logged(failed)
    deployment.send("quest.ask", name="a", how="look")

    assert wait_for(deployment, "answers") == ["stranger a"]
    assert [quest(deployment, how)["failures"] for how in untold] == [[]] * len(untold)
    assert [len(pending(deployment, how)) for how in untold] == [1] * len(untold)


def start_killed(deployment: Deployment, concurrency: int) -> tuple[Worker, Worker]:
    """Start a worker whose processes are killed where a question's name says, and one for the participant."""
    deployment.app = "kill_requests"
    queue = deployment.route("participant.tell_id")
    return deployment.start("prefork", concurrency).wait_ready(), deployment.start("solo", 1, queue=queue).wait_ready()


def assert_asked_once(deployment: Deployment, name: str) -> None:
    """Assert that each answer to a question that asks twice came once, and that each work was asked for under one id."""
    state, asked = quest(deployment, name), set(deployment.noted("asked"))
    assert (state["answers"], state["failures"], state["late"]) == ([f"done {name}", f"done {name} again"], [], 0)
    assert pending(deployment, name) == {}
    assert [len([line for line in asked if line.startswith(f"{work}: ")]) for work in (name, f"{name} again")] == [1, 1]


def test_answer_comes_once_wherever_its_process_dies(deployment: Deployment) -> None:
    """That of the step that asks, and of the one that gets the answer, and asks again."""
    worker, _ = start_killed(deployment, 4)
    names = [f"{step} {point}" for step in ("ask_twice", "ask_again") for point in POINTS]
    for name in names:
        deployment.send("quest.ask_twice", name=name)
        wait_died(deployment, name)

    def are_answered() -> bool:
        deployment.relay()  # what the dead have not sent, or not confirmed
        return all(len(quest(deployment, name).get("answers", [])) >= 2 for name in names)

    wait_until(are_answered, deployment.describe, 2 * DEADLINE_S)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    for name in names:
        assert_asked_once(deployment, name)
    assert deployment.failures() == []
    assert worker.is_running


#: A question whose process waits, and then dies, when it has sent what the question asks, and has not confirmed that.
HELD = "held ask_twice after publish"


def test_answer_that_is_handled_before_its_sender_dies(deployment: Deployment) -> None:
    """The sender has not confirmed what it has sent: that is sent again, and answered again, under the same ids."""
    worker, _ = start_killed(deployment, 2)
    deployment.send("quest.ask_twice", name=HELD)
    wait_until(lambda: len(quest(deployment, HELD).get("answers", [])) == 2, deployment.describe)
    (sender,) = wait_until(lambda: deployment.noted("held"), deployment.describe)
    asked, _ = deployment.noted("asked")
    assert int(sender) in worker.children()
    (deployment.folder / "go on").touch()
    wait_died(deployment, HELD)

    def is_asked_again() -> bool:
        deployment.relay()
        return deployment.noted("asked").count(asked) > 1

    wait_until(is_asked_again, deployment.describe)
    answer = derived_id(asked.rpartition(": ")[2], ReplyKind.ANSWER)
    worker.wait_logged(f"quest.ask_again[{answer}] duplicate")
    assert_asked_once(deployment, HELD)


def test_answer_that_waits_while_its_sender_dies(deployment: Deployment) -> None:
    """With its whole worker: another one gets the message that asks, and the answer."""
    worker, participant = start_killed(deployment, 1)
    deployment.send("quest.ask_twice", name=HELD)
    participant.wait_logged("succeeded")
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    assert quest(deployment, HELD)["answers"] == []
    worker.kill()
    deployment.start("prefork", 1).wait_ready()

    wait_until(lambda: len(quest(deployment, HELD)["answers"]) == 2, deployment.describe)
    assert_asked_once(deployment, HELD)


def test_plain_tasks_lead_on_through_canvas(deploy: Deploy, redis_url: str) -> None:
    """Across two workers: a step that names no key is called by what follows plain tasks, or by the last of them."""
    deployment = deploy("asking", "rabbitmq", "postgresql", result_backend=redis_url)
    queue = deployment.route("participant.echo")
    deployment.start("prefork", 2).wait_ready()
    deployment.start("prefork", 1, queue=queue).wait_ready()
    for name in ("a", "b"):
        deployment.send("quest.begin", name=name)

    everything = {"chain", "chord 1, chord 2", "error", "group 1", "group 2", "link", "lost process", "time limit"}
    for name in ("a", "b"):  # Celery sends a link_error twice if a hard time limit was met
        wait_until(lambda name=name: set(quest(deployment, name).get("answers", [])) >= everything, deployment.describe)
        assert set(quest(deployment, name)["answers"]) == everything


def test_gather_of_sagas_that_answer_later(deployment: Deployment) -> None:
    deployment.start("prefork", 2).wait_ready()
    deployment.send("quest.ask_saga_and_others", name="a")

    wait_until(lambda: quest(deployment).get("gathered") == 3, deployment.describe)
    assert (quest(deployment)["failures"], pending(deployment)) == ([], {})
    assert deployment.failures() == []
