"""What only a Redis server does: it forgets its scripts, runs out of memory, is killed and starts again, or is no fit place."""

import re
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from celery_sagas.core.ids import derived_id
from tests import redis_servers
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, ADD_AND_TELL, TOLD, assert_conserved, increments, send_all, sums, values
from tests.integration.ledgers import SOON
from tests.integration.worker import Deployment
from tests.redis_servers import RedisServer
from tests.waiting import wait_until

REDELIVERIES = "is redelivered in"
MASTER = "sagas"

#: What was sent: message id → counter and amount.
Sent = dict[str, tuple[str, int]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of our own, which keeps everything that it has answered to."""
    with redis_servers.running(appendonly="yes", appendfsync="always") as server:
        yield server


def test_nothing_is_lost_or_doubled_when_redis_is_killed(deploy: Deploy, server: RedisServer) -> None:
    deployment = deploy("counters", "redis", server.url)
    worker = deployment.start("prefork", 4).wait_ready()
    wanted = increments(600, counters=20)
    send_all(deployment, ADD_AND_TELL, wanted)
    for count in (100, 200, 300, 400):
        deployment.wait_handled(ADD_AND_TELL, count)
        server.kill()
        if count == 100:
            worker.wait_logged(REDELIVERIES)
        server.start()
    assert_conserved(deployment, wanted)


def test_messages_are_redelivered_later_while_memory_lacks(deploy: Deploy, server: RedisServer) -> None:
    """It runs out in the middle of traffic; no commit is half-written."""
    deployment = deploy("counters", "redis", server.url)
    worker = deployment.start("prefork", 4).wait_ready()
    wanted = increments(400, counters=400)
    send_all(deployment, ADD_AND_TELL, wanted[:100])
    deployment.wait_handled(ADD_AND_TELL, 100)
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        send_all(deployment, ADD_AND_TELL, wanted[100:])
        worker.wait_logged("used memory > 'maxmemory'")
        client.config_set("maxmemory", 1)
        _assert_whole(deployment, wanted)
        client.config_set("maxmemory", 0)
    assert_conserved(deployment, wanted)


def _assert_whole(deployment: Deployment, wanted: list[tuple[str, int]]) -> None:
    """Assert that there is an entry for each instance, and an instance for each entry, while some are missing."""
    there = values(deployment, "counter", sums(wanted))
    assert there.items() <= sums(wanted).items()
    assert {name for name, _ in wanted if deployment.history("counter", name)} == set(there)
    assert 100 <= len(there) < len(wanted)


def test_one_hot_instance_serves_eight_processes(deploy: Deploy, server: RedisServer) -> None:
    """The server forgets the scripts meanwhile, again and again."""
    deployment = deploy("counters", "redis", server.url)
    wanted = increments(400, counters=1)
    workers = [deployment.start("prefork", 4, level="WARNING") for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    send_all(deployment, ADD, wanted)
    with server.client() as client:
        for count in range(50, 400, 50):
            deployment.wait_handled(ADD, count)
            client.script_flush()
    deployment.wait_handled(ADD, len(wanted))
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.handled(ADD) == len(wanted)
    assert deployment.failures() == []


def test_a_cluster_shares_the_instances_out(deploy: Deploy, redis_cluster_url: str) -> None:
    """What a step sends is in the shard of its instance, and leads into another's."""
    deployment = deploy("counters", "redis", "redis_cluster")
    deployment.start("prefork", 4).wait_ready()
    wanted = increments(300, counters=60)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    for port in map(int, re.findall(r":(\d+)", redis_cluster_url)):
        with redis.Redis(host=redis_servers.HOST, port=port) as node:
            assert next(node.scan_iter(match=f"*{deployment.name}*:instances:counter", count=1_000), None)


def test_workers_do_not_start_on_a_server_that_cannot_keep_the_promise(deploy: Deploy, server: RedisServer) -> None:
    with (
        redis_servers.running(requirepass="s3cret") as locked,
        redis_servers.running(maxmemory="100mb", maxmemory_policy="allkeys-lru") as evicting,
        redis_servers.running(replicaof=f"{redis_servers.HOST} {server.port}") as replica,
    ):
        wrong = {
            locked.url.replace("s3cret", "wr0ng"): "password",
            evicting.url: "allkeys-lru",
            replica.url: "replica",
            server.url.replace("/0", "/99"): "99",
        }
        deployments = [deploy("counters", "redis", url) for url in wrong]
        workers = []
        for deployment in deployments:
            deployment.send(ADD, name="a", amount=1)
            workers.append(deployment.start("prefork", 2))
        for deployment, worker, reason in zip(deployments, workers, wrong.values(), strict=True):
            assert worker.wait_ended() != 0, reason
            assert reason in worker.log.rstrip().splitlines()[-1], worker.log
            assert not worker.is_ready
            assert "wr0ng" not in worker.output + worker.log
            assert deployment.queued() == 1


def test_workers_do_not_start_if_what_aggregators_buffer_may_be_thrown_away(deploy: Deploy, server: RedisServer) -> None:
    """The sagas themselves are safe."""
    with redis_servers.running(maxmemory="100mb", maxmemory_policy="allkeys-lru") as evicting:
        deployment = deploy("batches", "redis", server.url, saga_aggregator_backend=evicting.url)
        deployment.send("batches.collect", group="a", number=1)
        worker = deployment.start("prefork", 2)
        assert worker.wait_ended() != 0
    assert "allkeys-lru" in worker.log.rstrip().splitlines()[-1], worker.log
    assert not worker.is_ready
    assert deployment.queued() == 1


@pytest.mark.timeout(600)
def test_a_fail_over_loses_nothing_that_a_replica_must_confirm(deploy: Deploy) -> None:
    """A commit that the new master lacks was not answered: its message is handled again, there."""
    with redis_servers.watched(MASTER) as (first, second, sentinel):
        url = f"sentinel://{redis_servers.HOST}:{sentinel.port}/0?master_name={MASTER}&wait_replicas=1"
        deployment = deploy("counters", "redis", url)
        deployment.start("prefork", 4).wait_ready()
        wanted = increments(300, counters=20)
        send_all(deployment, ADD_AND_TELL, wanted[:-20])
        deployment.wait_handled(ADD_AND_TELL, 100)
        _cut_off(second, first)
        before = _committed(deployment)
        send_all(deployment, ADD_AND_TELL, wanted[-20:])
        wait_until(lambda: _committed(deployment) > before, "a commit that the replica lacks")
        first.kill()
        with sentinel.client() as client:
            found = partial(client.sentinel_get_master_addr_by_name, MASTER)
            wait_until(lambda: found()[1] == second.port, lambda: sentinel.log, redis_servers.FAIL_OVER_S)
        with second.client() as client:
            client.config_set("masterauth", "")  # it may become a replica again
        first.start()
        with first.client() as client:
            client.replicaof(redis_servers.HOST, second.port)
        assert_conserved(deployment, wanted)


@pytest.mark.timeout(600)
def test_a_fail_over_that_loses_commits_leaves_the_rest_consistent(deploy: Deploy) -> None:
    """Without ``wait_replicas``: whole commits are missing, and what workers do goes on from those that are there."""
    with redis_servers.watched(MASTER) as (first, second, sentinel):
        url = f"sentinel://{redis_servers.HOST}:{sentinel.port}/0?master_name={MASTER}"
        deployment = deploy("counters", "rabbitmq", url, **SOON)
        worker = deployment.start("prefork", 4).wait_ready()
        wanted = increments(400, counters=20)
        kept = send_all(deployment, ADD_AND_TELL, wanted[:100])
        assert_conserved(deployment, wanted[:100])
        with first.client() as client:
            assert client.wait(1, 0) == 1  # the replica has everything
        _cut_off(second, first)
        lost = send_all(deployment, ADD_AND_TELL, wanted[100:200])
        assert_conserved(deployment, wanted[:200])
        midway = send_all(deployment, ADD_AND_TELL, wanted[200:300])
        deployment.wait_handled(ADD_AND_TELL, 210)
        first.kill()
        later = send_all(deployment, ADD_AND_TELL, wanted[300:])
        redis_servers.promote(second, sentinel, MASTER)

        sent = dict(zip([*kept, *lost, *midway, *later], wanted, strict=True))
        wait_until(lambda: _is_over(deployment, sent, later), deployment.describe, redis_servers.FAIL_OVER_S)
        assert worker.stop() == 0
        _assert_each_is_its_journal(deployment, sent)
        handled = set(_handled(deployment, "counter", _names(sent)))
        assert handled >= {*kept, *later}
        assert handled.isdisjoint(lost)
        assert deployment.failures() == []
        assert deployment.backend.dead.count() == 0


def _is_over(deployment: Deployment, sent: Sent, later: list[str]) -> bool:
    """Whether what was sent after the crash is handled, and the tallies know of all that the counters have handled."""
    counted, told = (_handled(deployment, saga, _names(sent)) for saga in ("counter", "tally"))
    return set(later) <= set(counted) and {_told_by(id) for id in counted} <= set(told) and deployment.queued() == 0


def _assert_each_is_its_journal(deployment: Deployment, sent: Sent) -> None:
    """Assert that the value of each instance is the sum of the messages that its journal has, each of them once."""
    amounts = {id: amount for id, (_, amount) in sent.items()}
    for saga, of in (("counter", amounts), ("tally", {_told_by(id): amount for id, amount in amounts.items()})):
        for name in _names(sent):
            ids = _handled(deployment, saga, [name])
            assert len(ids) == len(set(ids))
            assert deployment.state(saga, name) == {"name": name, "value": sum(of[id] for id in ids), "count": len(ids)}


def _names(sent: Sent) -> list[str]:
    return sorted({name for name, _ in sent.values()})


def _handled(deployment: Deployment, saga: str, names: list[str]) -> list[str]:
    """Return the ids of the messages that the journals of instances have."""
    return [entry.message_id for name in names for entry in deployment.history(saga, name)]


def _told_by(message_id: str) -> str:
    """Return the id of what a counter sends that handles this message."""
    return derived_id(message_id, f"{ADD_AND_TELL}/0")


def _cut_off(replica: RedisServer, master: RedisServer) -> None:
    """End the replication, and let it not begin again."""
    with replica.client() as client:
        client.config_set("masterauth", "wrong")
    with master.client() as client:
        assert client.execute_command("CLIENT", "KILL", "TYPE", "replica") == 1


def _committed(deployment: Deployment) -> int:
    return deployment.handled(ADD_AND_TELL) + deployment.handled(TOLD)


def test_nothing_is_published_that_no_replica_has_confirmed(deploy: Deploy, server: RedisServer) -> None:
    """Neither by the run that has committed, nor by a repeat, which finds the commit there."""
    deployment = deploy("counters", "redis", f"{server.url}?wait_replicas=1&wait_timeout=0.5")
    with redis_servers.running(replicaof=f"{redis_servers.HOST} {server.port}") as replica:
        worker = deployment.start("prefork", 1).wait_ready()
        wanted = [("a", 1), ("a", 2)]
        send_all(deployment, ADD_AND_TELL, wanted[:1])
        deployment.wait_handled(TOLD, 1)
        replica.kill()
        message_id, *_ = send_all(deployment, ADD_AND_TELL, wanted[1:])
        worker.wait_logged(REDELIVERIES)
        deployment.wait_handled(ADD_AND_TELL, 2)
        wait_until(lambda: worker.log.count(REDELIVERIES) > 1 or f"[{message_id}] succeeded" in worker.log, worker.describe)
        assert f"[{message_id}] succeeded" not in worker.log
        assert deployment.handled(TOLD) == 1
        replica.start()
        assert_conserved(deployment, wanted)
