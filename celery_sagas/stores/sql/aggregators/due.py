"""Claims of due groups, such that two calls at once never get the same one."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Select, Update, bindparam, select, update

from celery_sagas.stores.items import DueGroup
from celery_sagas.stores.sql.connection.database import Row, SqlSession
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, any_of, bound, in_parts, now
from celery_sagas.stores.sql.tables import group, has_time


def claim_due(session: SqlSession, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
    """Request the flushes of the groups that are due, the longest due first."""
    rows: list[Row] = []
    for name in sorted(set(names)):
        rows += session.fetch(_due, (), {"name": name, "limit": limit})
    chosen = sorted(rows, key=tuple)[:limit]
    for count, given in in_parts(session.database, "group_digest", sorted(row[-1] for row in chosen)):
        session.change(_request, (count,), {"lease_ms": lease_ms, **given})
    return [DueGroup(name, grp) for _, name, grp, _ in chosen]


def _due() -> Select[Any]:
    """Select due groups of one aggregator: of several at once the database would sort all that are due.

    Groups that another transaction is changing are passed over: it leaves their due times right.
    """
    is_due = [group.c.due_at <= now(), has_time(group.c.due_at)]
    is_ours = [group.c.prefix == PREFIX, group.c.aggregator == bound(group.c.aggregator, "name")]
    columns = (group.c.due_at, group.c.aggregator, group.c.grp, group.c.group_digest)
    order = (group.c.due_at, group.c.grp)
    return select(*columns).where(*is_ours, *is_due).order_by(*order).limit(LIMIT).with_for_update(skip_locked=True)


def _request(count: int) -> Update:
    lease_ms: BindParameter[int] = bindparam("lease_ms", type_=BigInteger())
    are = [group.c.prefix == PREFIX, any_of(group.c.group_digest, "group_digest", count)]
    return update(group).where(*are).values(flush_requested_until=now() + lease_ms, due_at=now() + lease_ms)
