"""A relay over a Redis that has no memory left, on a clock of the test."""

from collections import Counter
from contextlib import closing

from celery import Celery

from tests import redis_servers
from tests.integration.sweeping import Deployment


def test_a_broker_that_is_full_counts_against_no_row_and_a_key_of_another_type_does() -> None:
    """Redis answers both with an error; whether it takes others tells which."""
    with redis_servers.running() as server, server.client() as client:
        app = Celery(broker=server.url, set_as_current=False)
        with closing(Deployment(app)) as deployment:
            client.set("mistyped", "no list")
            deployment.add("bad", queue="mistyped")
            deployment.add("good")
            deployment.sweep_for(1)
            tally = deployment.relay.tally
            assert tally.failed == 1
            client.config_set("maxmemory", "1")
            deployment.add("a", "b")

            deployment.sweep_for(1_200)

            assert (tally.failed, tally.dead_lettered) == (1, 0)
            assert "OutOfMemoryError" in tally.last_error
            client.config_set("maxmemory", "0")
            deployment.sweep_for(1_200)
            assert [dead_letter.message_id for dead_letter in deployment.backend.dead.list(10)] == ["bad"]
            assert deployment.arrived() == Counter(["good", "a", "b"])
            assert deployment.backend.outbox.count() == 0
