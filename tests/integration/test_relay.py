"""Relays in real workers: what is due is sent, whoever has died, and whatever went away and came back."""

import json
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from celery_sagas.testing.samples import dead_letter
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, assert_conserved, increments, send_all
from tests.integration.matrices import matrix
from tests.integration.proxy import Proxy
from tests.integration.worker import Deployment
from tests.waiting import DEADLINE_S, wait_until

REMIND, REMINDED, WRITE_LATER = "reminder.remind", "reminder.reminded", "reminder.write_later"
POOLS = [
    "prefork",
    "threads",
    "solo",
    pytest.param("gevent", marks=pytest.mark.skipif(not find_spec("gevent"), reason="no gevent")),
]


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "rabbitmq"), ("redis", "redis"))
)
def test_what_a_killed_worker_left_is_sent_by_another(
    deploy: Deploy, proxied: Callable[[str], Proxy], engine: str, broker: str
) -> None:
    """Although the message that decided it is done, and is never delivered again."""
    proxy = proxied(broker)
    deployment = deploy("counters", broker, engine, saga_dispatch_grace=2, saga_hand_over=0)
    deployment.settings["broker_read_url"] = deployment.broker
    deployment.settings["broker_write_url"] = proxy.url
    worker = deployment.start("prefork", 2).wait_ready()
    proxy.refuse()
    ids = send_all(deployment, ADD_AND_TELL, wanted := increments(5, counters=2))
    for message_id in ids:
        worker.wait_logged(f"add_and_tell[{message_id}] succeeded")
    wait_until(lambda: deployment.queued() == 0, "every message acknowledged")
    worker.kill()
    assert deployment.backend.outbox.count() == len(wanted)

    deployment.settings["broker_write_url"] = deployment.broker
    deployment.start("prefork", 2).wait_ready()
    deployment.wait_handled(TOLD, len(wanted))
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert_conserved(deployment, wanted)


@pytest.mark.parametrize("pool", POOLS)
def test_timeouts_come_in_every_pool(deploy: Deploy, pool: str) -> None:
    deployment = deploy("reminders", "redis", "sqlite", saga_relay_interval=0.2)
    worker = deployment.start(pool, 2).wait_ready()
    deployment.send(REMIND, name="a", seconds=0.5, times=3)
    deployment.send(WRITE_LATER, name="b", seconds=0.5)
    _wait_reminded(deployment, "a", 3)
    wait_until(lambda: deployment.noted("written") == ["b"], deployment.describe)
    assert worker.stop() == 0
    assert deployment.failures() == []


def test_a_timeout_comes_at_once_and_another_waits_for_a_year(deploy: Deploy) -> None:
    deployment = deploy("reminders", "rabbitmq", "redis", saga_relay_interval=0.05)
    deployment.start("prefork", 2).wait_ready()
    for count in (1, 2):  # the second takes the place of the one that has its name
        deployment.send("reminder.remind_next_year", name="a")
        _wait_reminded(deployment, "a", count)
        wait_until(lambda: deployment.backend.outbox.count() == 1, deployment.describe)
    assert deployment.relay() == 0
    deployment.send("reminder.forget_next_year", name="a")
    deployment.wait_handled("reminder.forget_next_year", 1)
    assert deployment.noted("timeouts") == ["next year"]
    assert deployment.backend.outbox.count() == 0
    assert deployment.state("reminder", "a") == {"name": "a", "count": 2}
    assert deployment.failures() == []


def test_two_workers_send_each_row_once(deploy: Deploy) -> None:
    deployment = deploy("reminders", "rabbitmq", "postgresql", saga_relay_interval=0.05)
    workers = [deployment.start("prefork", 2).wait_ready() for _ in range(2)]
    names = [f"reminder {number}" for number in range(10)]
    for name in names:
        deployment.send(REMIND, name=name, seconds=3, times=30)
    deployment.wait_handled(REMIND, len(names))
    for name in names:
        _wait_reminded(deployment, name, 30)
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    wait_until(lambda: deployment.backend.outbox.count() == 0, "an empty outbox")
    received = [line for worker in workers for line in worker.log.splitlines() if REMINDED in line and " received" in line]
    assert len(received) == 300


@pytest.mark.parametrize(
    ("broker", "engine"), [("redis", "redis"), ("redis", "mariadb"), ("rabbitmq", "postgresql"), ("rabbitmq", "sqlite")]
)
def test_timeouts_that_the_broker_has_lost(deploy: Deploy, broker: str, engine: str) -> None:
    """They were published and confirmed, and a queue is purged: they are published again until they are handled."""
    deployment = deploy("reminders", broker, engine, saga_relay=False, saga_relay_interval=0.1, saga_resend_after=1)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send(REMIND, name="a", seconds=0.1, times=20)
    deployment.wait_handled(REMIND, 1)
    assert worker.stop() == 0
    relay = deployment.start_relay()
    wait_until(lambda: deployment.queued() >= 20, relay.describe)
    deployment.purge()
    wait_until(lambda: deployment.queued() >= 20, relay.describe)
    assert "20 timeouts or deadlines were published and not handled, and are published again" in relay.log
    deployment.start("prefork", 2).wait_ready()
    _wait_reminded(deployment, "a", 20)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    assert deployment.state("reminder", "a") == {"name": "a", "count": 20}
    assert deployment.failures() == []


