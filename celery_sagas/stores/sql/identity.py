"""The identity of a database: a random id, by which a connection that is not ours is known to lead to it."""

from typing import Any
from uuid import uuid4

from sqlalchemy import Insert, Select, literal_column, select

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.sql.connection.bulk import insert_missing
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import bound
from celery_sagas.stores.sql.tables import database as table


def identity_of(database: Database) -> str:
    """Return the id of a database; the first call gives it one.

    Raises:
        ConfigurationError: The table for it is missing.
        StoreUnavailable: The database cannot be reached.
    """
    try:
        found = database.fetch(_select, (), {}) or database.run(_give)
    except StoreUnavailable as exc:
        if database.fault_of(exc) is not Fault.NO_TABLE:
            raise
        remedy = "Start a worker, which creates it, or apply what `celery -A proj sagas schema` prints"
        name = database.names.table(table).fullname
        raise ConfigurationError(f"the table {name} is missing in {database.location.shown}", remedy) from exc
    ((id,),) = found
    return str(id)


def _give(session: SqlSession) -> Any:
    """Give the database an id, unless another process has done so meanwhile."""
    session.change(_insert, (session.database,), {"id": uuid4().hex})
    return session.fetch(_select, (), {})


def _select() -> Select[Any]:
    return select(table.c.id)


def _insert(database: str) -> Insert:
    return insert_missing(table, database, {"number": literal_column("1"), "id": bound(table.c.id, "id")})
