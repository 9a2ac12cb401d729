"""Steps that are asked while processes die: the same id gives the same answer, and the step has its effect once."""

import json

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import assert_conserved
from tests.integration.deaths import VISIBILITY, points, wait_died
from tests.integration.matrices import matrix
from tests.integration.worker import APPS, Deployment
from tests.waiting import DEADLINE_S

#: A message comes to each of them before another one is begun, by which its process might die first.
POINTS = points("find", "commit", "publish")
ASKER = APPS / "ask_counters.py"
ON = matrix(("postgresql", "rabbitmq"), ("redis", "redis"))


def answers_of(output: str) -> dict[str, list[int]]:
    """Return what an asker has written."""
    answers: dict[str, list[int]] = json.loads(output.splitlines()[-1])
    return answers


def ask_again(deployment: Deployment, *names: str) -> dict[str, list[int]]:
    """Ask the same questions in another process, which gives the answers no time."""
    return answers_of(deployment.script(ASKER, "0", *names))


@pytest.mark.parametrize(("engine", "broker"), ON)
def test_the_same_id_gives_the_same_answer_wherever_its_process_dies(deploy: Deploy, engine: str, broker: str) -> None:
    """Whoever asks dies, too, and asks again."""
    deployment = deploy("asked_to_death", broker, engine, saga_hand_over=0, saga_batch=1)
    worker = deployment.start("prefork", 4).wait_ready()
    first = deployment.start_script(ASKER, str(DEADLINE_S), *POINTS)
    wait_died(deployment, POINTS[0])
    first.kill()

    asker = deployment.start_script(ASKER, str(2 * DEADLINE_S), *POINTS)
    asker.wait_ended(2 * DEADLINE_S)
    for point in POINTS:
        wait_died(deployment, point)

    assert answers_of(asker.output) == {point: [10, 10, 11, 11] for point in POINTS}
    assert ask_again(deployment, *POINTS) == {point: [10, 10, 11, 11] for point in POINTS}
    assert_conserved(deployment, [(point, amount) for point in POINTS for amount in (10, 1)], "counter.add_and_say")
    assert worker.is_running


@pytest.mark.parametrize(("engine", "broker"), ON)
def test_the_same_id_gives_the_same_answer_when_a_worker_dies(deploy: Deploy, engine: str, broker: str) -> None:
    """Its main process, too: the broker gives its messages to another."""
    options = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("asked", broker, engine, **options)
    names = [f"counter {number}" for number in range(20)]
    workers = [deployment.start("prefork", 1).wait_ready() for _ in range(2)]
    asker = deployment.start_script(ASKER, str(2 * DEADLINE_S), *names)
    deployment.wait_handled("counter.add_and_say", 5)
    workers[0].kill()
    asker.wait_ended(2 * DEADLINE_S)

    assert answers_of(asker.output) == {name: [10, 10, 11, 11] for name in names}
    assert ask_again(deployment, *names) == {name: [10, 10, 11, 11] for name in names}
    assert workers[1].is_running
