"""A claim costs what it takes, beside few rows and beside many."""

import time

import pytest

from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.outbox import _due
from tests.stores.sql.watching import explained


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
@pytest.mark.parametrize("count", [10, 1_000])
def test_nothing_is_sorted(sql: SqlBackend, count: int) -> None:
    """Half of the rows are due."""
    now = time.time_ns() // 1_000_000
    rows = tuple(
        Outgoing(f"row {number}", "scheduled", f"message {number}", "alarm.ring", "{}", now + (-1) ** number * 86_400_000)
        for number in range(count)
    )
    sql.sagas.record(Effects(Entry("alarm.set", "cause", "a", "handled", "alarm", "42", "i", 1, "{}"), rows))
    statement = sql.database.statement(_due, (False, sql.database.names.of("saga_outbox_available")))
    plan = explained(sql, statement.text, statement.bind({"limit": 500})).lower()
    assert "saga_outbox_available" in plan
    assert "sort" not in plan
