"""Workers that are killed: what a message decided counts once, and is told once, whenever its process died."""

import json

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import (
    ADD,
    ADD_AND_TELL,
    FINISH,
    TOLD,
    assert_conserved,
    assert_tallied,
    assert_told,
    send_all,
    sums,
    values,
)
from tests.integration.deaths import POINTS, UNROUTED, points, wait_died
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import DEADLINE_S, wait_until


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("sqlite", "rabbitmq"), ("postgresql", "redis"), ("mariadb", "rabbitmq"), ("redis", "rabbitmq"))
)
def test_nothing_is_lost_or_doubled_wherever_its_process_dies(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("kill_points", broker, engine, saga_hand_over=0)
    worker = deployment.start("prefork", len(POINTS)).wait_ready()
    wanted = [(point, amount) for amount in (1, 10) for point in POINTS]
    for point, amount in wanted[: len(POINTS)]:
        deployment.send(ADD_AND_TELL, name=point, amount=amount)
        wait_died(deployment, point)
    send_all(deployment, ADD_AND_TELL, wanted[len(POINTS) :])
    assert_conserved(deployment, wanted)
    assert worker.is_running


#: Where a message is that was handed over to the process that had committed it.
HANDED_OVER_POINTS = points("find", "commit", "follow", "followed", "confirm")


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "redis"), ("redis", "redis"))
)
def test_nothing_is_lost_or_doubled_wherever_its_process_dies_that_hands_it_over(
    deploy: Deploy, engine: str, broker: str
) -> None:
    """A relay publishes what was committed and not handled."""
    deployment = deploy("kill_points", broker, engine, saga_dispatch_grace=2)
    worker = deployment.start("prefork", 2).wait_ready()
    wanted = send_to_their_deaths(deployment, ADD_AND_TELL, HANDED_OVER_POINTS)
    assert_conserved(deployment, wanted)
    assert worker.is_running


def send_to_their_deaths(deployment: Deployment, step: str, names: list[str]) -> list[tuple[str, int]]:
    """Send a message to each of these counters, one after the other; return the increments."""
    for name in names:
        deployment.send(step, name=name, amount=1)
        wait_died(deployment, name)
    return [(name, 1) for name in names]


#: Where a message comes that was delivered before, that meets a rival, or whose store is away.
OTHER_POINTS = points("count", "lock", "redeliver")


@pytest.mark.parametrize(("engine", "broker"), matrix(("sqlite", "redis"), ("mariadb", "rabbitmq"), ("redis", "rabbitmq")))
def test_nothing_is_lost_or_doubled_wherever_its_process_dies_out_of_turn(deploy: Deploy, engine: str, broker: str) -> None:
    """It runs as a task: in a batch, something else would happen first than what leads there."""
    deployment = deploy("kill_points", broker, engine, saga_conflict_retries=0, saga_batch=1)
    worker = deployment.start("prefork", 2).wait_ready()
    send_all(deployment, ADD, [(point, 0) for point in OTHER_POINTS])
    deployment.wait_handled(ADD, len(OTHER_POINTS))
    wanted = send_to_their_deaths(deployment, ADD_AND_TELL, OTHER_POINTS)
    assert_conserved(deployment, wanted)
    assert worker.is_running


MISSING_POINTS = points("find", "outcome", "record", "publish", "confirm")


def test_what_is_missing_is_told_once_wherever_its_process_dies(deploy: Deploy) -> None:
    """There is no instance: the journal alone knows of the message."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql", saga_hand_over=0)
    deployment.start("prefork", 2).wait_ready()
    wanted = send_to_their_deaths(deployment, "counter.tell_of_missing", MISSING_POINTS)
    deployment.wait_handled("counter.tell_of_missing", len(wanted))
    assert_told(deployment, wanted)
    assert deployment.handled("counter.tell_of_missing") == len(wanted)
    assert values(deployment, "counter", sums(wanted)) == {}


DEAD_LETTER_POINTS = points("dead_letter", "record")


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_one_dead_letter_is_kept_wherever_the_process_dies_that_buries(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("kill_points", broker, engine)
    worker = deployment.start("prefork", 2).wait_ready()
    wanted = send_to_their_deaths(deployment, "counter.add_and_break", DEAD_LETTER_POINTS)
    assert_dead_lettered(deployment, wanted)
    assert worker.is_running
    assert_retry_counts_once(deployment, wanted)


def test_one_dead_letter_is_kept_wherever_the_main_process_dies_that_buries(deploy: Deploy) -> None:
    """It dead-letters what fails outside of the step, and what exceeds its time."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql")
    kill_main_processes(deployment, dict.fromkeys(DEAD_LETTER_POINTS, "counter.never_begin"))
    wanted = [(point, 1) for point in DEAD_LETTER_POINTS]
    assert_dead_lettered(deployment, wanted)
    assert_retry_counts_once(deployment, wanted)


