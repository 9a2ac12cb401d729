"""RabbitMQ's queues of other kinds: quorum queues with a delivery limit, and queues with priorities."""

from typing import Any

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, ADD_AND_TELL, assert_conserved, increments, send_all
from tests.integration.ledgers import SOON
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: Of a quorum queue: how often a message is delivered again before RabbitMQ drops it.
LIMIT = 5
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}


def _declare(deployment: Deployment, arguments: dict[str, Any]) -> None:
    """Have the worker and the test declare the queue with these arguments."""
    queues = {deployment.name: {"exchange": deployment.name, "exchange_type": "topic", "queue_arguments": arguments}}
    deployment.settings["task_queues"] = queues
    deployment.settings["task_default_exchange_type"] = "topic"
    deployment.client.conf.update(task_queues=queues, task_default_exchange_type="topic")


def test_quorum_queue_loses_and_doubles_nothing(deploy: Deploy) -> None:
    """Although workers are killed, less often than its limit says: each time counts for all messages that the worker had."""
    settings = {"saga_max_deliveries": LIMIT - 1, "worker_prefetch_multiplier": 20, **SOON}
    deployment = deploy("counters", "rabbitmq", "postgresql", **settings)
    _declare(deployment, QUORUM)
    wanted = increments(150, counters=6)
    send_all(deployment, ADD_AND_TELL, wanted)
    for number in range(1, LIMIT):
        worker = deployment.start("prefork", 2).wait_ready()
        deployment.wait_handled(ADD_AND_TELL, number * 20)
        worker.kill()
    deployment.start("prefork", 2).wait_ready()
    assert_conserved(deployment, wanted)


def test_message_that_ends_its_worker_is_a_dead_letter_before_its_queue_drops_it(deploy: Deploy) -> None:
    deployment = deploy("failing", "rabbitmq", "postgresql", saga_max_deliveries=LIMIT - 2)
    _declare(deployment, QUORUM)
    deployment.start("prefork", 1).wait_ready()
    message_id = deployment.send("job.crash", name="a")
    wait_until(lambda: deployment.backend.dead.list(9), deployment.describe)
    (dead_letter,) = deployment.backend.dead.list(9)
    assert (dead_letter.message_id, dead_letter.error) == (message_id, "TooManyDeliveries")


def test_worker_does_not_start_if_its_queue_drops_messages_first(deploy: Deploy) -> None:
    deployment = deploy("counters", "rabbitmq", "postgresql", saga_max_deliveries=LIMIT)
    _declare(deployment, QUORUM)
    worker = deployment.start("prefork", 1)
    assert worker.wait_ended() != 0
    last = worker.log.rstrip().splitlines()[-1]
    assert f"x-delivery-limit of {LIMIT}" in last
    assert "saga_max_deliveries" in last


def test_priorities_go_before_the_order_of_arrival(deploy: Deploy) -> None:
    """The step's effects are those of any other order."""
    deployment = deploy("counters", "rabbitmq", "postgresql")
    _declare(deployment, {"x-max-priority": 9})
    wanted = increments(30, counters=1)
    for number, (name, amount) in enumerate(wanted):
        deployment.client.send_task(
            ADD, kwargs={"name": name, "amount": amount}, priority=number % 10, task_id=f"{number % 10}-{number}"
        )
    wait_until(lambda: deployment.queued() == len(wanted), deployment.describe)
    deployment.start("prefork", 1).wait_ready()  # and one message at a time; the solo pool would stand still for seconds
    deployment.wait_handled(ADD, len(wanted))
    history = deployment.history("counter", wanted[0][0])
    assert sum(amount for _, amount in wanted) == (deployment.state("counter", wanted[0][0]) or {})["value"]
    first = [entry.message_id[0] for entry in history]
    assert first == sorted(first, reverse=True)