def test_timeouts_survive_a_worker_that_is_killed_as_a_whole(deploy: Deploy) -> None:
    """On Redis, kombu loses what it has popped and not yet noted as unacknowledged, when a whole worker is killed."""
    deployment = deploy("reminders", "redis", "postgresql", saga_relay_interval=0.1, saga_resend_after=1)
    worker = deployment.start("prefork", 2, is_fresh=True).wait_ready()
    names = [f"reminder {number}" for number in range(5)]
    for name in names:
        deployment.send(REMIND, name=name, seconds=0.5, times=40)
    deployment.wait_handled(REMINDED, 20)
    worker.kill()
    deployment.start("prefork", 2).wait_ready()
    for name in names:
        _wait_reminded(deployment, name, 40)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)


@pytest.mark.parametrize("server", ["postgresql", "mariadb", "redis"])
def test_a_database_that_comes_back(deploy: Deploy, proxied: Callable[[str], Proxy], server: str) -> None:
    proxy = proxied(server)
    deployment = deploy("reminders", "rabbitmq", server, saga_relay_interval=0.2)
    deployment.settings["saga_backend"] = proxy.url
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send(REMIND, name="a", seconds=2)
    deployment.wait_handled(REMIND, 1)
    proxy.refuse()
    worker.wait_logged("the relay could not go on")
    proxy.accept()
    _wait_reminded(deployment, "a", 1)
    worker.wait_logged("the relay works again")
    assert "the relay met with an error" not in worker.log
    assert worker.stop() == 0


def test_a_worker_without_a_relay_says_so_and_another_program_does_its_work(deploy: Deploy) -> None:
    deployment = deploy("reminders", "redis", "postgresql", saga_relay=False, saga_relay_interval=0.1)
    worker = deployment.start("prefork", 1).wait_ready()
    assert "saga_relay is off: this worker sends no timeouts" in worker.log
    deployment.send(REMIND, name="a", seconds=0.1, times=5)
    deployment.send(WRITE_LATER, name="b", seconds=0.1)
    deployment.wait_handled(WRITE_LATER, 1)
    deployment.wait_handled(REMIND, 1)
    assert deployment.backend.outbox.count() == 6

    relay = deployment.start_relay()
    _wait_reminded(deployment, "a", 5)
    wait_until(lambda: deployment.noted("written") == ["b"], deployment.describe)
    relay.wait_logged("sent=")
    assert relay.stop() == 0
    assert relay.output.splitlines()[-1] == "The relay has ended."


def test_a_relay_alone_survives_its_servers(deploy: Deploy, proxied: Callable[[str], Proxy]) -> None:
    """And ends at once when it is told to, also while they are away."""
    store, broker = proxied("postgresql"), proxied("rabbitmq")
    deployment = deploy("reminders", "rabbitmq", "postgresql", saga_relay=False, saga_relay_interval=0.1)
    deployment.start("prefork", 1).wait_ready()
    deployment.settings |= {"saga_backend": store.url, "broker_url": broker.url}
    relay = deployment.start_relay()
    relay.wait_written("The relay runs.")
    for number, proxy in enumerate((store, broker)):
        proxy.refuse()
        deployment.send(REMIND, name=f"reminder {number}", seconds=0.1)
        wait_until(lambda count=number + 1: relay.log.count("the relay could not go on") == count, relay.describe)
        proxy.accept()
        _wait_reminded(deployment, f"reminder {number}", 1)
        wait_until(lambda count=number + 1: relay.log.count("the relay works again") == count, relay.describe)
    store.refuse()
    wait_until(lambda: relay.log.count("the relay could not go on") == 3, relay.describe)
    os.kill(relay.pid, signal.SIGINT)
    assert relay.wait_ended() == 0


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "redis"])
def test_processes_that_are_replaced_while_the_relay_works(deploy: Deploy, engine: str) -> None:
    """A fork at any moment of a sweep, in the relay's own process, harms neither side."""
    deployment = deploy("reminders", "redis", engine, saga_relay_interval=0.01)
    worker = deployment.start("prefork", 3, "--max-tasks-per-child", "1").wait_ready()
    names = [f"reminder {number}" for number in range(3)]
    for number, name in enumerate(names):
        deployment.send(REMIND, name=name, seconds=1 + number / 2, times=5)
    for name in names:
        _wait_reminded(deployment, name, 5)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert deployment.failures() == []
    assert "the relay met with an error" not in worker.log
    assert worker.stop() == 0


def test_inspect_shows_the_relay(deploy: Deploy) -> None:
    deployment = deploy("reminders", "redis", "sqlite", worker_enable_remote_control=True, saga_relay_interval=0.1)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send(REMIND, name="a", seconds=0.1, times=2)
    _wait_reminded(deployment, "a", 2)
    wait_until(lambda: _inspect(deployment, f"{worker.name}@localhost")["sent"] == 2, worker.describe)  # when a sweep has ended
    answer = _inspect(deployment, f"{worker.name}@localhost")
    assert (answer["running"], answer["sent"], answer["last_error"]) == (True, 2, "")
    assert answer["last"]["ended_at"] >= answer["last"]["began_at"]
    deployment.backend.dead.add(dead_letter())
    wait_until(lambda: _inspect(deployment, f"{worker.name}@localhost")["dead_letters"] == 1, "an answer of the store")
    assert "sagas_relay" in deployment.command("inspect", "--list")


def _inspect(deployment: Deployment, worker: str) -> dict[str, Any]:
    """Return a worker's answer; nobody else is waited for."""
    options = ["--destination", worker, "--timeout", str(DEADLINE_S)]
    answers: dict[str, Any] = json.loads(deployment.command("inspect", "sagas_relay", "--json", *options))
    return answers[worker]


def _wait_reminded(deployment: Deployment, name: str, count: int) -> None:
    def is_reminded() -> bool:
        return (deployment.state("reminder", name) or {}).get("count") == count

    wait_until(is_reminded, lambda: f"{count} reminders of {name}\n{deployment.describe(REMINDED)}")
