"""Inserts of many rows at once, in their order."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import TypeAlias

from sqlalchemy import Insert, Table, select
from sqlalchemy.dialects import mysql, postgresql, sqlite

from celery_sagas.stores.sql.arrays import rows_of
from celery_sagas.stores.sql.session import Session
from celery_sagas.stores.sql.statements import PREFIX, Build, Values, bound
from celery_sagas.stores.sql.tables import metadata

#: What can become an insert that changes the rows that are there.
NewRows: TypeAlias = mysql.Insert | postgresql.Insert | sqlite.Insert


def insert_rows(session: Session, table: Table, rows: Sequence[Values], common: Values = MappingProxyType({})) -> None:
    """Insert rows, all of which have the same columns, beside those that have the same values in all."""
    if rows:
        _run(session, _insert, (table.name, session.database, ",".join(common), *rows[0]), rows, common)


def put_rows(session: Session, table: Table, rows: Sequence[Values]) -> None:
    """Insert rows, or change those that are there under their primary keys; lock them in their order."""
    if rows:
        _run(session, _put, (table.name, session.database, *rows[0]), rows, {})


def lock_rows(session: Session, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows that are missing, and lock all, in their order."""
    if rows:
        _run(session, _lock, (table.name, session.database, *rows[0]), rows, {})


def _run(session: Session, build: Build, shape: tuple[str, ...], rows: Sequence[Values], common: Values) -> None:
    if session.database == "postgresql":
        arrays = {f"new_{name}": [row[name] for row in rows] for name in rows[0]}
        session.change(build, shape, {**common, **arrays})
    else:
        session.change_each(build, shape, [{**common, **row} for row in rows])


def _insert(name: str, database: str, common: str, *names: str) -> NewRows:
    table = metadata.tables[name]
    given = {"prefix": PREFIX, **{each: bound(table.c[each], each) for each in common.split(",") if each}}
    if database == "postgresql":
        rows = rows_of("new", *(table.c[each] for each in names))
        values = select(*given.values(), *(rows.c[each] for each in names))
        return postgresql.insert(table).from_select([*given, *names], values)
    given |= {each: bound(table.c[each], each) for each in names}
    return mysql.insert(table).values(given) if database == "mysql" else sqlite.insert(table).values(given)


def _put(name: str, database: str, *names: str) -> Insert:
    return or_change(_insert(name, database, "", *names), name, *names)


def _lock(name: str, database: str, *names: str) -> Insert:
    """A row that is there is changed to what it was: that locks it, on every database."""
    (first, *_) = metadata.tables[name].primary_key
    return or_change(_insert(name, database, "", *names), name, first.name)


def or_change(rows: NewRows, name: str, *names: str) -> Insert:
    """Have an insert change these columns of the rows that are there."""
    if isinstance(rows, mysql.Insert):
        return rows.on_duplicate_key_update({each: rows.inserted[each] for each in names})
    new = {each: rows.excluded[each] for each in names}
    return rows.on_conflict_do_update(index_elements=metadata.tables[name].primary_key, set_=new)
