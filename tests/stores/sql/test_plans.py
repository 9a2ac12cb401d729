"""Plans of PostgreSQL that are made while the tables are empty, and kept: they must not read what is added later."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Index, PrimaryKeyConstraint, UniqueConstraint

from celery_sagas.stores.records import ID, KEY
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.dialects import DIALECTS
from celery_sagas.stores.sql.connection.statements import Build, Shape
from celery_sagas.stores.sql.outbox import _delete_rows, _hurry_rows, _keep_rows, _read_rows
from celery_sagas.stores.sql.sagas import postgresql
from celery_sagas.stores.sql.sagas.lookups import find_each, find_on_postgresql
from celery_sagas.stores.sql.sagas.updates import update_each
from celery_sagas.stores.sql.tables import metadata
from tests import servers

BOTH = (False, True)
#: How many rows a commit sends, and former names a saga has, as shapes of statements tell them apart.
SENDS, FORMER = (0, 1, 2), (0, 1)
STATEMENTS: dict[Build, Iterable[Shape]] = {
    postgresql._insert: product(FORMER, BOTH, BOTH, SENDS, BOTH),
    postgresql._update: product(FORMER, BOTH, BOTH, BOTH, BOTH, SENDS, BOTH),
    postgresql._delete: product(SENDS, BOTH),
    postgresql._record: product(SENDS, BOTH),
    update_each: product(BOTH, BOTH),
    find_on_postgresql: product((ID, KEY, ""), (1, 2), (0, 1)),
    find_each: product((ID, KEY, "tracking")),
    _delete_rows: [(0, "postgresql")],
    _keep_rows: [(0, "postgresql")],
    _hurry_rows: [(0, "postgresql")],
    _read_rows: [(0,)],
}
#: The first column of each index and primary key.
LEADING = {
    index.name or f"{table.name}_pkey": next(iter(index.columns)).name
    for table in metadata.tables.values()
    for index in (*table.indexes, *table.constraints)
    if isinstance(index, Index | PrimaryKeyConstraint | UniqueConstraint)
}
Node = dict[str, Any]


@pytest.fixture(scope="module")
def sql() -> Iterator[SqlBackend]:
    """A backend with empty tables."""
    with servers.database("postgresql") as url, closing(SqlBackend(url, prefix="shop")) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


def plan(sql: SqlBackend, build: Build, shape: Shape, settings: str) -> Node:
    """Return the plan of a statement for whatever its parameters are."""
    numbers: dict[str, int] = {}
    text = sql.database.statement(build, shape).text
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", text)
    opened = sql.database.connections.open()
    try:
        opened.cursor.execute(f"BEGIN; {settings or 'SELECT 1'}")
        opened.cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        opened.cursor.execute(f"PREPARE planned AS {numbered}".replace("%%", "%"))
        opened.cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned({', '.join(['NULL'] * len(numbers))})")
        [[found]] = opened.cursor.fetchall()
        return found[0]["Plan"]
    finally:
        opened.close()


def nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes of a plan."""
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def reads_what_is_added(node: Node) -> bool:
    """Return whether a node reads a whole table, or an index by something else than its first column."""
    if node["Node Type"] == "Seq Scan":
        return True
    name = node.get("Index Name")
    return name is not None and f"({LEADING[name]} = " not in node.get("Index Cond", "")


@pytest.mark.parametrize(
    ("build", "shape"),
    [pytest.param(build, shape, id=f"{build.__name__}-{shape}") for build, shapes in STATEMENTS.items() for shape in shapes],
)
@pytest.mark.parametrize("settings", ["", DIALECTS["postgresql"].plan], ids=["alone", "in a transaction"])
def test_it_is_found_by_an_index(sql: SqlBackend, build: Build, shape: Shape, settings: str) -> None:
    """Also with the settings of a transaction of several commits."""
    found = plan(sql, build, shape, settings)
    assert not [node for node in nodes(found) if reads_what_is_added(node)], json.dumps(found, indent=1)
