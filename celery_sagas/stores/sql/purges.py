"""Removal of old rows, the oldest first and a bounded number at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Delete,
    Select,
    TextClause,
    bindparam,
    delete,
    select,
    text,
    tuple_,
)

from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, now
from celery_sagas.stores.sql.tables import delivery, has_time, journal, metadata, seen

_BEFORE: BindParameter[int] = bindparam("before", type_=BigInteger())
#: The tables that can be purged: the time column, and the columns that identify a row, as in the primary key.
_TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    journal.name: ("at", ("message_id", "step")),
    delivery.name: ("at", ("message_id", "step")),
    seen.name: ("ends_at", ("key",)),
}


def purge(database: Database, table: str, older_than_ms: int, limit: int) -> int:
    """Remove rows that are older, by the store's clock; return how many."""
    ((time,),) = database.fetch(_time, (), {})
    values = {"before": time - older_than_ms, "limit": limit}
    return database.change(_purge, (table, database.name), values)


def _time() -> Select[Any]:
    return select(now())


def _purge(name: str, database: str) -> Delete:
    """Remove the oldest rows of a table."""
    table, (time, names) = metadata.tables[name], _TABLES[name]
    rows = delete(table).where(table.c.prefix == PREFIX)
    if database == "mysql":
        return rows.where(_mysql_oldest(time, names))
    columns: list[ColumnElement[Any]] = [table.c[each] for each in names]
    old = select(*columns).where(table.c.prefix == PREFIX, table.c[time] < _BEFORE, has_time(table.c[time]))
    # By the time alone: as long as PostgreSQL has no statistics of the table, it would sort all that is old to take some.
    oldest = old.order_by(table.c[time]).limit(LIMIT).with_for_update(skip_locked=True)
    chosen = select(oldest.cte("oldest")) if database == "postgresql" else oldest  # which must not run it twice
    return rows.where(tuple_(*columns).in_(chosen))


def _mysql_oldest(time: str, names: Sequence[str]) -> TextClause:
    """MySQL has no ``LIMIT`` in a subquery on the table that it deletes from, but in ``DELETE`` itself; SQLAlchemy has not.

    The order is that of the index by time, with the prefix: given less of it, or another order, MariaDB sorts and locks all
    that is old.
    """
    order = ", ".join(f"`{name}`" for name in ("prefix", time, *names))
    return text(f"{time} < :before ORDER BY {order} LIMIT :limit").bindparams(_BEFORE, LIMIT)
