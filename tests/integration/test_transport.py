"""Workers that receive in bulk from Redis: they lose nothing wherever they die, and share queues with kombu's own transport.

How many messages are sent while how many workers are killed stands in ``CELERY_SAGAS_TEST_TRANSPORT``.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import redis_servers
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, ADD_AND_TELL, assert_conserved, increments, send_all, sums, values
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY, points, wait_died
from tests.integration.worker import Deployment, Worker
from tests.processes import free_port
from tests.redis_servers import RedisServer
from tests.waiting import DEADLINE_S, wait_until

MESSAGES, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_TRANSPORT", "1500,12").split(","))
#: Messages a second that even a slow machine handles between kills.
SLOWEST = 50
#: Seconds until a kill, at most: most of them come while messages are taken.
PAUSE_S = 0.1
MASTER = "parcels"
DELIVER, HOLD = "parcel.deliver", "parcel.hold"
IN_BULK, KOMBU = "sagas-", ""
no_gevent = pytest.mark.skipif(not find_spec("gevent"), reason="no gevent")
POOLS = ["prefork", "threads", "solo", pytest.param("gevent", marks=no_gevent)]
GREENLETS = 50
CONCURRENCY = {"solo": 1, "gevent": GREENLETS}


def deploy_parcels(
    deploy: Deploy, app: str = "parcels", broker: str = "redis", backend: str = "sqlite", **settings: Any
) -> Deployment:
    """Deploy parcels on workers that receive in bulk."""
    deployment = deploy(app, broker, backend, **settings)
    receive(deployment, IN_BULK)
    return deployment


def receive(deployment: Deployment, prefix: str) -> None:
    """Have the workers that are started from now on receive with one transport or the other."""
    deployment.settings["broker_read_url"] = f"{prefix}{deployment.broker}"


def send_parcels(deployment: Deployment, names: list[str], task: str = DELIVER) -> list[str]:
    """Send parcels; return their names."""
    for name in names:
        deployment.send(task, name=name)
    return names


def named(what: str, count: int) -> list[str]:
    """Return names for parcels."""
    return [f"{what}-{number}" for number in range(count)]


def delivered(deployment: Deployment) -> list[str]:
    """Return the names of the parcels that were delivered, in their order."""
    return [line.split()[0] for line in deployment.noted("delivered")]


def wait_delivered(deployment: Deployment, names: list[str], deadline_s: float = DEADLINE_S) -> None:
    """Wait until each of these parcels was delivered, and nothing is left to do."""
    wait_until(lambda: set(names) <= set(delivered(deployment)), deployment.describe, deadline_s)
    wait_until(lambda: is_settled(deployment), deployment.describe, deadline_s)


def is_settled(deployment: Deployment) -> bool:
    """Whether no message waits, and none is unacknowledged."""
    return deployment.queued() + deployment.unacknowledged() == 0


# Deaths


@pytest.mark.timeout(600 + MESSAGES // SLOWEST + 10 * KILLS)
def test_every_message_is_handled_whichever_workers_are_killed(deploy: Deploy) -> None:
    """Plain tasks at least once, steps once: what was taken and not acknowledged comes back."""
    settings = {"broker_transport_options": VISIBILITY, "worker_prefetch_multiplier": 16}
    deployment = deploy_parcels(deploy, backend="redis", **settings)
    crew = Crew(deployment, random.Random(0), ["", ""], spare_last=False, pause_s=PAUSE_S)
    names, wanted = named("parcel", MESSAGES // 2), increments(MESSAGES // 2, counters=20)
    for kill in range(KILLS):
        crew.wait_ready()
        for number in range(len(names) * kill // KILLS, len(names) * (kill + 1) // KILLS):
            send_parcels(deployment, names[number : number + 1])
            send_all(deployment, ADD, wanted[number : number + 1])
        assert crew.kill_one(is_whole=True)
    deadline_s = 60 + MESSAGES / SLOWEST
    wait_delivered(deployment, names, deadline_s)
    deployment.wait_handled(ADD, len(wanted), deadline_s)
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.handled(ADD) == len(wanted)
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []


POINTS = points("hello", "subscribe", "track", "load", "take", "restore", "acknowledge")


def test_no_message_is_lost_wherever_its_worker_dies(deploy: Deploy) -> None:
    """One worker after the other dies, each around another command; what one has taken, the next ones restore."""
    deployment = deploy_parcels(deploy, "deadly_transport", broker_transport_options=VISIBILITY)
    for point in POINTS:
        send_parcels(deployment, [point.replace(" ", "-")])
        _die(deployment, point)
    deployment.start("solo", 1)
    wait_delivered(deployment, [point.replace(" ", "-") for point in POINTS])


def test_kombus_own_transport_loses_the_message_of_a_worker_that_dies_before_it_is_noted(deploy: Deploy) -> None:
    """Else the test above could not fail."""
    deployment = deploy_parcels(deploy, "deadly_transport", broker_transport_options=VISIBILITY)
    receive(deployment, KOMBU)
    send_parcels(deployment, ["lost"])
    _die(deployment, "before note")
    assert is_settled(deployment)
    deployment.start("solo", 1)
    wait_delivered(deployment, send_parcels(deployment, ["kept"]))
    assert delivered(deployment) == ["kept"]


def _die(deployment: Deployment, point: str) -> None:
    """Have a worker die at a point."""
    worker = deployment.start("solo", 1, CELERY_SAGAS_TEST_POINT=point)
    wait_died(deployment, point)
    worker.kill()


# The broker


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of our own, which keeps everything that it has answered to."""
    with redis_servers.running(appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.mark.parametrize("pool", POOLS)
def test_worker_that_holds_all_it_may_goes_on_when_its_broker_was_away(deploy: Deploy, server: RedisServer, pool: str) -> None:
    """What it holds ends meanwhile, and cannot be acknowledged: it counts no longer, and is delivered again."""
    processes = 1 if pool == "solo" else 2
    deployment = deploy_parcels(deploy, broker=server.url, broker_transport_options=VISIBILITY)
    worker = deployment.start(pool, processes).wait_ready()
    names = send_parcels(deployment, named("held", processes), HOLD)
    wait_until(lambda: len(deployment.noted("held")) == processes, deployment.describe)
    server.kill()
    (deployment.folder / "go").touch()
    wait_until(lambda: len(delivered(deployment)) == processes, deployment.describe)
    worker.wait_logged("Connection to broker lost")
    server.start()
    wait_delivered(deployment, names + send_parcels(deployment, named("later", 5)))
    assert worker.is_running
    assert worker.stop() == 0


def test_worker_goes_on_when_its_broker_has_forgotten_the_script(deploy: Deploy, server: RedisServer) -> None:
    deployment = deploy_parcels(deploy, broker=server.url)
    worker = deployment.start("prefork", 1).wait_ready()
    wait_delivered(deployment, send_parcels(deployment, ["before"]))
    with server.client() as client:
        client.script_flush()
    wait_delivered(deployment, send_parcels(deployment, ["after"]))
    assert "Connection to broker lost" not in worker.log


def test_worker_goes_on_when_a_connection_of_the_receiver_is_killed(deploy: Deploy, server: RedisServer) -> None:
    """First the one that takes messages, then the one to which the server writes."""
    deployment = deploy_parcels(deploy, broker=server.url)
    worker = deployment.start("prefork", 1).wait_ready()
    for name, is_wanted in RECEIVERS.items():
        _kill_client(server, is_wanted)
        wait_delivered(deployment, send_parcels(deployment, named(name, 5)))
    assert "Connection to broker lost" not in worker.log
    assert worker.stop() == 0


def test_worker_goes_on_when_its_broker_was_a_replica(deploy: Deploy, server: RedisServer) -> None:
    """Which takes no messages, and answers so."""
    deployment = deploy_parcels(deploy, broker=server.url)
    worker = deployment.start("prefork", 1).wait_ready()
    with server.client() as client:
        client.replicaof(redis_servers.HOST, free_port())
        worker.wait_logged("Connection to broker lost")
        client.replicaof("NO", "ONE")
    wait_delivered(deployment, send_parcels(deployment, named("later", 5)))
    assert worker.stop() == 0


def test_worker_goes_on_when_a_script_has_kept_its_broker_busy(deploy: Deploy, server: RedisServer) -> None:
    """That of another program: Redis answers nobody else meanwhile."""
    deployment = deploy_parcels(deploy, broker=server.url)
    worker = deployment.start("prefork", 1).wait_ready()
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as threads:
        client.config_set("lua-time-limit", 10)
        script = threads.submit(other.eval, "while true do end", 0)
        worker.wait_logged("Cannot connect to")
        client.script_kill()
        assert script.exception()
    wait_delivered(deployment, send_parcels(deployment, named("later", 5)))
    assert worker.stop() == 0


#: Seconds, as a server counts them, after which a connection that is closed counts no longer as one that was closed at once.
MOMENT_S = 2
Client = dict[str, str]
#: Which of a server's clients takes messages, and to which the server writes.
RECEIVERS: dict[str, Callable[[Client], bool]] = {
    "commands": lambda client: "t" in client["flags"],
    "invalidations": lambda client: client["cmd"] == "subscribe",
}


def _kill_client(server: RedisServer, is_wanted: Callable[[Client], bool]) -> None:
    """Have a server close a connection, once it is older than one that is closed as soon as it is opened."""
    with server.client() as client:

        def find() -> list[str]:
            return [each["id"] for each in client.client_list() if is_wanted(each) and int(each["age"]) > MOMENT_S]

        (number,) = wait_until(find, "a client of the server")
        assert client.client_kill_filter(_id=number) == 1


def test_worker_goes_on_with_the_new_master_of_a_sentinel(deploy: Deploy) -> None:
    with redis_servers.watched(MASTER) as (first, second, sentinel):
        options = {**VISIBILITY, "master_name": MASTER}
        url = f"sentinel://{redis_servers.HOST}:{sentinel.port}/0"
        deployment = deploy_parcels(deploy, broker=url, broker_transport_options=options)
        worker = deployment.start("prefork", 2).wait_ready()
        names = send_parcels(deployment, named("earlier", 20))
        wait_delivered(deployment, names)
        first.kill()
        redis_servers.promote(second, sentinel, MASTER)
        worker.wait_logged("Connection to broker lost")
        wait_delivered(deployment, send_parcels(deployment, named("later", 20)))
        assert worker.stop() == 0


def test_worker_receives_over_tls(deploy: Deploy, tmp_path: Path) -> None:
    with redis_servers.with_tls(tmp_path) as url:
        deployment = deploy_parcels(deploy, broker=url)
        worker = deployment.start("prefork", 2).wait_ready()
        wait_delivered(deployment, send_parcels(deployment, named("parcel", 20)))
        assert worker.stop() == 0
        deployment.settings["broker_read_url"] = f"{IN_BULK}{url.partition('&')[0]}"
        deployment.start("prefork", 2).wait_logged("CERTIFICATE_VERIFY_FAILED")


def test_worker_does_not_start_if_the_broker_lets_it_run_no_script(deploy: Deploy, server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    deployment = deploy_parcels(deploy, broker=server.url.replace("redis://", "redis://weak:pw@"))
    assert "Allow its user" in _error_at_start(deployment)


def test_worker_does_not_start_on_a_node_of_a_cluster(deploy: Deploy) -> None:
    with redis_servers.cluster(nodes=1) as (node,):
        deployment = deploy_parcels(deploy, broker=node.url)
        assert "Name a single server, or Sentinels" in _error_at_start(deployment)


def _error_at_start(deployment: Deployment) -> str:
    """Return the last line of the log of a worker that ends by itself."""
    worker = deployment.start("prefork", 1)
    assert worker.wait_ended() != 0
    assert not worker.is_ready
    return worker.log.rstrip().splitlines()[-1]


# Kombu's own transport beside it


def test_two_transports_share_a_queue(deploy: Deploy) -> None:
    deployment = deploy_parcels(deploy)
    workers = [deployment.start("prefork", 2).wait_ready()]
    receive(deployment, KOMBU)
    workers.append(deployment.start("prefork", 2).wait_ready())
    names: list[str] = []

    def have_both_worked() -> bool:
        names.extend(send_parcels(deployment, named(f"parcel-{len(names)}", 50)))
        return all(any(worker.name in line for line in deployment.noted("delivered")) for worker in workers)

    wait_until(have_both_worked, deployment.describe)
    wait_delivered(deployment, names)
    assert sorted(delivered(deployment)) == sorted(names)


@pytest.mark.parametrize(("taker", "restorer"), [(IN_BULK, KOMBU), (KOMBU, IN_BULK)], ids=["in bulk", "kombu"])
def test_each_transport_restores_what_a_killed_worker_took_with_the_other(deploy: Deploy, taker: str, restorer: str) -> None:
    settings = {"broker_transport_options": VISIBILITY, "worker_prefetch_multiplier": 4}
    deployment = deploy_parcels(deploy, **settings)
    receive(deployment, taker)
    worker = deployment.start("prefork", 1).wait_ready()
    names = send_parcels(deployment, named("parcel", 6), HOLD)
    wait_until(lambda: (deployment.unacknowledged(), deployment.queued()) == (4, 2), deployment.describe)
    worker.kill()
    receive(deployment, restorer)
    (deployment.folder / "go").touch()
    deployment.start("prefork", 1)
    wait_delivered(deployment, names)


@pytest.mark.parametrize("prefix", [IN_BULK, KOMBU], ids=["in bulk", "kombu"])
def test_higher_priorities_come_first(deploy: Deploy, prefix: str) -> None:
    """Kombu's highest is 0; within one, messages come in their order."""
    deployment = deploy_parcels(deploy, broker_transport_options={"priority_steps": list(range(10))})
    receive(deployment, prefix)
    deployment.start("prefork", 1).wait_ready()
    send_parcels(deployment, ["first"], HOLD)
    wait_until(lambda: deployment.noted("held"), deployment.describe)
    names = [f"{number % 10}-{number:02}" for number in range(40)]
    for name in names:
        deployment.client.send_task(DELIVER, kwargs={"name": name}, priority=int(name[0]), ignore_result=True)
    (deployment.folder / "go").touch()
    wait_delivered(deployment, names)
    assert delivered(deployment) == ["first", *sorted(names)]


# Pools, and the end

#: Workers that look for messages when the server has told them of some, and else as good as never.
ONLY_IF_TOLD = {"CELERY_SAGAS_TEST_RECHECK_S": "3600"}


@pytest.mark.parametrize("pool", POOLS)
def test_pool_handles_what_it_is_told_of_and_obeys(deploy: Deploy, pool: str) -> None:
    """A queue that is added at run time is consumed, and one that is cancelled is left to others."""
    deployment = deploy_parcels(deploy, worker_enable_remote_control=True)
    added = deployment.route(DELIVER)
    worker = deployment.start(pool, CONCURRENCY.get(pool, 2), **ONLY_IF_TOLD).wait_ready()
    wanted = increments(40, counters=5)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    assert ask(deployment, worker, "ping") == {"ok": "pong"}
    send_parcels(deployment, ["before"])
    assert "ok" in ask(deployment, worker, "add_consumer", queue=added)
    wait_delivered(deployment, ["before"])
    wait_delivered(deployment, send_parcels(deployment, ["after"]))
    cancel(deployment, worker, added)
    left = send_parcels(deployment, named("left", 5))
    send_all(deployment, ADD, [("last", 1)])
    wait_until(lambda: deployment.state("counter", "last"), deployment.describe)
    assert deployment.queued(added) == len(left)
    assert worker.stop() == 0
    deployment.start("prefork", 1, queue=added)
    wait_delivered(deployment, left)


def cancel(deployment: Deployment, worker: Worker, queue: str) -> None:
    """Have a worker consume no longer from a queue; it answers first, and does so then."""
    assert "ok" in ask(deployment, worker, "cancel_consumer", queue=queue)

    def is_cancelled() -> bool:
        return queue not in [active["name"] for active in ask(deployment, worker, "active_queues")]

    wait_until(is_cancelled, worker.describe)


@no_gevent
def test_many_greenlets_acknowledge_at_once(deploy: Deploy) -> None:
    """Though there are fewer connections."""
    deployment = deploy_parcels(deploy)
    worker = deployment.start("gevent", GREENLETS).wait_ready()
    names = send_parcels(deployment, named("held", GREENLETS), HOLD)
    wait_until(lambda: len(deployment.noted("held")) == GREENLETS, deployment.describe)
    (deployment.folder / "go").touch()
    wait_delivered(deployment, names)
    wait_delivered(deployment, send_parcels(deployment, named("later", GREENLETS)))
    assert "Couldn't ack" not in worker.log


def ask(deployment: Deployment, worker: Worker, command: str, **arguments: str) -> Any:
    """Send a command of the remote control to a worker, and return its answer."""
    name = f"{worker.name}@localhost"
    options: dict[str, Any] = {"destination": [name], "reply": True, "timeout": DEADLINE_S, "limit": 1}
    ((answer,),) = (each.values() for each in deployment.client.control.broadcast(command, arguments=arguments, **options))
    return answer


def test_queue_that_is_cancelled_gets_back_what_was_taken_with_the_first_of_its_messages(deploy: Deploy) -> None:
    """Its other messages were taken at the same time, and wait to be handed to the pool."""
    deployment = deploy_parcels(deploy, worker_enable_remote_control=True, worker_prefetch_multiplier=20)
    worker = deployment.start("prefork", 1, CELERY_SAGAS_TEST_HANDING_OVER_S="0.2").wait_ready()
    control = deployment.client.control
    wait_until(lambda: control.ping([f"{worker.name}@localhost"], timeout=1.0), worker.describe)
    names = send_parcels(deployment, named("parcel", 20))
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    cancel(deployment, worker, deployment.name)
    wait_until(lambda: deployment.unacknowledged() == 0, deployment.describe)
    handed_over = len(deployment.noted("handed_over"))
    assert deployment.queued() == len(names) - handed_over > 0
    assert delivered(deployment) == names[:handed_over]
    deployment.start("prefork", 1)
    wait_delivered(deployment, names)
    assert delivered(deployment) == names


@pytest.mark.parametrize("pool", POOLS)
def test_worker_that_is_shut_down_gives_back_what_it_has_not_run(deploy: Deploy, pool: str) -> None:
    """Which is more than it takes before it sees the signal: without an event loop Celery receives once more after that."""
    deployment = deploy_parcels(deploy, worker_prefetch_multiplier=20)
    names = send_parcels(deployment, named("held", 200), HOLD)
    processes = 1 if pool == "solo" else 2
    worker = deployment.start(pool, processes).wait_ready()
    wait_until(lambda: len(deployment.noted("held")) == processes, deployment.describe)
    os.kill(worker.pid, signal.SIGTERM)
    (deployment.folder / "go").touch()
    assert worker.wait_ended() == 0
    assert "Traceback" not in worker.log
    assert deployment.unacknowledged() == 0
    assert deployment.queued() == len(names) - len(delivered(deployment)) > 0
    deployment.start("prefork", 2)
    wait_delivered(deployment, names)
    assert sorted(delivered(deployment)) == sorted(names)
