"""Counts of deliveries in SQL."""

from typing import Any

from sqlalchemy import ColumnElement, Insert, Select, select
from sqlalchemy import literal_column as literal

from celery_sagas.stores.ports import Deliveries
from celery_sagas.stores.sql.connection.bulk import insert_into, or_change
from celery_sagas.stores.sql.connection.database import Database, Row, SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, Values, bound, now
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.tables import delivery

_MESSAGE = ("step", "message_id")


class SqlDeliveries(Deliveries):
    """Counts in the table ``saga_delivery``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(self, step: str, message_id: str) -> int:
        values = {"step": step, "message_id": message_id}
        if self._database.name == "postgresql":
            ((count,),) = self._database.fetch(_insert, ("postgresql",), values)
        else:
            ((count,),) = self._database.in_transaction(lambda session: _count(session, values))
        return int(count)

    def purge(self, older_than_ms: int, limit: int) -> int:
        return purge(self._database, delivery.c.at, older_than_ms, limit)


def _count(session: SqlSession, values: Values) -> list[Row]:
    """Count on databases, or versions of them, whose ``INSERT`` returns nothing."""
    session.change(_insert, (session.database,), values)
    return session.fetch(_select, (), values)


def _insert(database: str) -> Insert:
    """Insert a first delivery, or add one to those that are there."""
    columns: dict[str, ColumnElement[Any]] = {
        "prefix": PREFIX,
        **{name: bound(delivery.c[name], name) for name in _MESSAGE},
        "count": literal("1"),
        "at": now(),
    }
    counted = or_change(insert_into(delivery, database).values(columns), "at", count=delivery.c.count + literal("1"))
    return counted.returning(delivery.c.count) if database == "postgresql" else counted


def _select() -> Select[Any]:
    is_same = (delivery.c[name] == bound(delivery.c[name], name) for name in _MESSAGE)
    return select(delivery.c.count).where(delivery.c.prefix == PREFIX, *is_same)
