"""The app that has started last, in SQL."""

from typing import Any

from sqlalchemy import Insert, Select, Update, select, update
from sqlalchemy import literal_column as literal
from sqlalchemy.dialects import mysql, postgresql, sqlite

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound
from celery_sagas.stores.sql.tables import app


def note_app(database: Database, name: str) -> str:
    """Note an app; return the one that was noted before it. Without the table nothing is noted."""
    try:
        return database.run(lambda session: _note(session, name))
    except StoreUnavailable as exc:
        if database.lacks_table(exc):
            return ""
        raise


def _note(session: SqlSession, name: str) -> str:
    session.begin()
    session.change(_lock, (session.database,), {})
    ((before,),) = session.fetch(_select, (), {})
    session.change(_update, (), {"name": name})
    session.end("COMMIT")
    return str(before)


def _lock(database: str) -> Insert:
    """Insert a row, or lock the one that is there by changing nothing."""
    first: dict[str, Any] = {"prefix": PREFIX, "name": literal("''")}
    if database == "mysql":
        return mysql.insert(app).values(first).on_duplicate_key_update(name=app.c.name)
    if database == "sqlite":
        return sqlite.insert(app).values(first).on_conflict_do_update(index_elements=app.primary_key, set_={"name": app.c.name})
    return postgresql.insert(app).values(first).on_conflict_do_update(index_elements=app.primary_key, set_={"name": app.c.name})


def _select() -> Select[Any]:
    return select(app.c.name).where(app.c.prefix == PREFIX)


def _update() -> Update:
    return update(app).where(app.c.prefix == PREFIX).values(name=bound(app.c.name, "name"))
