"""A relay over each store, on a clock of the test: what it sends, leaves, tries again, dead-letters and removes."""

from pathlib import Path
from uuid import uuid4

import pytest

from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.errors import PublishError
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Recorder
from tests.integration.conftest import ENGINES

RETENTION_S = 100.0
TERMS = Terms(interval_s=1.0, lease_s=60.0, max_attempts=2, retention_s=RETENTION_S)


class Refusing(Recorder):
    """A publisher that no message of this id passes."""

    def publish(self, message: object) -> None:
        """Keep a message."""
        if getattr(message, "message_id", "") == "bad":
            raise PublishError("it holds \0", False)
        super().publish(message)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_relay_over_each_store(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    url = f"sqlite:///{tmp_path}/sagas.sqlite3" if engine == "sqlite" else str(request.getfixturevalue(f"{engine}_url"))
    clock = Clock()
    backend = open_backend(url, prefix=uuid4().hex, options={}, clock=clock)
    backend.prepare(create_schema=True, processes=2)
    rows = (
        Outgoing("row-1", "sent", "good", "charge", "{}"),
        Outgoing("row-2", "sent", "bad", "charge", "{}"),
        Outgoing("row-3", "scheduled", "unknown", "order.renamed", "{}", clock.now),
        Outgoing("row-4", "scheduled", "due later", "order.nudge", "{}", clock.now + 5_000),
    )
    backend.sagas.record(Effects(Entry("order.place", "m1", "a", "started", "order", "42", "i", 1, "{}"), rows, "dead", 1_000))
    backend.deliveries.count("order.place", "m1")
    publisher = Refusing()
    relay = Relay(
        backend,
        publisher,
        {"order.nudge"}.__contains__,
        TERMS,
        clock=lambda: clock.now / 1000,
        wall_clock=lambda: clock.now / 1000,
    )
    sweeps = []
    for seconds in (1, 2, 2, 100):
        clock.advance(seconds * 1000)
        sweeps.append(relay.sweep())

    assert publisher.ids == ["good", "due later"]
    assert [(sweep.sent, sweep.failed, sweep.dead_lettered, sweep.purged) for sweep in sweeps] == [
        (1, 1, 0, 0),
        (0, 0, 1, 0),
        (1, 0, 0, 0),
        (0, 0, 0, 2),
    ]
    assert all(sweep.unknown == {"order.renamed": 1} for sweep in sweeps)
    assert [(dead_letter.message_id, dead_letter.text) for dead_letter in backend.dead.list(10)] == [("bad", "it holds \\0")]
    assert backend.outbox.count() == 1
    assert not any(sweep.error for sweep in sweeps)
    backend.close()