def test_one_dead_letter_is_kept_wherever_the_process_dies_that_does_not_know_the_step(deploy: Deploy) -> None:
    """The point is in the name of the step."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql")
    unknown = {point: f"counter.{point}" for point in points("keep")}
    kill_main_processes(deployment, unknown)
    wait_until(lambda: len(deployment.backend.dead.list(100)) == len(unknown), deployment.describe)
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    assert sorted(dead_letter.task for dead_letter in deployment.backend.dead.list(100)) == sorted(unknown.values())


def kill_main_processes(deployment: Deployment, steps: dict[str, str]) -> None:
    """Have the main process of a worker die at each point; of one more worker nobody dies."""
    workers = [deployment.start("prefork", 1) for _ in range(len(steps) + 1)]
    for worker in workers:
        worker.wait_ready()
    for point, step in steps.items():
        deployment.send(step, name=point, amount=1)
        dead = wait_until(lambda: next((each for each in workers if not each.is_running), None), deployment.describe)
        dead.kill()  # its pool
        workers.remove(dead)
        assert (deployment.folder / f"{point}.once").exists()


def assert_dead_lettered(deployment: Deployment, wanted: list[tuple[str, int]]) -> None:
    """Assert that each message is one dead letter, that the journal says so once, and that nothing else is left of it."""
    names = sorted(name for name, _ in wanted)
    wait_until(lambda: all(deployment.history("counter", name) for name in names), deployment.describe)
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    assert [[entry.outcome for entry in deployment.history("counter", name)] for name in names] == [["failed"]] * len(names)
    assert sorted(dead_letter.key for dead_letter in deployment.backend.dead.list(100)) == names
    assert values(deployment, "counter", sums(wanted)) == {}
    assert deployment.backend.outbox.count() == 0


def assert_retry_counts_once(deployment: Deployment, wanted: list[tuple[str, int]]) -> None:
    """Assert that the dead letters have their effect, once, when they are retried."""
    (deployment.folder / "fixed").touch()
    deployment.command("sagas", "dead", "retry", "--all", "--reason", "it is fixed")
    assert_tallied(deployment, wanted)
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.backend.dead.list(100) == []


REFUSAL_POINTS = points("fail")


def test_what_no_broker_takes_is_one_dead_letter_wherever_its_sender_dies(deploy: Deploy) -> None:
    """Its sender counts the first attempt, a relay the second; nothing else that is sent with it is lost."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql", **SOON, **UNROUTED)
    deployment.start("prefork", 2).wait_ready()
    wanted = send_to_their_deaths(deployment, "counter.tell_nobody", REFUSAL_POINTS)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    deployment.wait_handled(TOLD, len(wanted))
    assert values(deployment, "counter", sums(wanted)) == values(deployment, "tally", sums(wanted)) == sums(wanted)
    assert deployment.handled("counter.tell_nobody") == deployment.handled(TOLD) == len(wanted)
    assert_dead_letters_of_nobody(deployment, REFUSAL_POINTS)


def assert_dead_letters_of_nobody(deployment: Deployment, names: list[str]) -> None:
    """Assert that what was sent to nobody is kept, once each."""
    kept = [json.loads(dead_letter.payload)["kwargs"]["name"] for dead_letter in deployment.backend.dead.list(100)]
    assert sorted(kept) == sorted(f"nobody of {name}" for name in names)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_end_is_told_once_wherever_its_process_dies(deploy: Deploy, engine: str) -> None:
    """The repeat finds no instance, and what its commit has sent."""
    deployment = deploy("counters", "rabbitmq", engine, saga_hand_over=0)
    wanted = [(point, 7) for point in POINTS]
    worker = deployment.start("prefork", 2).wait_ready()
    send_all(deployment, ADD, wanted)
    deployment.wait_handled(ADD, len(wanted))
    assert worker.stop() == 0
    deployment.app = "kill_points"
    worker = deployment.start("prefork", len(POINTS)).wait_ready()
    for point in POINTS:
        deployment.send(FINISH, name=point)
        wait_died(deployment, point)
    deployment.wait_handled(FINISH, len(wanted))
    assert_told(deployment, wanted)
    assert deployment.handled(FINISH) == len(wanted)
    assert values(deployment, "counter", sums(wanted)) == {}
    assert worker.is_running


