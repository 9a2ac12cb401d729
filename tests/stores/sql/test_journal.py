"""The instances that began lately are found by the journal's index of times."""

import pytest
from sqlalchemy import Integer

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.bulk import insert_rows
from celery_sagas.stores.sql.journal import _began
from celery_sagas.stores.sql.tables import journal
from tests.stores.sql.watching import explained

#: So many that it is worth it to take a few of them through the index.
ENTRIES = 3_000


@pytest.mark.parametrize("url", ["postgresql", "mariadb", "sqlite"], indirect=True)
def test_the_rest_of_the_journal_is_not_read(sql: SqlBackend) -> None:
    columns = [column for column in journal.c if column.name != "prefix"]
    numbers = range(1, ENTRIES + 1)
    rows = [{each.name: n if isinstance(each.type, Integer) else f"{each.name} {n}" for each in columns} for n in numbers]
    sql.database.run(lambda session: insert_rows(session, journal, rows))
    if sql.database.name == "mysql":
        with sql.database.connect() as connection:  # MariaDB's own statistics of a new table come when they come
            connection.exec_driver_sql("ANALYZE TABLE saga_journal").close()
    statement = sql.database.statement(_began, (1,))
    values = statement.bind({"within": 1_000, "limit": 10, "saga_0": "order"})
    plan = explained(sql, statement.text, values, in_transaction=False).lower()
    assert "saga_journal_at" in plan
