"""The app that has started last, in SQL."""

from typing import Any

from sqlalchemy import Select, Update, select, update

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.sql.connection.bulk import lock_rows
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import PREFIX, bound
from celery_sagas.stores.sql.tables import app


def note_app(database: Database, name: str) -> str:
    """Note an app; return the one that was noted before it. Without the table nothing is noted."""
    try:
        return database.in_transaction(lambda session: _note(session, name))
    except StoreUnavailable as exc:
        if database.fault_of(exc) is Fault.NO_TABLE:
            return ""
        raise


def _note(session: SqlSession, name: str) -> str:
    lock_rows(session, app, [{"name": ""}])
    ((before,),) = session.fetch(_select, (), {})
    session.change(_update, (), {"name": name})
    return str(before)


def _select() -> Select[Any]:
    return select(app.c.name).where(app.c.prefix == PREFIX)


def _update() -> Update:
    return update(app).where(app.c.prefix == PREFIX).values(name=bound(app.c.name, "name"))
