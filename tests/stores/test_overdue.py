"""Rows that no relay has taken, behind more rows than one call looks at."""

import pytest
from celery import Celery

from celery_sagas.stores.redis import outbox as redis
from celery_sagas.stores.sql import overdue as sql
from celery_sagas.testing.contract.keeping import overdue
from celery_sagas.testing.samples import HOUR, MINUTE, claim, ids, outgoing, start
from tests.apps import backend_of, definitions, new_app
from tests.every_store import stored_app, url

__all__ = ["definitions", "new_app", "stored_app", "url"]


def test_look_goes_on_where_the_one_before_has_stopped(stored_app: Celery, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay has left the old ones to others for a while; those that are due meanwhile stand before them."""
    for store in (redis, sql):
        monkeypatch.setattr(store, "LOOKED_AT", 3)
    backend = backend_of(stored_app)
    for key in ("1", "2", "3"):
        start(backend, key, *(outgoing("scheduled", due_at=1) for _ in range(3)))
    old = ids(claim(backend))
    backend.outbox.release("relay", old, MINUTE // 2)
    now = backend.outbox.time()
    for key in ("4", "5", "6"):
        start(backend, key, *(outgoing("scheduled", due_at=now - 1) for _ in range(4)))

    first = backend.outbox.overdue(now - HOUR, 9)
    assert url.startswith("memory:") or (first.rows == [] and first.after)
    for limit in (1, 4, 9):
        assert overdue(backend, now - HOUR, limit) == [
            row.id for row in sorted(backend.outbox.read(old), key=lambda row: row.due_place)
        ]
