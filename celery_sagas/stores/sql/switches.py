"""The switches in SQL."""

from sqlalchemy import ColumnElement, Delete, Insert, Select, delete, select

from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.sql.connection.bulk import insert_missing
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound, now
from celery_sagas.stores.sql.sagas.effects import audit_values, insert_audit
from celery_sagas.stores.sql.tables import audit, switch
from celery_sagas.stores.switches import MOST, Switch, Switches, too_many

_GIVEN = ("name", "actor", "reason")


class SqlSwitches(Switches):
    """Switches in the table ``saga_switch``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, name: str, entry: AuditEntry) -> bool:
        is_held = self._database.in_transaction(lambda session: _hold(session, name, entry))
        if is_held is None:
            raise too_many()
        return is_held

    def release(self, name: str, entry: AuditEntry) -> bool:
        return self._database.in_transaction(lambda session: _release(session, name, entry))

    def held(self) -> list[Switch]:
        return [Switch(*row) for row in self._database.fetch(_held, (), {})]


def _hold(session: SqlSession, name: str, entry: AuditEntry) -> bool | None:
    """Hold a name; return whether this call holds it, or ``None`` if there are too many.

    Calls that could pass the limit together wait for each other, at a row that they lock, and count afterwards.
    """
    if _is_known(session, entry):
        return True
    session.fetch(_lock, (), {})
    names = [each for (each,) in session.fetch(_names, (), {})]
    if name in names:
        return False
    if len(names) >= MOST:
        return None
    if not session.change(_insert, (session.database,), {"name": name, "actor": entry.actor, "reason": entry.reason}):
        return False
    session.change(insert_audit, (), audit_values(entry))
    return True


def _release(session: SqlSession, name: str, entry: AuditEntry) -> bool:
    if _is_known(session, entry):
        return True
    if not session.change(_delete, (), {"name": name}):
        return False
    session.change(insert_audit, (), audit_values(entry))
    return True


def _is_known(session: SqlSession, entry: AuditEntry) -> bool:
    """Return whether a call with this entry was committed before."""
    return bool(session.fetch(_of_audit, (), {"id": entry.id}))


def _of_audit() -> Select[tuple[str]]:
    return select(audit.c.id).where(audit.c.prefix == PREFIX, audit.c.id == bound(audit.c.id, "id"))


def _held() -> Select[tuple[str, str, str, int]]:
    return select(switch.c.name, switch.c.actor, switch.c.reason, switch.c.at).where(_is_ours()).order_by(switch.c.name)


def _names() -> Select[tuple[str]]:
    return select(switch.c.name).where(_is_ours())


def _lock() -> Select[tuple[str]]:
    return _names().order_by(switch.c.name).with_for_update()


def _insert(database: str) -> Insert:
    columns = {"prefix": PREFIX, **{name: bound(switch.c[name], name) for name in _GIVEN}, "at": now()}
    return insert_missing(switch, database, columns)


def _delete() -> Delete:
    return delete(switch).where(_is_ours(), switch.c.name == bound(switch.c.name, "name"))


def _is_ours() -> ColumnElement[bool]:
    return switch.c.prefix == PREFIX
