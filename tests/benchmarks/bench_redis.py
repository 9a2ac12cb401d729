"""What Redis holds and does beside a thousand live instances and beside a million, and with one hot instance."""

import statistics
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from celery import Celery

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.stores.instances import place
from celery_sagas.stores.operations import Insert
from celery_sagas.stores.records import KEY, Lookup, NewRecord, Record
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import key_path, pack_new
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.samples import effects, new_record
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests import redis_servers, servers
from tests.benchmarks.bench_instances import BLOCK, BLOCKS, BUSY, FEW, MANY, Steps, crowd, microseconds
from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import middle, ratio
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, increments, send_all, sums, values

#: Instances that one command writes.
_AT_ONCE = 1_000
#: Instances that are listed by look-up fields.
INDEXED = 100_000
#: Members of the index of which one is measured: a table of Redis has between one place and two for each.
MEMBERS = 1_000_000
#: Messages to one instance, and to a hundred.
HOT, COUNTERS = 2_000, 100
_ROUNDS = 3


def test_a_step_beside_a_million_instances(report: Report) -> None:
    with ExitStack() as stack:
        (few, _), (many, server) = [stack.enter_context(_crowd(size)) for size in (FEW, MANY)]
        for steps in (few, many):
            steps.run(BUSY)  # every instance has been touched
        with server.client() as client:
            client.config_set("slowlog-log-slower-than", 0)
            client.slowlog_reset()
            client.config_set("slowlog-max-len", 1_000_000)
        for _ in range(BLOCKS):
            few.run(BLOCK)
            many.run(BLOCK)
        ratio = statistics.median(many.blocks[1:]) / statistics.median(few.blocks[1:])
        report(
            f"step beside {MANY} instances against {FEW}, redis",
            f"{ratio:.2f}  ({microseconds(many)} against {microseconds(few)} µs)",
            "0.90 to 1.10",
            0.9 <= ratio <= 1.1,
        )
        with server.client() as client:
            longest = max(call["duration"] for call in client.slowlog_get(-1) if call["command"].startswith(b"EVALSHA"))
        report(f"longest script beside {MANY} instances, redis", f"{longest / 1000:.2f} ms", "< 5 ms", longest < 5_000)


def test_memory_of_an_instance(report: Report) -> None:
    with redis_servers.running() as server, server.client() as client:
        app, record = _one_instance(server.url)
        before = client.info("memory")["used_memory"]
        own = _copy(client, record, MANY)
        used = (client.info("memory")["used_memory"] - before) / MANY
        report(
            "bytes of an instance beside its state's own, redis",
            f"{used - own:.0f} (and {own:.0f} of state)",
            "<= 700",
            used - own <= 700,
        )
        close_runtime(app)


