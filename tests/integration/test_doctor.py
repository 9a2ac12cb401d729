"""``celery sagas doctor`` beside workers, on real servers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_sagas.testing.samples import dead_letter
from tests import redis_servers, servers
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.servers import unique
from tests.waiting import wait_until

ASKED = {"worker_enable_remote_control": True, "saga_relay_interval": 0.1}
#: What is said where all is well.
ALL = {f"D{number:02}" for number in (*range(1, 9), *range(10, 19), 21, 22)}
PLACE = "order.place_order"


@pytest.fixture(scope="module")
def durable_url() -> Iterator[str]:
    """A Redis server that keeps everything."""
    with redis_servers.running(appendonly="yes") as server:
        yield server.url


@pytest.fixture
def empty_url() -> Iterator[str]:
    """A PostgreSQL database: the tables of the shared one may be full of rows that are dead."""
    with servers.database("postgresql") as url:
        yield url


def examine(deployment: Deployment) -> tuple[int, list[dict[str, Any]]]:
    """Run the command; return its exit status, and what it has found."""
    process = deployment._run(["sagas", "doctor", "--json"], {}, unique("doctor"))
    status = process.wait_ended()
    process.kill()
    deployment.workers.remove(process)
    return status, [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]


def wait_well(deployment: Deployment) -> list[dict[str, Any]]:
    """Wait until all is well, and the workers have answered in time: busy ones do not."""
    last: list[Any] = []

    def is_well() -> bool:
        last[:] = examine(deployment)
        return last[0] == 0 and {each["id"] for each in last[1]} == ALL

    wait_until(is_well, lambda: f"what is well: {last}")
    found: list[dict[str, Any]] = last[1]
    return found


def lines_of(found: list[dict[str, Any]], id: str) -> list[str]:
    """Return what one check says, with its level."""
    return [f"{each['level']} {each['sentence']}" for each in found if each["id"] == id]


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_all_is_well(deploy: Deploy, durable_url: str, empty_url: str, broker: str) -> None:
    urls = {"rabbitmq": ("rabbitmq", empty_url), "redis": (durable_url, durable_url)}
    deployment = deploy("shop", *urls[broker], **ASKED)
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send(PLACE, order_id="42", total="9.99")
    deployment.wait_handled(PLACE, 1)
    before = deployment.backend.outbox.count()
    found = wait_well(deployment)
    assert {each["level"] for each in found} == {"OK"}
    assert lines_of(found, "D13") == ["OK 1 of 1 workers that have answered run a relay."]
    assert deployment.backend.outbox.count() == before
    deployment.backend.dead.add(dead_letter())
    status, found = examine(deployment)
    assert status == 3
    assert lines_of(found, "D17")[0].startswith("WARN There is 1 dead letter")
    assert worker.stop() == 0


def test_worker_without_a_relay_and_a_queue_without_a_worker(deploy: Deploy, durable_url: str) -> None:
    deployment = deploy("shop", "rabbitmq", durable_url, **ASKED)
    worker = deployment.start("prefork", 1).wait_ready()
    wait_well(deployment)
    assert worker.stop() == 0
    queue = deployment.route("order.pay")
    deployment.settings["saga_relay"] = False
    deployment.start("prefork", 1).wait_ready()
    deployment.settings["saga_relay"] = True  # which the command reads: this worker was started otherwise

    def found() -> list[str]:
        status, each = examine(deployment)
        assert status == 3
        return [*lines_of(each, "D13"), *lines_of(each, "D15")]

    expected = [
        "FAIL No worker that has answered runs a relay",
        f"WARN No worker that has answered takes messages from the queue {queue}, to which order.pay go",
    ]
    last: list[str] = []

    def is_found() -> bool:
        last[:] = found()
        return len(last) == 2 and all(line.startswith(begin) for line, begin in zip(last, expected, strict=True))

    wait_until(is_found, lambda: f"what is expected: {last}")


def test_servers_that_are_away(proxied: Any, deploy: Deploy) -> None:
    """Of a database and a broker that do not answer, it says so in time; no password is shown."""
    store, broker = proxied("postgresql"), proxied("rabbitmq")
    deployment = deploy("shop", broker.url, store.url, **ASKED)
    deployment.backend.prepare(create_schema=True, processes=1)
    store.refuse()
    broker.refuse()
    status, found = examine(deployment)
    assert status == 3
    away = {each["id"] for each in found if each["level"] == "FAIL"}
    assert away == {"D10", "D21"}
    assert {each["id"] for each in found} == {f"D{number:02}" for number in range(1, 9)} | {"D10", "D21"}
    broker.accept()
    status, found = examine(deployment)
    assert [line[:4] for line in (*lines_of(found, "D21"), *lines_of(found, "D13"), *lines_of(found, "D10"))] == [
        "OK T",
        "WARN",
        "FAIL",
    ]
    store.accept()
