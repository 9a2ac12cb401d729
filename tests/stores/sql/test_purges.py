"""A purge costs what it removes, however much is old."""

import pytest
from sqlalchemy import Column, Integer

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.purges import _purge
from celery_sagas.stores.sql.tables import metadata
from tests.stores.sql.watching import explained

#: So many that it is worth it to take a few of them through the index.
ENTRIES = 3_000


@pytest.mark.parametrize("url", ["postgresql", "mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("table", "time", "index"),
    [
        ("saga_journal", "at", "saga_journal_at"),
        ("saga_audit", "at", "saga_audit_at"),
        ("saga_delivery", "at", "saga_delivery_at"),
        ("saga_seen", "ends_at", "saga_seen_ends"),
    ],
)
def test_nothing_is_sorted(sql: SqlBackend, table: str, time: str, index: str) -> None:
    columns = [column for column in metadata.tables[table].c if column.name != "prefix"]
    rows = [{column.name: _value(column, number) for column in columns} for number in range(1, ENTRIES + 1)]
    sql.database.run(lambda session: insert_rows(session, metadata.tables[table], rows))
    if sql.database.name == "mysql":
        with sql.database.connect() as connection:  # MariaDB's own statistics of a new table come when they come
            connection.exec_driver_sql(f"ANALYZE TABLE {table}").close()
    statement = sql.database.statement(_purge, (table, time, sql.database.name))
    plan = explained(sql, statement.text, statement.bind({"before": 10**14, "limit": 10}), in_transaction=False).lower()
    assert index in plan
    for word in ("sort", "temp b-tree"):
        assert word not in plan


def _value(column: Column[object], number: int) -> object:
    return number if isinstance(column.type, Integer) else f"{column.name} {number}"
