"""Inserts of many rows at once, in their order."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Insert, Table, bindparam, func, select
from sqlalchemy import column as named
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias

from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, Build, Shape, Values, bound
from celery_sagas.stores.sql.tables import metadata

#: What can become an insert that changes the rows that are there.
NewRows: TypeAlias = mysql.Insert | postgresql.Insert | sqlite.Insert

_INSERT: Mapping[str, Callable[[Table], NewRows]] = {
    "mysql": mysql.insert,
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


def insert_rows(session: SqlSession, table: Table, rows: Sequence[Values], common: Values = MappingProxyType({})) -> None:
    """Insert rows, all of which have the same columns, beside those that have the same values in all."""
    _run(session, _insert, table, rows, common)


def put_rows(session: SqlSession, table: Table, rows: Sequence[Values]) -> None:
    """Insert rows, or change those that are there under their primary keys; lock them in their order."""
    _run(session, _put, table, rows)


def lock_rows(session: SqlSession, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows that are missing, and lock all, in their order."""
    _run(session, _lock, table, rows)


def _run(session: SqlSession, build: Build, table: Table, rows: Sequence[Values], common: Values = MappingProxyType({})) -> None:
    if not rows:
        return
    is_one = len(rows) == 1 or session.database != "postgresql"
    shape: Shape = (table.name, session.database, is_one, ",".join(common), *rows[0])
    if session.database == "postgresql":
        session.change(build, shape, parameters(table, rows, common))
    else:
        session.change_each(build, shape, [{**common, **row} for row in rows])


def parameters(table: Table, rows: Sequence[Values], common: Values = MappingProxyType({})) -> Values:
    """Return the parameters of ``insert_given``: those of a single row are no arrays, which take the driver much longer."""
    own = rows[0] if len(rows) == 1 else {name: [row[name] for row in rows] for name in rows[0]}
    return {f"new_{table.name}_{name}": value for name, value in {**common, **own}.items()}


def insert_given(
    table: Table, names: Sequence[str], common: Sequence[str], *where: ColumnElement[bool], is_one: bool
) -> postgresql.Insert:
    """Insert one row, or any number, if the conditions hold, on PostgreSQL."""
    new = f"new_{table.name}"
    alike = [bound(table.c[each], f"{new}_{each}") for each in common]
    if is_one:
        values = select(PREFIX, *alike, *(bound(table.c[each], f"{new}_{each}") for each in names))
    else:
        values = select(PREFIX, *alike, *rows_of(new, *(table.c[each] for each in names)).c)
    return postgresql.insert(table).from_select(["prefix", *common, *names], values.where(*where))


def _insert(name: str, database: str, is_one: bool, common: str, *names: str) -> NewRows:
    table = metadata.tables[name]
    in_all = common.split(",") if common else []
    if database == "postgresql":
        return insert_given(table, names, in_all, is_one=is_one)
    values = {"prefix": PREFIX, **{each: bound(table.c[each], each) for each in (*in_all, *names)}}
    return insert_into(table, database).values(values)


def _put(name: str, database: str, is_one: bool, common: str, *names: str) -> Insert:
    return or_change(_insert(name, database, is_one, common, *names), *names)


def _lock(name: str, database: str, is_one: bool, common: str, *names: str) -> Insert:
    """Insert rows; one that exists is set to its own value, which locks it on every database."""
    (first, *_) = metadata.tables[name].primary_key
    return or_change(_insert(name, database, is_one, common, *names), first.name)


def insert_into(table: Table, database: str) -> NewRows:
    """Begin an insert."""
    return _INSERT[database](table)


def or_change(rows: NewRows, *names: str, **values: ColumnElement[Any]) -> NewRows:
    """Have an insert change the rows that are there: these columns to what would be inserted, and others to these values."""
    new = rows.inserted if isinstance(rows, mysql.Insert) else rows.excluded
    changes = {**{name: new[name] for name in names}, **values}
    if isinstance(rows, mysql.Insert):
        return rows.on_duplicate_key_update(changes)
    return rows.on_conflict_do_update(index_elements=rows.table.primary_key, set_=changes)


def insert_missing(table: Table, database: str, values: Mapping[str, ColumnElement[Any]]) -> Insert:
    """Insert a row unless it is there. MySQL's ``IGNORE`` also inserts a row that does not fit, cut."""
    rows = insert_into(table, database).values(values)
    return rows.prefix_with("IGNORE") if isinstance(rows, mysql.Insert) else rows.on_conflict_do_nothing()


def rows_of(name: str, *columns: ColumnElement[Any]) -> TableValuedAlias:
    """Return a table made of arrays: one parameter for each column, named for both."""
    arrays = [bindparam(f"{name}_{column.key}", type_=ARRAY(column.type)) for column in columns]
    return func.unnest(*arrays).table_valued(*(named(str(column.key), column.type) for column in columns)).render_derived(name)
