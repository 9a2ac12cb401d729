"""The ids of removed items, in the table ``saga_seen``."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Insert, select

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.sql.aggregators.groups import GroupRow
from celery_sagas.stores.sql.aggregators.items import are
from celery_sagas.stores.sql.connection.bulk import NewRows, insert_into, or_change
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound, in_parts
from celery_sagas.stores.sql.tables import buffer, seen


def remember(session: SqlSession, rules: Rules, now: int, groups: Iterable[GroupRow], numbers: Sequence[int]) -> None:
    """Remember the ids of items of groups that are about to be removed, if the rules say so."""
    if not rules.remember_ms or not numbers:
        return
    for group in groups:
        group.removals += 1
    ends_at = now + rules.remember_ms
    for count, given in in_parts(session.database, "number", sorted(numbers)):
        session.change(_insert, (session.database, count), {"ends_at": ends_at, **given})


def _insert(database: str, count: int) -> Insert:
    """Insert ids; those that are remembered already are so from now on."""
    columns: list[ColumnElement[Any]] = [PREFIX, buffer.c.key, bound(seen.c.ends_at, "ends_at")]
    ids = select(*columns).where(*are(count)).order_by(buffer.c.number)
    rows: NewRows = insert_into(seen, database).from_select(["prefix", "key", "ends_at"], ids)
    return or_change(rows, "ends_at")