def test_memory_of_an_index(report: Report) -> None:
    """The order of pages, and the first and the second look-up field of an instance, which holds a list of them besides."""
    tags = ("status", "paid"), ("region", "north")
    (none, _), (one, _), (both, _) = (_bytes_with(tags[:count], INDEXED) for count in range(3))
    _, member = _bytes_with(tags, MEMBERS // 3)
    report(f"bytes of an instance in one index, one of {MEMBERS:,}, redis", f"{member:.0f}", "<= 130", member <= 130)
    report("bytes of the first and the second look-up field, redis", f"{one - none:.0f}, {both - one:.0f}")


def _bytes_with(tags: tuple[tuple[str, str], ...], instances: int) -> tuple[float, float]:
    """Return what an instance with these takes in all, and what a member of its indexes does."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_servers.running())
        client = stack.enter_context(server.client())
        backend = stack.enter_context(closing(open_backend(server.url, prefix="", options={})))
        backend.prepare(create_schema=True, processes=1)

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        before = used()
        for start in range(0, instances, _AT_ONCE):
            names = map(str, range(start, min(start + _AT_ONCE, instances)))
            new = [new_record(name, names=("order",), tags=tags, id=time_ordered_id()) for name in names]
            assert backend.many([Insert(each, effects(each)) for each in new]) == [None] * len(new)
        filled, listed = used(), Shard("", 0, "").listed("order")
        members = client.zcard(listed)
        assert members == (1 + len(tags)) * instances
        client.delete(listed)  # what this frees is what the allocator gave for it
        return (filled - before) / instances, (filled - used()) / members


def test_memory_of_a_message(report: Report) -> None:
    with redis_servers.running() as server, server.client() as client:
        app, _ = _one_instance(server.url)
        steps = Steps(app, BUSY)
        steps.run(BUSY)
        before = client.info("memory")["used_memory"]
        for _ in range(20):
            steps.run(BUSY)
        used = (client.info("memory")["used_memory"] - before) / (20 * BUSY)
        report("bytes of a handled message in the journal, redis", f"{used:.0f}")
        close_runtime(app)


def test_one_hot_instance(deploy: Deploy, report: Report) -> None:
    """Eight processes; the same messages to a hundred instances are what it is compared with."""
    hot, cold = [], []
    for _ in range(_ROUNDS):
        cold.append(_rate(deploy, COUNTERS))
        hot.append(_rate(deploy, 1))
    reached = ratio(hot, cold)
    report(
        f"one instance against {COUNTERS}, 8 processes, {HOT} messages, redis",
        f"{reached:.2f}  ({middle(hot)} of {middle(cold)} /s)",
        ">= 0.33, none failed",
        reached >= 1 / 3,
    )


def _rate(deploy: Deploy, counters: int) -> float:
    deployment = deploy("timed_counters", "redis", "redis")
    deployment.paths = [str(APPS)]
    wanted = increments(HOT, counters)
    send_all(deployment, ADD, wanted)
    worker = deployment.start("prefork", 8, level="WARNING").wait_ready()
    deployment.wait_handled(ADD, HOT, deadline_s=300)
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.failures() == []
    assert worker.stop() == 0
    done = [line.split() for line in deployment.noted("completed")]
    return HOT / (max(float(last) for _, last, _ in done) - min(float(began) for began, _, _ in done))


@contextmanager
def _crowd(size: int) -> Iterator[tuple[Steps, redis_servers.RedisServer]]:
    """Fill a server of its own with copies of a real instance."""
    with redis_servers.running() as server, server.client() as client:
        app, record = _one_instance(server.url)
        _copy(client, record, size)
        yield Steps(app, size), server
        close_runtime(app)


def _one_instance(url: str) -> tuple[Celery, Record]:
    app = Celery(servers.unique("app"), broker="memory://", set_as_current=True)
    app.conf.saga_backend = url
    backend = runtime_of(app).backend
    backend.prepare(create_schema=True, processes=1)
    crowd(name="instance")
    record = backend.sagas.find(Lookup(("crowded",), KEY, "instance", has_alternate_keys=False)).record
    assert record is not None
    return app, record


def _copy(client: Any, record: Record, count: int) -> float:
    """Write copies under other keys; return the bytes of state that one has."""
    shard, time, own = Shard("", 0, ""), b"%d" % record.created_at, 0
    for start in range(0, count, _AT_ONCE):
        records, keys = {}, {}
        for number in range(start, start + _AT_ONCE):
            name, id = f"instance {number}", str(uuid.uuid4())
            data = record.data.replace('"instance"', f'"{name}"')
            head, tail = pack_new(NewRecord(id, (record.saga,), name, record.schema_version, data, record.pending, ()))
            records[id], keys[key_path(name)] = head + time + b" " + time + tail, id
            own += len(data)
        client.hset(shard.instances(record.saga), mapping=records)
        client.hset(shard.keys(record.saga), mapping=keys)
        client.zadd(shard.listed(record.saga), {place(record.updated_at, id).replace(":", ""): 0 for id in records})
    return own / count
