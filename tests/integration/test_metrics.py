"""Metrics of real workers: nothing is lost with the processes that count."""

import socket
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, assert_conserved, increments, send_all
from tests.integration.scraping import scrape, wait_counted
from tests.integration.worker import Deployment
from tests.processes import HOST, free_port
from tests.waiting import wait_until

MESSAGES = 12
STEPS = "celery_sagas_step_duration_seconds_count"


def measured(deploy: Deploy, app: str = "counters", **settings: object) -> tuple[Deployment, str]:
    """Deploy an app whose workers serve their metrics, and return the address, too."""
    address = f":{free_port()}"
    return deploy(app, "rabbitmq", "postgresql", **{"saga_metrics": address, "saga_batch": 1, **settings}), address


def test_processes_that_end_take_no_count_with_them(deploy: Deploy, tmp_path: Path) -> None:
    """Each process handles one message: its files are added up, and do not grow in number."""
    deployment, address = measured(deploy, worker_max_tasks_per_child=1)
    worker = deployment.start("prefork", 2, PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "counts")).wait_ready()
    wanted = increments(MESSAGES, counters=4)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    sums = wait_counted(worker, address, 2 * MESSAGES, STEPS)

    assert sums(STEPS, saga="counter", step=ADD_AND_TELL) == MESSAGES
    assert sums(STEPS, saga="tally") == MESSAGES
    assert sums(STEPS, outcome="started") == 8
    assert sums(STEPS) == 2 * MESSAGES == sums("celery_sagas_step_duration_seconds_bucket", le="+Inf")
    assert sums("celery_sagas_published_total", result="confirmed") == MESSAGES
    wait_until(lambda: len(list((tmp_path / "counts").glob("*.db"))) < 16, "the files of ended processes are added up")
    assert scrape(address)(STEPS) == 2 * MESSAGES


@pytest.mark.parametrize("pool", ["solo", "threads", *["gevent"] * bool(find_spec("gevent"))])
def test_pool_in_one_process_is_counted(deploy: Deploy, pool: str) -> None:
    """What a process counts besides is served, too."""
    deployment, address = measured(deploy, "measuring", saga_batch=50, worker_prefetch_multiplier=20)
    worker = deployment.start(pool, 1 if pool == "solo" else 4).wait_ready()
    for number in range(MESSAGES):
        deployment.send("shop.work", name=str(number))
    deployment.send("shop.fail", name="a")
    sums = wait_counted(worker, address, 1, "celery_sagas_dead_letters_total")
    sums = wait_counted(worker, address, MESSAGES, STEPS, step="shop.work")

    assert sums(STEPS, step="shop.work", outcome="started") == sums("shop_done_total") == MESSAGES
    assert sums(STEPS, step="shop.fail", outcome="raised") == sums("celery_sagas_dead_letters_total", task="shop.fail") == 1
    assert sums("celery_sagas_relay_lag_seconds") >= 0
    if pool != "gevent":  # which takes some seconds to end
        assert worker.stop() == 0


def test_counters_that_would_be_lost_are_refused(deploy: Deploy) -> None:
    """The app has imported prometheus_client: the worker says what to do. Done so, the app's own counters are served, too."""
    deployment, address = measured(deploy, "measuring")
    worker = deployment.start("prefork", 1)
    assert worker.wait_ended() != 0
    assert "prometheus_client was imported before PROMETHEUS_MULTIPROC_DIR was set" in worker.log
    assert "Set PROMETHEUS_MULTIPROC_DIR in the environment of the worker" in worker.log

    worker = deployment.start("prefork", 1, PROMETHEUS_MULTIPROC_DIR=str(deployment.folder)).wait_ready()
    deployment.send("shop.work", name="a")
    sums = wait_counted(worker, address, 1, STEPS)
    assert sums("shop_done_total") == 1


def test_taken_port_is_served_once_it_is_free(deploy: Deploy) -> None:
    """As that of the worker before, which handles its last messages: the worker works all the same."""
    deployment, address = measured(deploy)
    with closing(socket.create_server((HOST, int(address[1:])))):
        worker = deployment.start("prefork", 1).wait_ready()
        worker.wait_logged(f"the metrics cannot be served on {address}")
        wanted = increments(1, counters=1)
        send_all(deployment, ADD_AND_TELL, wanted)
        assert_conserved(deployment, wanted)
    worker.wait_logged(f"metrics are served on {address}")
    wait_counted(worker, address, 2, STEPS)
