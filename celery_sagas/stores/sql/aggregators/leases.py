"""Leases, in the table ``saga_lease``. Callers that change any have locked their group."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Delete, Insert, Select, Update, delete, insert, select, update

from celery_sagas.stores.sql.aggregators.groups import GroupRow
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound
from celery_sagas.stores.sql.tables import lease


class LeaseRow(NamedTuple):
    """The time that one run of a flush has, and the reason for the flush."""

    token: str
    reason: str
    ends_at: int


def read_leases(session: SqlSession, row: GroupRow) -> dict[str, LeaseRow]:
    """Return the leases of a group, by their tokens."""
    if not row.leased:
        return {}
    return {fields[0]: LeaseRow(*fields) for fields in session.fetch(_select, (), {"group_digest": row.group_digest})}


def add_lease(session: SqlSession, group_digest: str, made: LeaseRow) -> None:
    """Keep a new lease."""
    session.change(_insert, (), {"group_digest": group_digest, **made._asdict()})


def extend_lease(session: SqlSession, group_digest: str, token: str, ends_at: int) -> None:
    """Have a lease end at another time."""
    session.change(_extend, (), {"group_digest": group_digest, "token": token, "ends_at": ends_at})


def end_lease(session: SqlSession, group_digest: str, token: str) -> None:
    """Remove a lease."""
    session.change(_delete, (), {"group_digest": group_digest, "token": token})


def end_leases(session: SqlSession, group_digest: str) -> None:
    """Remove all leases of a group."""
    session.change(_delete_all, (), {"group_digest": group_digest})


def first_end(leases: Collection[LeaseRow]) -> int:
    """Return when the first of them ends; 0 if there is none."""
    return min((each.ends_at for each in leases), default=0)


def _select() -> Select[Any]:
    return select(lease.c.token, lease.c.reason, lease.c.ends_at).where(*_are_of_group())


def _insert() -> Insert:
    given = {name: bound(lease.c[name], name) for name in ("group_digest", *LeaseRow._fields)}
    return insert(lease).values({"prefix": PREFIX, **given})


def _extend() -> Update:
    return update(lease).where(*_is_it()).values(ends_at=bound(lease.c.ends_at, "ends_at"))


def _delete() -> Delete:
    return delete(lease).where(*_is_it())


def _delete_all() -> Delete:
    return delete(lease).where(*_are_of_group())


def _is_it() -> list[ColumnElement[bool]]:
    return [*_are_of_group(), lease.c.token == bound(lease.c.token, "token")]


def _are_of_group() -> list[ColumnElement[bool]]:
    return [lease.c.prefix == PREFIX, lease.c.group_digest == bound(lease.c.group_digest, "group_digest")]
