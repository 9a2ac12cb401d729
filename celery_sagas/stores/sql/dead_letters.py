"""Dead letters in SQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Delete, Insert, Select, and_, delete, func, or_, select

from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.connection.bulk import insert_missing, put_rows
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound, now
from celery_sagas.stores.sql.tables import dead

#: In the order of ``DeadLetter``'s fields.
_DEAD_LETTER: list[ColumnElement[Any]] = [dead.c[name] for name in DeadLetter._fields]
#: What the store does not set itself.
_GIVEN = tuple(name for name in DeadLetter._fields if name != "at")


class SqlDeadLetters(DeadLetters):
    """Dead letters in the table ``saga_dead``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, dead_letter: DeadLetter) -> None:
        values = {name: getattr(dead_letter, name) for name in _GIVEN}
        self._database.change(_insert, (self._database.name,), values)

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        rows = self._database.fetch(_list, (before is not None,), {"limit": limit, "before": before})
        return [DeadLetter(*row) for row in rows]

    def get(self, id: str) -> DeadLetter | None:
        rows = self._database.fetch(_get, (), {"id": id})
        return DeadLetter(*rows[0]) if rows else None

    def remove(self, id: str) -> bool:
        return self._database.run(lambda session: discard(session, id))

    def count(self) -> int:
        ((count,),) = self._database.fetch(_count, (), {})
        return int(count)


def keep(session: SqlSession, now: int, dead_letters: Sequence[DeadLetter]) -> None:
    """Keep the dead letters of rejected items."""
    put_rows(session, dead, [dead_letter._replace(at=now)._asdict() for dead_letter in dead_letters])


def discard(session: SqlSession, id: str) -> bool:
    """Remove a dead letter; return whether it was there."""
    return session.change(_delete, (), {"id": id}) > 0


def _insert(database: str) -> Insert:
    columns: dict[str, ColumnElement[Any]] = {
        "prefix": PREFIX,
        **{name: bound(dead.c[name], name) for name in _GIVEN},
        "at": now(),
    }
    return insert_missing(dead, database, columns)


def _list(has_before: bool) -> Select[Any]:
    """Select dead letters, newest first."""
    dead_letters = select(*_DEAD_LETTER).where(dead.c.prefix == PREFIX).order_by(dead.c.at.desc(), dead.c.id.desc())
    return dead_letters.where(*([_follows_before()] if has_before else [])).limit(LIMIT)


def _follows_before() -> ColumnElement[bool]:
    """Where the index is entered must be a condition of its own: given ``OR`` alone, it is read from its beginning."""
    before = bound(dead.c.id, "before")
    last = dead.alias("last")
    time = select(last.c.at).where(last.c.prefix == PREFIX, last.c.id == before).scalar_subquery()
    return and_(dead.c.at <= time, or_(dead.c.at < time, dead.c.id < before))


def _get() -> Select[Any]:
    return select(*_DEAD_LETTER).where(dead.c.prefix == PREFIX, dead.c.id == bound(dead.c.id, "id"))


def _count() -> Select[Any]:
    return select(func.count()).select_from(dead).where(dead.c.prefix == PREFIX)


def _delete() -> Delete:
    return delete(dead).where(dead.c.prefix == PREFIX, dead.c.id == bound(dead.c.id, "id"))