def test_redelivery_publishes_what_a_dead_process_left(deploy: Deploy) -> None:
    """There is no relay here: the repeat of the message waits until the lease of the dead has ended."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql", saga_dispatch_grace=2, saga_relay=False)
    deployment.start("prefork", len(POINTS)).wait_ready()
    wanted = [(point, 1) for point in POINTS]
    send_all(deployment, ADD_AND_TELL, wanted)
    deployment.wait_handled(TOLD, len(wanted))
    deployment.relay()  # rows that were published, and that their process had no time to remove: everybody drops the repeats
    wait_until(lambda: deployment.queued() == 0 and deployment.backend.outbox.count() == 0, deployment.describe)
    assert values(deployment, "tally", sums(wanted)) == sums(wanted)
    assert deployment.handled(TOLD) == len(wanted)


#: What a redelivery does with what an earlier process has committed and not published.
LEFTOVER_POINTS = points("look", "claim", "republish", "reconfirm")


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_redelivery_publishes_what_is_left_wherever_its_own_process_dies(deploy: Deploy, engine: str, broker: str) -> None:
    """There is no relay here, either."""
    deployment = deploy("kill_points", broker, engine, saga_dispatch_grace=2, saga_relay=False)
    deployment.start("prefork", 4).wait_ready()
    wanted = [(point, 1) for point in LEFTOVER_POINTS]
    send_all(deployment, ADD_AND_TELL, wanted)
    for point in LEFTOVER_POINTS:
        wait_died(deployment, point)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe, 2 * DEADLINE_S)
    assert_conserved(deployment, wanted)


#: How one relay comes to what another has claimed by the time that it has started. Seconds.
AT_ONCE = {"saga_lease_ttl": 1, "saga_relay_interval": 0.1}
RELAY_POINTS = points("claim", "release", "publish", "confirm")


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_no_timeout_is_lost_or_doubled_wherever_the_relay_dies(deploy: Deploy, engine: str, broker: str) -> None:
    """One relay after the other dies; what it had claimed is sent when its lease has ended."""
    deployment = deploy("deadly_relay", broker, engine, saga_relay=False, **AT_ONCE)
    deployment.start("prefork", 2).wait_ready()
    for point in RELAY_POINTS:
        deployment.send("reminder.remind", name=point, seconds=0.1, times=3)
        deployment.start_relay(CELERY_SAGAS_TEST_POINT=point).wait_ended()
    assert {path.stem for path in deployment.folder.glob("*.once")} == set(RELAY_POINTS)
    deployment.start_relay()
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    deployment.wait_handled("reminder.reminded", 3 * len(RELAY_POINTS))
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    assert deployment.handled("reminder.reminded") == 3 * len(RELAY_POINTS)
    assert [deployment.state("reminder", point) for point in RELAY_POINTS] == [
        {"name": point, "count": 3} for point in RELAY_POINTS
    ]
    assert deployment.failures() == []


RELAY_DEAD_LETTER_POINTS = points("fail", "dead_letter")


def test_what_no_broker_takes_is_one_dead_letter_wherever_the_relay_dies(deploy: Deploy) -> None:
    """The attempt after the first death is the second one, or again the first."""
    deployment = deploy("deadly_relay", "rabbitmq", "postgresql", saga_relay=False, **AT_ONCE, **UNROUTED)
    deployment.start("prefork", 1).wait_ready()
    for point in RELAY_DEAD_LETTER_POINTS:
        deployment.send("reminder.write_to_nobody", name=point)
    deployment.wait_handled("reminder.write_to_nobody", len(RELAY_DEAD_LETTER_POINTS))
    for point in RELAY_DEAD_LETTER_POINTS:
        deployment.start_relay(CELERY_SAGAS_TEST_POINT=point).wait_ended()
        assert (deployment.folder / f"{point}.once").exists()
    deployment.start_relay()
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert_dead_letters_of_nobody(deployment, RELAY_DEAD_LETTER_POINTS)
