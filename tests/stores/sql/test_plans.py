"""Plans of PostgreSQL that are made while the tables are empty, and kept: they must not read what is added later."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_sagas.stores.records import Change, Effects, Record
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.statements import Build, Shape
from celery_sagas.stores.sql.outbox import _delete_rows, _keep_rows, _read_rows
from celery_sagas.stores.sql.sagas import postgresql
from celery_sagas.stores.sql.sagas.updates import update_each
from celery_sagas.testing.samples import entry, new_id, outgoing
from tests import servers

RECORD = Record(new_id(), "order", "42", 1, 1, "{}", "{}", 1, 1)
EFFECTS = Effects(entry(RECORD), (outgoing(),), "process", 1)
CHANGE = Change(("order",), 1, "{}", "{}", cancelled=(new_id(),))
[END], [UPDATE] = postgresql.delete(RECORD, EFFECTS), postgresql.update(RECORD, CHANGE, EFFECTS)
#: Reads a whole table, or all that has a prefix.
WHOLE = re.compile(r"Seq Scan on saga_\w+|Index Cond: \(prefix = [^()]*(?:\([^()]*\)[^()]*)*\)\s*$", re.MULTILINE)


@pytest.fixture(scope="module")
def sql() -> Iterator[SqlBackend]:
    """A backend with empty tables."""
    with servers.database("postgresql") as url, closing(SqlBackend(url, prefix="shop")) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


def plan(sql: SqlBackend, build: Build, shape: Shape) -> str:
    """Return the plan of a statement for whatever its parameters are."""
    numbers: dict[str, int] = {}
    text = sql.database.statement(build, shape).text
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", text)
    opened = sql.database.connections.open()
    try:
        opened.cursor.execute("SET plan_cache_mode = force_generic_plan")
        opened.cursor.execute(f"PREPARE planned AS {numbered}".replace("%%", "%"))
        opened.cursor.execute(f"EXPLAIN EXECUTE planned({', '.join(['NULL'] * len(numbers))})")
        return "\n".join(line for (line,) in opened.cursor.fetchall())
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        pytest.param(END.build, END.shape, id="end"),
        pytest.param(UPDATE.build, UPDATE.shape, id="update"),
        pytest.param(update_each, (True, True), id="updates"),
        pytest.param(_delete_rows, (0, "postgresql"), id="confirm"),
        pytest.param(_keep_rows, (0, "postgresql"), id="keep"),
        pytest.param(_read_rows, (0,), id="read"),
    ],
)
def test_it_is_found_by_an_index(sql: SqlBackend, build: Any, shape: Shape) -> None:
    found = plan(sql, build, shape)
    assert WHOLE.search(found) is None, found
