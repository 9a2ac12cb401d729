"""A relay over a Redis that has no memory left, on a clock of the test."""

import json
from contextlib import closing
from typing import Any

from celery import Celery

from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.publisher import ConfirmedPublisher
from tests import redis_servers

TERMS = Terms(interval_s=1.0, lease_s=60.0, max_attempts=3, retention_s=3600.0)


def test_a_broker_that_is_full_counts_against_no_row_and_a_key_of_another_type_does() -> None:
    """Redis answers both with an error; whether it takes others tells which."""
    clock, queue = Clock(), "full"
    with redis_servers.running() as server, server.client() as client:
        app = Celery(broker=server.url, set_as_current=False)
        app.conf.task_default_queue = queue
        backend = MemoryBackend("memory://", prefix="", clock=clock)

        def add(*names: str, **options: Any) -> None:
            payloads = {name: json.dumps(dict(app.signature("plain").set(task_id=name, **options))) for name in names}
            rows = tuple(Outgoing(name, "sent", name, "plain", payload) for name, payload in payloads.items())
            entry = Entry("order.place", f"cause of {names}", "a", "started", "order", "42", "i", 1, "{}")
            backend.sagas.record(Effects(entry, rows))

        def now() -> float:
            return clock.now / 1000

        def sweep_for(seconds: int) -> None:
            for _ in range(seconds):
                relay.sweep()
                clock.advance(1_000)

        with closing(ConfirmedPublisher(app)) as publisher:
            relay = Relay(backend, publisher, lambda _: True, TERMS, clock=now, wall_clock=now)
            client.set("mistyped", "no list")
            add("bad", queue="mistyped")
            add("good")
            sweep_for(1)
            assert relay.tally.failed == 1
            client.config_set("maxmemory", "1")
            add("a", "b")

            sweep_for(1_200)

            assert (relay.tally.failed, relay.tally.dead) == (1, 0)
            assert "OutOfMemoryError" in relay.tally.last_error
            client.config_set("maxmemory", "0")
            sweep_for(1_200)
            assert [letter.message_id for letter in backend.dead.list(10)] == ["bad"]
            assert (client.llen(queue), backend.outbox.count()) == (3, 0)
